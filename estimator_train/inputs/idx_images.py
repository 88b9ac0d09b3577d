"""Reads the images of an idx file one after the other, up to where it breaks off; see idx.py."""

import gzip
import struct
import zlib
from typing import Any, Iterator

import numpy as np

from estimator_train.datasets import idx

_GZIP = b'\x1f\x8b'
_IDX = b'\0\0\x08'  # Of unsigned bytes.


def begins_like_one(start: bytes) -> bool:
  """Whether a file that begins with these bytes is idx, or gzip, as no image file is."""
  return start.startswith((_GZIP, _IDX))


def read(path: bytes, height: int, width: int) -> Iterator[np.ndarray]:
  """Yields each image, uint8 [height, width, 1], of a file that may be gzipped.

  Raises:
    ValueError: the rest cannot be read, or nothing can; it says why.
  """
  done, count = 0, None
  try:
    with open(path, 'rb') as file:
      content: Any = gzip.GzipFile(fileobj=file) if file.peek(2).startswith(_GZIP) else file
      count = _read_header(content, height, width)
      while done < count:
        pixels = _take(content, height * width)
        if len(pixels) < height * width:
          raise EOFError('the file ends')
        yield np.frombuffer(pixels, np.uint8).reshape(height, width, 1)
        done += 1
      if content.read1(1):  # At the end of a gzip file this compares its checksum.
        raise ValueError('there is more in the file than its header says')
  except (EOFError, OSError, ValueError, zlib.error) as error:
    why = getattr(error, 'strerror', None) or str(error)
    if count is None:
      raise ValueError(why) from error
    raise ValueError('{}, after {} of {} images'.format(why, done, count)) from error


def _read_header(content: Any, height: int, width: int) -> int:
  """Returns the number of images."""
  header = _take(content, idx.IMAGE_HEADER_BYTES)
  magic = idx.IMAGE_MAGIC.to_bytes(4, 'big')
  if not header.startswith(magic):
    raise ValueError('not an idx file of images: it begins with 0x{}, expected 0x{}'.format(
        header[:4].hex(), magic.hex()))
  if len(header) < idx.IMAGE_HEADER_BYTES:
    raise ValueError('the file ends in its header')
  _, count, rows, columns = struct.unpack('>4I', header)
  if (rows, columns) != (height, width):
    raise ValueError('its images are {}x{}, and the model takes {}x{}'.format(
        rows, columns, height, width))
  if not count:
    raise ValueError('it has no images')
  return count


def _take(content: Any, count: int) -> bytes:
  """Returns the next bytes, fewer at the end. Unlike `read`, it loses none before a damage."""
  taken = b''
  while len(taken) < count:
    some = content.read1(count - len(taken))
    if not some:
      break
    taken += some
  return taken
