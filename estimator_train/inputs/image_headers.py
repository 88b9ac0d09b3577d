"""Why an image cannot be decoded, and what is odd about one that can: told by its header.

Whether an image is good, only the decoder that training uses says. This says what follows from the
bytes around the pixels, which stay as they are: the first bytes, the segments, and Pillow's reading
of the header. Kinds of findings are those of reports/audit.py.
"""

import io
import logging
import os
import re
import warnings
from typing import Any, Callable, Dict, Iterator, NamedTuple, Optional, Tuple

from estimator_train.errors import UserError

# By these the decoder tells the formats, whatever a file's name says.
_SIGNATURES = ((b'\xff\xd8\xff', 'JPEG'), (b'\x89PNG\r\n\x1a\n', 'PNG'), (b'GIF8', 'GIF'))
# Formats that the decoder does not read, and that are hard to mistake something else for.
_OTHER_FORMATS = ('BMP', 'JPEG2000', 'TIFF', 'WEBP')
_ORIENTATION = 0x0112
_PNG_DEPTH_AT = 24


class Problem(NamedTuple):
  """Something found in a file: what kind, and in words."""
  kind: str
  reason: str


def load_pillow() -> None:
  """Makes Pillow ready for several threads.

  Raises:
    UserError: it is not installed.
  """
  try:
    from PIL import Image
  except ImportError as error:
    raise UserError('--mode=audit reads the headers of images with Pillow',
                    'there is none ({})'.format(error),
                    'install it with `pip install Pillow`, or this package with its extra '
                    '`images`') from error
  # What Pillow thinks of a file is no news for the user. Filters are the process's, so that threads
  # cannot set them one by one.
  warnings.filterwarnings('ignore', module=r'PIL\.')
  logging.getLogger('PIL').setLevel(logging.CRITICAL + 1)
  Image.MAX_IMAGE_PIXELS = None  # A limit for those who decode: here no pixel is.
  Image.init()


def problems(path: bytes, contents: bytes, refusal: Optional[str]) -> Iterator[Problem]:
  """Yields what there is to say about a file.

  Args:
    path: its name.
    contents: all of its bytes.
    refusal: why the decoder cannot decode them; None when it can.
  """
  name = _format(contents)
  image, doubt = _open(contents, name)
  if refusal is not None:
    yield _why_not(contents, name, image, refusal, doubt)
  if name is not None:
    yield from _wrong_extension(path, name)
  if re.match('Got [0-9]+ frames', refusal or ''):
    yield Problem('animated', 'the decoder takes no GIF of several frames')
  if image is not None and refusal is None:
    yield from _not_as_meant(contents, image)


def _format(contents: bytes) -> Optional[str]:
  for signature, name in _SIGNATURES:
    if contents.startswith(signature):
      return name
  return None


def _open(contents: bytes, name: Optional[str]) -> Tuple[Any, str]:
  """Returns Pillow's image, its pixels not decoded, and '', or None and why there is none."""
  from PIL import GifImagePlugin, Image, JpegImagePlugin, PngImagePlugin
  file = io.BytesIO(contents)
  try:
    if name is None:
      return Image.open(file, formats=_OTHER_FORMATS), ''
    # Not Image.open: of all that went wrong it says that it cannot identify the file.
    return {'JPEG': JpegImagePlugin.JpegImageFile, 'PNG': PngImagePlugin.PngImageFile,
            'GIF': GifImagePlugin.GifImageFile}[name](file), ''
  except Exception as error:  # Pillow raises all sorts on files that are not as they should be.
    return None, str(error)


def _why_not(contents: bytes, name: Optional[str], image: Any, refusal: str,
             doubt: str) -> Problem:
  if not contents:
    return Problem('empty', 'it has no bytes')
  if name is None:
    if image is None:
      return Problem('not_an_image', refusal)
    return Problem('cannot_be_decoded', 'a {} image: {}'.format(image.format, refusal))
  if _ENDS_EARLY[name](contents):
    return Problem('truncated', 'its data end early: ' + refusal)
  return Problem('cannot_be_decoded',
                 '{} (Pillow: {})'.format(refusal, doubt) if doubt else refusal)


def _jpeg_ends_early(contents: bytes) -> bool:
  """Whether the segments, or the pixels after them, go on where the file does not."""
  at = 2
  while True:
    head = contents[at:at + 4]
    if len(head) < 4:
      return True
    if head[0] != 0xff:
      return False  # No segment: something else is wrong.
    if head[1] == 0xff:  # Segments may be padded.
      at += 1
    elif head[1] == 0xda:
      # Pixels begin. Among them 0xff is followed by 0, so that this can only be their end.
      return contents.find(b'\xff\xd9', at) < 0
    else:
      at += 2 + int.from_bytes(head[2:], 'big')


def _png_ends_early(contents: bytes) -> bool:
  """Whether the file ends within a chunk, or before the one that is the last of every PNG."""
  at = 8
  while True:
    length, name = int.from_bytes(contents[at:at + 4], 'big'), contents[at + 4:at + 8]
    if len(name) == 4 and not re.match(b'[A-Za-z]{4}', name):
      return False  # No chunk: something else is wrong.
    at += 12 + length
    if at > len(contents):
      return True
    if name == b'IEND':
      return False


def _gif_ends_early(contents: bytes) -> bool:
  """Whether the last byte, but for padding, is not that of every GIF.

  Of GIFs that do end early, one in 256 has that byte there by chance, and counts as broken.
  """
  return not contents.rstrip(b'\0').endswith(b';')


_ENDS_EARLY: Dict[str, Callable[[bytes], bool]] = {
    'JPEG': _jpeg_ends_early, 'PNG': _png_ends_early, 'GIF': _gif_ends_early}


def _wrong_extension(path: bytes, name: str) -> Iterator[Problem]:
  from PIL import Image
  extension = os.path.splitext(os.fsdecode(path))[1].lower()
  if Image.EXTENSION.get(extension, name) != name:  # A name of no format claims nothing.
    yield Problem('wrong_extension', 'a {} named {}'.format(name, extension))


def _not_as_meant(contents: bytes, image: Any) -> Iterator[Problem]:
  """Yields what the decoder drops without a word."""
  if image.mode == 'CMYK':
    yield Problem('cmyk', 'the decoder turns CMYK into RGB without its colour profile')
  if image.format == 'PNG' and contents[_PNG_DEPTH_AT] == 16:
    yield Problem('16_bit', 'the decoder keeps 8 of 16 bits')
  if getattr(image, 'is_animated', False) and image.format == 'PNG':
    yield Problem('animated', 'the decoder takes the first frame')
  orientation = _orientation(image)
  if 2 <= orientation <= 8:
    yield Problem('exif_rotated', 'the decoder does not turn it as EXIF orientation {} asks'.format(
        orientation))


def _orientation(image: Any) -> int:
  from PIL import Image
  try:
    # Of the base class: that of a PNG decodes the pixels to look for EXIF data behind them.
    return int(Image.Image.getexif(image).get(_ORIENTATION, 1))
  except Exception:  # As above. EXIF data that cannot be read turn nothing.
    return 1
