"""Reads the images of an idx file one by one, up to the point of damage; see datasets/idx.py."""

import gzip
import struct
import zlib
from typing import Any, Iterator

import numpy as np

from estimator_train.datasets import idx

_GZIP_SIGNATURE = b'\x1f\x8b'
_IDX_SIGNATURE = b'\0\0\x08'  # An idx file of unsigned bytes.


def is_idx_or_gzip(start: bytes) -> bool:
  """Whether the first bytes of a file are those of an idx or gzip file, not of an image file."""
  return start.startswith((_GZIP_SIGNATURE, _IDX_SIGNATURE))


def iter_images(path: bytes, height: int, width: int) -> Iterator[np.ndarray]:
  """Yields the images, uint8 [height, width, 1], of an idx file, gzipped or not.

  Raises:
    ValueError: the file, or the rest of it, cannot be read; the text is the reason.
  """
  done, count = 0, None
  try:
    with open(path, 'rb') as file:
      is_gzip = file.peek(2).startswith(_GZIP_SIGNATURE)
      content: Any = gzip.GzipFile(fileobj=file) if is_gzip else file
      count = _read_header(content, height, width)
      while done < count:
        pixels = _read_up_to(content, height * width)
        if len(pixels) < height * width:
          raise EOFError('the file ends')
        yield np.frombuffer(pixels, np.uint8).reshape(height, width, 1)
        done += 1
      if content.read1(1):  # At the end of a gzip file, this verifies the checksum.
        raise ValueError('the file is longer than its header indicates')
  except (EOFError, OSError, ValueError, zlib.error) as error:
    why = getattr(error, 'strerror', None) or str(error)
    if count is None:
      raise ValueError(why) from error
    raise ValueError('{}, after {} of {} images'.format(why, done, count)) from error


def _read_header(content: Any, height: int, width: int) -> int:
  """Returns the number of images."""
  header = _read_up_to(content, idx.IMAGE_HEADER_BYTES)
  magic = idx.IMAGE_MAGIC.to_bytes(4, 'big')
  if not header.startswith(magic):
    raise ValueError('not an idx file of images: it starts with 0x{}, expected 0x{}'.format(
        header[:4].hex(), magic.hex()))
  if len(header) < idx.IMAGE_HEADER_BYTES:
    raise ValueError('the file ends in its header')
  _, count, rows, columns = struct.unpack('>4I', header)
  if (rows, columns) != (height, width):
    raise ValueError('the images are {}x{}, but the model requires {}x{}'.format(
        rows, columns, height, width))
  if not count:
    raise ValueError('the file has no images')
  return count


def _read_up_to(content: Any, count: int) -> bytes:
  """Returns the next `count` bytes, or fewer at the end; unlike `read`, all bytes before damage."""
  data = b''
  while len(data) < count:
    chunk = content.read1(count - len(data))
    if not chunk:
      break
    data += chunk
  return data
