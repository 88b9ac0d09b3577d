"""Finds problems of image files in their headers, without decoding pixels.

Whether an image can be decoded is determined by the decoder that training uses. This module
explains why not, and finds properties that the decoder ignores, from the first bytes, the segments
or chunks, and the header as Pillow reads it. The kinds of problems are those of reports/audit.py.
"""

import io
import logging
import os
import re
import warnings
from typing import Any, Callable, Dict, Iterator, NamedTuple, Optional, Tuple

from estimator_train.errors import UserError

# The first bytes by which the decoder recognizes the format; it ignores the file name.
_SIGNATURES = ((b'\xff\xd8\xff', 'JPEG'), (b'\x89PNG\r\n\x1a\n', 'PNG'), (b'GIF8', 'GIF'))
# Formats that the decoder does not support and that Pillow recognizes reliably.
_OTHER_FORMATS = ('BMP', 'JPEG2000', 'TIFF', 'WEBP')
_ORIENTATION_TAG = 0x0112
_PNG_DEPTH_OFFSET = 24


class Problem(NamedTuple):
  """A problem of a file: its kind, and the reason as text."""
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
  # The audit reports problems itself. Warning filters are global, so they cannot be set per thread.
  warnings.filterwarnings('ignore', module=r'PIL\.')
  logging.getLogger('PIL').setLevel(logging.CRITICAL + 1)
  Image.MAX_IMAGE_PIXELS = None  # This limit is for decoding, and pixels are not decoded here.
  Image.init()


def find_problems(path: bytes, contents: bytes, refusal: Optional[str]) -> Iterator[Problem]:
  """Yields the problems of a file.

  Args:
    path: the path of the file.
    contents: the content of the file.
    refusal: the error of the decoder, or None if it can decode the file.
  """
  name = _detect_format(contents)
  image, pillow_error = _open_with_pillow(contents, name)
  if refusal is not None:
    yield _explain_refusal(contents, name, image, refusal, pillow_error)
  if name is not None:
    yield from _check_extension(path, name)
  if re.match('Got [0-9]+ frames', refusal or ''):
    yield Problem('animated', 'the decoder does not support GIFs with several frames')
  if image is not None and refusal is None:
    yield from _find_lossy_decoding(contents, image)


def _detect_format(contents: bytes) -> Optional[str]:
  for signature, name in _SIGNATURES:
    if contents.startswith(signature):
      return name
  return None


def _open_with_pillow(contents: bytes, name: Optional[str]) -> Tuple[Any, str]:
  """Returns Pillow's image, with undecoded pixels, and ''; or None and Pillow's error."""
  from PIL import GifImagePlugin, Image, JpegImagePlugin, PngImagePlugin
  file = io.BytesIO(contents)
  try:
    if name is None:
      return Image.open(file, formats=_OTHER_FORMATS), ''
    # Not Image.open, which replaces every error by 'cannot identify image file'.
    return {'JPEG': JpegImagePlugin.JpegImageFile, 'PNG': PngImagePlugin.PngImageFile,
            'GIF': GifImagePlugin.GifImageFile}[name](file), ''
  except Exception as error:  # Pillow raises various exceptions for damaged files.
    return None, str(error)


def _explain_refusal(contents: bytes, name: Optional[str], image: Any, refusal: str,
                     pillow_error: str) -> Problem:
  if not contents:
    return Problem('empty', 'the file has no bytes')
  if name is None:
    if image is None:
      return Problem('not_an_image', refusal)
    return Problem('cannot_be_decoded', 'a {} image: {}'.format(image.format, refusal))
  if _IS_TRUNCATED[name](contents):
    return Problem('truncated', 'the data ends early: ' + refusal)
  return Problem('cannot_be_decoded',
                 '{} (Pillow: {})'.format(refusal, pillow_error) if pillow_error else refusal)


def _is_jpeg_truncated(contents: bytes) -> bool:
  """Whether the file ends within a segment, or before the end marker of the pixel data."""
  position = 2
  while True:
    head = contents[position:position + 4]
    if len(head) < 4:
      return True
    if head[0] != 0xff:
      return False  # Not a segment: the file is damaged in another way.
    if head[1] == 0xff:  # Padding before a segment.
      position += 1
    elif head[1] == 0xda:
      # Start of the pixel data, in which 0xff is followed by 0, so this can only be the end marker.
      return contents.find(b'\xff\xd9', position) < 0
    else:
      position += 2 + int.from_bytes(head[2:], 'big')


def _is_png_truncated(contents: bytes) -> bool:
  """Whether the file ends within a chunk, or before the IEND chunk."""
  position = 8
  while True:
    length = int.from_bytes(contents[position:position + 4], 'big')
    name = contents[position + 4:position + 8]
    if len(name) == 4 and not re.match(b'[A-Za-z]{4}', name):
      return False  # Not a chunk: the file is damaged in another way.
    position += 12 + length
    if position > len(contents):
      return True
    if name == b'IEND':
      return False


def _is_gif_truncated(contents: bytes) -> bool:
  """Whether the last byte, ignoring padding, is not the trailer of a GIF.

  One in 256 truncated GIFs ends with this byte by chance, and is not recognized as truncated.
  """
  return not contents.rstrip(b'\0').endswith(b';')


_IS_TRUNCATED: Dict[str, Callable[[bytes], bool]] = {
    'JPEG': _is_jpeg_truncated, 'PNG': _is_png_truncated, 'GIF': _is_gif_truncated}


def _check_extension(path: bytes, name: str) -> Iterator[Problem]:
  from PIL import Image
  extension = os.path.splitext(os.fsdecode(path))[1].lower()
  if Image.EXTENSION.get(extension, name) != name:  # Unknown extensions are accepted.
    yield Problem('wrong_extension', 'a {} named {}'.format(name, extension))


def _find_lossy_decoding(contents: bytes, image: Any) -> Iterator[Problem]:
  """Yields the properties of an image that the decoder silently ignores."""
  if image.mode == 'CMYK':
    yield Problem('cmyk', 'the decoder converts CMYK to RGB without the colour profile')
  if image.format == 'PNG' and contents[_PNG_DEPTH_OFFSET] == 16:
    yield Problem('16_bit', 'the decoder keeps 8 of 16 bits')
  if getattr(image, 'is_animated', False) and image.format == 'PNG':
    yield Problem('animated', 'the decoder reads only the first frame')
  orientation = _exif_orientation(image)
  if 2 <= orientation <= 8:
    yield Problem('exif_rotated',
                  'the decoder does not apply EXIF orientation {}'.format(orientation))


def _exif_orientation(image: Any) -> int:
  from PIL import Image
  try:
    # The base class, because the PNG class decodes the pixels to find EXIF data after them.
    return int(Image.Image.getexif(image).get(_ORIENTATION_TAG, 1))
  except Exception:  # As above. Unreadable EXIF data counts as no orientation.
    return 1
