"""Finds issues of image files in their headers, without decoding pixels.

The decoder that training uses determines whether an image can be decoded. For an image that cannot
be decoded, this module finds the reason. For any other image, this module finds the properties that
the decoder ignores. The module inspects the first bytes, the JPEG segments or PNG chunks, and the
header that Pillow reads.
"""

import io
import logging
import os
import re
import warnings
from typing import Any, Callable, Dict, Iterator, NamedTuple, Optional, Tuple

from estimator_train.errors import UserError

# The first bytes by which the decoder recognizes the format. The decoder ignores the file name.
_SIGNATURES = ((b'\xff\xd8\xff', 'JPEG'), (b'\x89PNG\r\n\x1a\n', 'PNG'), (b'GIF8', 'GIF'))
# Formats that the decoder does not support, but that Pillow recognizes reliably.
_UNSUPPORTED_FORMATS = ('BMP', 'JPEG2000', 'TIFF', 'WEBP')
_ORIENTATION_TAG = 0x0112  # The EXIF tag of the orientation.
_PNG_DEPTH_OFFSET = 24  # The position of the byte that contains the bits per channel.


class FileIssue(NamedTuple):
  """An issue of a file.

  Attributes:
    kind: one of ISSUE_KINDS in modes/audit.py.
    reason: a description of the issue.
  """
  kind: str
  reason: str


def load_pillow() -> None:
  """Imports Pillow and prepares it for use in several threads.

  Raises:
    UserError: Pillow is not installed.
  """
  try:
    from PIL import Image
  except ImportError as error:
    raise UserError('--mode=audit requires Pillow to read the headers of images',
                    'it cannot be imported ({})'.format(error),
                    'install it with `pip install Pillow`, or this package with its extra '
                    '`images`') from error
  # The audit reports issues itself, so Pillow's warnings are hidden. All threads share the
  # filters, so they are set before threads start.
  warnings.filterwarnings('ignore', module=r'PIL\.')
  logging.getLogger('PIL').setLevel(logging.CRITICAL + 1)
  Image.MAX_IMAGE_PIXELS = None  # The limit is for decoding; the audit reads only headers.
  Image.init()


def find_issues(path: bytes, contents: bytes, decoder_error: Optional[str]) -> Iterator[FileIssue]:
  """Yields the issues of a file.

  Args:
    path: the path of the file.
    contents: the content of the file.
    decoder_error: the error message of the decoder; None if the decoder can decode the file.
  """
  format_name = _detect_format(contents)
  image, pillow_error = _open_with_pillow(contents, format_name)
  if decoder_error is not None:
    yield _explain_decoder_error(contents, format_name, image, decoder_error, pillow_error)
  if format_name is not None:
    yield from _check_extension(path, format_name)
  if re.match('Got [0-9]+ frames', decoder_error or ''):
    yield FileIssue('animated', 'the decoder does not support GIFs with several frames')
  if image is not None and decoder_error is None:
    yield from _find_ignored_properties(contents, image)


def _detect_format(contents: bytes) -> Optional[str]:
  """Returns the format that the decoder recognizes: JPEG, PNG or GIF; None for other formats."""
  for signature, format_name in _SIGNATURES:
    if contents.startswith(signature):
      return format_name
  return None


def _open_with_pillow(contents: bytes, format_name: Optional[str]) -> Tuple[Any, str]:
  """Opens an image with Pillow, without decoding the pixels.

  Returns:
    (Pillow's image, '') or, if Pillow cannot open the image, (None, Pillow's error message).
  """
  from PIL import GifImagePlugin, Image, JpegImagePlugin, PngImagePlugin
  file = io.BytesIO(contents)
  try:
    if format_name is None:
      return Image.open(file, formats=_UNSUPPORTED_FORMATS), ''
    # Use the format's own class: Image.open would replace errors by 'cannot identify image file'.
    return {'JPEG': JpegImagePlugin.JpegImageFile, 'PNG': PngImagePlugin.PngImageFile,
            'GIF': GifImagePlugin.GifImageFile}[format_name](file), ''
  except Exception as error:  # Pillow raises various exceptions for damaged files.
    return None, str(error)


def _explain_decoder_error(contents: bytes, format_name: Optional[str], image: Any,
                           decoder_error: str, pillow_error: str) -> FileIssue:
  """Returns the issue that prevents decoding. `image` is None if Pillow cannot open the file."""
  if not contents:
    return FileIssue('empty', 'the file has no bytes')
  if format_name is None:
    if image is None:
      return FileIssue('not_an_image', decoder_error)
    return FileIssue('cannot_be_decoded', 'a {} image: {}'.format(image.format, decoder_error))
  if _IS_TRUNCATED[format_name](contents):
    return FileIssue('truncated', 'the data ends early: ' + decoder_error)
  return FileIssue('cannot_be_decoded', decoder_error if not pillow_error else (
      '{} (Pillow: {})'.format(decoder_error, pillow_error)))


def _is_jpeg_truncated(contents: bytes) -> bool:
  """Returns whether the file ends within a segment, or before the end marker of the pixel data."""
  position = 2
  while True:
    segment_start = contents[position:position + 4]
    if len(segment_start) < 4:
      return True
    if segment_start[0] != 0xff:
      return False  # Not a segment: the file is damaged in another way.
    if segment_start[1] == 0xff:  # Padding before a segment.
      position += 1
    elif segment_start[1] == 0xda:
      # The pixel data starts at this position. The bytes 0xffd9 occur only at its end.
      return contents.find(b'\xff\xd9', position) < 0
    else:
      position += 2 + int.from_bytes(segment_start[2:], 'big')


def _is_png_truncated(contents: bytes) -> bool:
  """Returns whether the file ends within a chunk, or before the IEND chunk."""
  position = 8
  while True:
    length = int.from_bytes(contents[position:position + 4], 'big')
    chunk_type = contents[position + 4:position + 8]
    if len(chunk_type) == 4 and not re.match(b'[A-Za-z]{4}', chunk_type):
      return False  # Not a chunk: the file is damaged in another way.
    position += 12 + length
    if position > len(contents):
      return True
    if chunk_type == b'IEND':
      return False


def _is_gif_truncated(contents: bytes) -> bool:
  """Returns whether a GIF does not end with the trailer byte, which zeros may follow as padding.

  One in 256 truncated GIFs ends with this byte by chance, and is not recognized as truncated.
  """
  return not contents.rstrip(b'\0').endswith(b';')


_IS_TRUNCATED: Dict[str, Callable[[bytes], bool]] = {
    'JPEG': _is_jpeg_truncated, 'PNG': _is_png_truncated, 'GIF': _is_gif_truncated}


def _check_extension(path: bytes, format_name: str) -> Iterator[FileIssue]:
  """Yields an issue if the extension of the file name belongs to another format."""
  from PIL import Image
  extension = os.path.splitext(os.fsdecode(path))[1].lower()
  if Image.EXTENSION.get(extension, format_name) != format_name:  # Unknown extensions are accepted.
    yield FileIssue('wrong_extension', 'a {} file with extension {}'.format(format_name, extension))


def _find_ignored_properties(contents: bytes, image: Any) -> Iterator[FileIssue]:
  """Yields the properties of an image that the decoder silently ignores, as issues."""
  if image.mode == 'CMYK':
    yield FileIssue('cmyk', 'the decoder converts CMYK to RGB without the colour profile')
  if image.format == 'PNG' and contents[_PNG_DEPTH_OFFSET] == 16:
    yield FileIssue('16_bit', 'the decoder keeps 8 of 16 bits')
  if getattr(image, 'is_animated', False) and image.format == 'PNG':
    yield FileIssue('animated', 'the decoder reads only the first frame')
  orientation = _exif_orientation(image)
  if 2 <= orientation <= 8:
    yield FileIssue('exif_rotated',
                    'the decoder does not apply EXIF orientation {}'.format(orientation))


def _exif_orientation(image: Any) -> int:
  """Returns the EXIF orientation of an image; 1 (upright) if there is no valid EXIF data."""
  from PIL import Image
  try:
    # Call the method of the base class. The method of PNG images would decode the pixels to find
    # EXIF data after the pixels.
    return int(Image.Image.getexif(image).get(_ORIENTATION_TAG, 1))
  except Exception:  # Pillow raises various exceptions for damaged EXIF data.
    return 1
