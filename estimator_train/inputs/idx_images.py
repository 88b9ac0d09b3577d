"""Reads the images of an idx file one by one. In a damaged file, reads up to the damage."""

import gzip
import struct
import zlib
from typing import Any, Iterator

import numpy as np

from estimator_train.datasets import idx, record_index

_IDX_SIGNATURE = b'\0\0\x08'  # 8: the elements of the idx file are unsigned bytes.


def is_idx_or_gzip(first_bytes: bytes) -> bool:
  """Returns whether a file that starts with these bytes is an idx file or a gzip file."""
  return first_bytes.startswith((idx.GZIP_SIGNATURE, _IDX_SIGNATURE))


def iter_images(path: bytes, height: int, width: int) -> Iterator[np.ndarray]:
  """Yields the images of an idx file, uint8 [height, width, 1]. The file may be gzipped.

  Args:
    path: the path of the file.
    height: the height that the images must have.
    width: the width that the images must have.

  Raises:
    ValueError: the file cannot be read, is damaged, is not an idx file of images, or has images of
      another size. The message is the reason.
  """
  num_read, num_images = 0, None
  try:
    with open(path, 'rb') as file:
      is_gzip = file.peek(2).startswith(idx.GZIP_SIGNATURE)
      stream: Any = gzip.GzipFile(fileobj=file) if is_gzip else file
      num_images = _read_header(stream, height, width)
      while num_read < num_images:
        pixels = _read_up_to(stream, height * width)
        if len(pixels) < height * width:
          raise EOFError('the file ends early')
        yield np.frombuffer(pixels, np.uint8).reshape(height, width, 1)
        num_read += 1
      if stream.read1(1):  # At the end of a gzip file, reading verifies the checksum.
        raise ValueError('the file is longer than its header indicates')
  except (EOFError, OSError, ValueError, zlib.error) as error:
    reason = getattr(error, 'strerror', None) or str(error)
    if num_images is None:
      raise ValueError(reason) from error
    raise ValueError('{}, after {} of {} images'.format(reason, num_read, num_images)) from error


def _read_header(stream: Any, height: int, width: int) -> int:
  """Reads and checks the header, and returns the number of images."""
  header = _read_up_to(stream, idx.IMAGE_HEADER_BYTES)
  magic = idx.IMAGE_MAGIC.to_bytes(4, 'big')
  if record_index.is_header(header[:record_index.HEADER_BYTES]):
    raise ValueError('a compressed TFRecord file: decompress it, such as with gunzip')
  if not header.startswith(magic):
    raise ValueError('not an idx file of images: it starts with 0x{}, expected 0x{}'.format(
        header[:4].hex(), magic.hex()))
  if len(header) < idx.IMAGE_HEADER_BYTES:
    raise ValueError('the file ends within its header')
  _, count, rows, columns = struct.unpack('>4I', header)
  if (rows, columns) != (height, width):
    raise ValueError('the images are {}x{}, but the model requires {}x{}'.format(
        rows, columns, height, width))
  if not count:
    raise ValueError('the file has no images')
  return count


def _read_up_to(stream: Any, num_bytes: int) -> bytes:
  """Returns the next `num_bytes` bytes, or fewer at the end of the file."""
  data = b''
  while len(data) < num_bytes:
    # stream.read would decompress more bytes than requested, and raise an error if any of these
    # additional bytes are damaged. stream.read1 decompresses only the requested bytes.
    chunk = stream.read1(num_bytes - len(data))
    if not chunk:
      break
    data += chunk
  return data
