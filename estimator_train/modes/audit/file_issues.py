"""Finds issues of image files in their first and last bytes, and in their headers.

If training cannot decode an image, the issue is the reason. The issues of any other image are
properties that the decoder of training ignores. Pillow reads the header.
"""

import io
import logging
import os
import re
import struct
import warnings
from typing import Any, Iterator, NamedTuple, Optional, Tuple

# All kinds of issues, in the order in which the table lists them. A file with an issue of one of
# the first six kinds cannot be decoded. By default, training fails when it reads such a file.
KINDS = ('unreadable', 'bad_record', 'empty', 'not_an_image', 'truncated', 'cannot_be_decoded',
         'wrong_extension', 'cmyk', '16_bit', 'transparent', 'gif_canvas', 'exif_rotated',
         'animated', 'duplicate', 'under_several_labels', 'in_train_and_eval')
# (first bytes, last bytes) of each format. The decoder recognizes a format by its first bytes, not
# by the file name.
_FORMATS = {'JPEG': (b'\xff\xd8\xff', b'\xff\xd9'),
            'PNG': (b'\x89PNG\r\n\x1a\n', b'IEND\xaeB`\x82'),
            'GIF': (b'GIF8', b';')}
# Formats that the decoder does not support, but that Pillow recognizes reliably.
_UNSUPPORTED_FORMATS = ('BMP', 'JPEG2000', 'TIFF', 'WEBP')
_ORIENTATION_TAG = 0x0112  # The EXIF tag of the orientation.
_GIF_CANVAS, _GIF_CANVAS_OFFSET = struct.Struct('<HH'), 6  # Its width and height.
_PNG_DEPTH_OFFSET = 24  # Of the byte that contains the bits per channel.


class FileIssue(NamedTuple):
  """An issue of a file. `kind` is one of KINDS, and `reason` describes the issue."""
  kind: str
  reason: str


def load_pillow() -> None:
  """Imports Pillow and prepares it for use in several threads."""
  from PIL import Image

  # Pillow's warnings are hidden, because the audit itself reports issues. All threads share the
  # filters, which are therefore set before threads start.
  warnings.filterwarnings('ignore', module=r'PIL\.')
  logging.getLogger('PIL').setLevel(logging.CRITICAL + 1)
  Image.MAX_IMAGE_PIXELS = None  # This limit is for decoding, but the audit reads only headers.
  Image.init()


def find_issues(path: bytes, content: bytes, decoder_error: Optional[str]) -> Iterator[FileIssue]:
  """Yields the issues of a file.

  Args:
    path: only its extension is used.
    decoder_error: the error message of the decoder; None if the decoder can decode the file.
  """
  from PIL import Image
  format_name = next((name for name, (first_bytes, _) in _FORMATS.items()
                      if content.startswith(first_bytes)), None)
  image, pillow_error = _open_with_pillow(content, format_name)
  if decoder_error is not None:
    yield _explain_decoder_error(content, format_name, image, decoder_error, pillow_error)
  extension = os.path.splitext(os.fsdecode(path))[1].lower()
  # Unknown extensions are accepted.
  if format_name is not None and Image.EXTENSION.get(extension, format_name) != format_name:
    yield FileIssue('wrong_extension', 'a {} file with extension {}'.format(format_name, extension))
  if re.match('Got [0-9]+ frames', decoder_error or ''):
    yield FileIssue('animated', 'the decoder does not support GIFs with several frames')
  if image is not None and decoder_error is None:
    yield from _find_ignored_properties(content, image)


def _open_with_pillow(content: bytes, format_name: Optional[str]) -> Tuple[Any, str]:
  """Opens an image with Pillow, without decoding the pixels.

  Returns:
    (Pillow's image, '') or, if Pillow cannot open the image, (None, Pillow's error message).
  """
  from PIL import GifImagePlugin, Image, JpegImagePlugin, PngImagePlugin
  file = io.BytesIO(content)
  try:
    if format_name is None:
      return Image.open(file, formats=_UNSUPPORTED_FORMATS), ''
    # Image.open would replace errors by 'cannot identify image file', so use the format's class.
    return {'JPEG': JpegImagePlugin.JpegImageFile, 'PNG': PngImagePlugin.PngImageFile,
            'GIF': GifImagePlugin.GifImageFile}[format_name](file), ''
  except Exception as error:  # Pillow raises various exceptions for damaged files.
    return None, str(error)


def _explain_decoder_error(content: bytes, format_name: Optional[str], image: Any,
                           decoder_error: str, pillow_error: str) -> FileIssue:
  """Returns the issue that prevents decoding.

  Args:
    image: None if Pillow cannot open the file.
  """
  if not content:
    return FileIssue('empty', 'the file has no bytes')
  if format_name is None:
    if image is None:
      return FileIssue('not_an_image', decoder_error)
    return FileIssue('cannot_be_decoded', 'a {} image: {}'.format(image.format, decoder_error))
  if _is_truncated(content, format_name):
    return FileIssue('truncated', 'the data ends early: ' + decoder_error)
  return FileIssue('cannot_be_decoded', decoder_error if not pillow_error else (
      '{} (Pillow: {})'.format(decoder_error, pillow_error)))


def _is_truncated(content: bytes, format_name: str) -> bool:
  """Returns whether a file that cannot be decoded ends early. Otherwise, it is damaged."""
  _, last_bytes = _FORMATS[format_name]
  is_complete = content.rstrip(b'\0').endswith(last_bytes)  # Zeros may follow as padding.
  if is_complete or format_name != 'PNG':
    return not is_complete
  # A chunk is its length (4 bytes), its type (4 letters), the data and a checksum (4 bytes).
  position = 8  # Of the first chunk that is not known to be complete.
  while re.fullmatch(b'[A-Za-z]{4}', content[position + 4:position + 8]):
    position += 12 + int.from_bytes(content[position:position + 4], 'big')
  return position + 8 > len(content)


def _find_ignored_properties(content: bytes, image: Any) -> Iterator[FileIssue]:
  """Yields the properties of an image that the decoder silently ignores, as issues."""
  from PIL import Image
  if image.mode == 'CMYK':
    yield FileIssue('cmyk', 'the decoder converts CMYK to RGB without the color profile')
  if image.format == 'PNG' and content[_PNG_DEPTH_OFFSET] == 16:
    yield FileIssue('16_bit', 'the decoder keeps 8 of 16 bits')
  # The transparent colors of a palette are in the header, which Pillow has read.
  if image.mode in ('LA', 'PA', 'RGBA') or 'transparency' in image.info:
    yield FileIssue('transparent', 'the decoder ignores the transparency')
  if image.format == 'GIF':
    width, height = _GIF_CANVAS.unpack_from(content, _GIF_CANVAS_OFFSET)
    box = image.tile[0][1] if image.tile else (0, 0, width, height)
    if box != (0, 0, width, height):
      yield FileIssue('gif_canvas', 'the decoder reads only the frame of {}x{} of the canvas of '
                      '{}x{}'.format(box[2] - box[0], box[3] - box[1], width, height))
  if getattr(image, 'is_animated', False) and image.format == 'PNG':
    yield FileIssue('animated', 'the decoder reads only the first frame')
  try:
    # This is the method of the base class. That of PNG images would decode the pixels to find EXIF
    # data after the pixels.
    orientation = int(Image.Image.getexif(image).get(_ORIENTATION_TAG, 1))
  except Exception:  # Pillow raises various exceptions for damaged EXIF data.
    orientation = 1
  if 2 <= orientation <= 8:
    yield FileIssue('exif_rotated',
                    'the decoder does not apply EXIF orientation {}'.format(orientation))
