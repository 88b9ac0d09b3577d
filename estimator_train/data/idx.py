"""Checks and reads gzipped idx files, the format of MNIST. mnist.py lists data sets in this format.

The checks find a damaged file before training starts.

The header of an idx file consists of big-endian 32-bit integers: a magic number and the dimensions.
The elements follow the header, one byte each.
"""

import functools
import gzip
import operator
import struct
import zlib
from typing import Any, Iterator, Sequence, Tuple

import numpy as np

from estimator_train.data import IdxSplit
from estimator_train.errors import UserError

IMAGE_HEADER_BYTES = 16
LABEL_HEADER_BYTES = 8
IMAGE_MAGIC = 0x803
# For each kind of file: the name of the kind, the magic number, and the size of the header.
_IMAGE_FORMAT = ('images', IMAGE_MAGIC, IMAGE_HEADER_BYTES)
_LABEL_FORMAT = ('labels', 0x801, LABEL_HEADER_BYTES)
GZIP_SIGNATURE = b'\x1f\x8b'
_IDX_SIGNATURE = b'\0\0\x08'  # The 8 means that the elements are unsigned bytes.
_GZIP_WBITS = zlib.MAX_WBITS | 16  # Adding 16 selects the gzip format.

_DOWNLOAD_AGAIN = 'remove it and download it again with --mode=download'


def check_split(split: IdxSplit, image_shape: Sequence[int], num_classes: int) -> int:
  """Checks that the two files of a split are complete, and match each other and the model.

  Without this check, a run would train on damaged data, because TensorFlow 1.15 does not verify the
  CRC of a gzip file. If the files have been verified, the images are not decompressed.

  Args:
    image_shape: the required shape of an image, (height, width, ...).
    num_classes: the number of classes. Each label must be less than this number.

  Returns:
    The number of examples.

  Raises:
    UserError: a file is missing, unreadable, damaged or not an idx file, or the files do not match
      each other or the model.
  """
  num_images, height, width = _read_header(split.images, *_IMAGE_FORMAT)
  if (height, width) != tuple(image_shape[:2]):
    raise UserError(
        'the images have the wrong size',
        '{}: {}x{}, expected {}x{}'.format(split.images, height, width, *image_shape[:2]),
        'choose the --dataset that these files belong to')
  if not split.are_verified:
    read_images(split)
  labels = np.frombuffer(read_labels(split), np.uint8)
  num_labels = len(labels)
  if num_images != num_labels:
    raise UserError(
        'there must be as many labels as images',
        '{} has {} images, {} has {} labels'.format(
            split.images, num_images, split.labels, num_labels),
        'give two files of the same split')
  out_of_range = np.flatnonzero(labels >= num_classes)
  if len(out_of_range):
    raise UserError(
        'labels must be less than the number of classes, {}'.format(num_classes),
        '{}: label {} at position {}'.format(split.labels, labels[out_of_range[0]],
                                             out_of_range[0]),
        'choose the --dataset that these files belong to')
  return num_images


def count_examples(split: IdxSplit) -> int:
  """Returns the number of images in the header; raises a UserError if the header is invalid."""
  return _read_header(split.images, *_IMAGE_FORMAT)[0]


def read_images(split: IdxSplit) -> memoryview:
  """Returns the pixel values of all images; raises a UserError if the file is damaged."""
  return _read_elements(split.images, *_IMAGE_FORMAT)


def read_labels(split: IdxSplit) -> memoryview:
  """Returns the class indices of all images; raises a UserError if the file is damaged."""
  return _read_elements(split.labels, *_LABEL_FORMAT)


def _read_elements(path: str, kind: str, magic: int, header_bytes: int) -> memoryview:
  """Returns the decompressed bytes after the header; see _read_header for the arguments.

  The file must have a single gzip member, because TensorFlow 1.15 reads only the first one.
  """
  expected_size = header_bytes + functools.reduce(
      operator.mul, _read_header(path, kind, magic, header_bytes))
  try:
    with open(path, 'rb') as file:
      # zlib is used, because it releases the global interpreter lock while it decompresses.
      member = zlib.decompressobj(_GZIP_WBITS)
      content = member.decompress(file.read(), expected_size + 1)
  except (OSError, zlib.error) as error:
    raise _unreadable_error(path, error) from error
  if member.unused_data.startswith(GZIP_SIGNATURE):
    raise UserError('TensorFlow reads only the first of several gzip members of a data file', path,
                    'compress it again: gunzip -c FILE | gzip > NEW_FILE')
  if len(content) != expected_size or not member.eof:
    raise _wrong_length_error(path, str(expected_size), (
        'more than {}' if len(content) > expected_size else
        '{}' if member.eof else '{} in a truncated file').format(
            min(len(content), expected_size)))
  return memoryview(content)[header_bytes:]


def _read_header(path: str, kind: str, magic: int, header_bytes: int) -> Tuple[int, ...]:
  """Returns the dimensions of an idx file; raises a UserError if the header is invalid.

  Args:
    kind: the elements of the file, `images` or `labels`.
    magic, header_bytes: the magic number and the header size of a file of this kind.
  """
  try:
    with gzip.open(path) as file:
      header = file.read(header_bytes)
  except (EOFError, OSError, zlib.error) as error:
    raise _unreadable_error(path, error) from error
  if len(header) < header_bytes:
    raise _wrong_length_error(path, 'at least {}'.format(header_bytes), str(len(header)))
  found_magic, *dimensions = struct.unpack('>{}I'.format(header_bytes // 4), header)
  if found_magic != magic:
    raise UserError('not an idx file of {}'.format(kind),
                    '{}: magic number {:#x}, expected {:#x}'.format(path, found_magic, magic),
                    'give the file of {}, or {}'.format(kind, _DOWNLOAD_AGAIN))
  if not dimensions[0]:
    raise UserError('a data file has no examples', path, _DOWNLOAD_AGAIN)
  return tuple(dimensions)


def _wrong_length_error(path: str, expected: str, found: str) -> UserError:
  return UserError('a data file has the wrong length',
                   '{}: expected {} decompressed bytes, found {}'.format(path, expected, found),
                   _DOWNLOAD_AGAIN)


def _unreadable_error(path: str, error: Exception) -> UserError:
  if str(error).startswith('Not a gzipped file'):
    return UserError('a data file is not in gzip format', path,
                     'compress an idx file with gzip, or ' + _DOWNLOAD_AGAIN)
  return UserError('cannot read a data file',
                   '{}: {}'.format(path, getattr(error, 'strerror', None) or error),
                   'check that it is a readable file, or ' + _DOWNLOAD_AGAIN)


def is_idx_or_gzip(first_bytes: bytes) -> bool:
  """Returns whether a file that starts with these bytes is an idx file or a gzip file."""
  return first_bytes.startswith((GZIP_SIGNATURE, _IDX_SIGNATURE))


def iter_images(path: bytes, height: int, width: int) -> Iterator[np.ndarray]:
  """Yields the images of an idx file, uint8 [height, width, 1] each. The file may be gzipped.

  If the file is damaged, the images before the damage are yielded.

  Raises:
    ValueError: the file cannot be read, is damaged, is not an idx file of images, or has images
      whose size is not (height, width). The message is the reason.
  """
  num_read = 0
  try:
    with open(path, 'rb') as file:
      is_gzip = file.peek(2).startswith(GZIP_SIGNATURE)
      stream: Any = gzip.GzipFile(fileobj=file) if is_gzip else file
      header = stream.read(IMAGE_HEADER_BYTES)
      if len(header) < IMAGE_HEADER_BYTES or header[:4] != IMAGE_MAGIC.to_bytes(4, 'big'):
        raise ValueError('not an idx file of images')
      num_images, *size = struct.unpack('>3I', header[4:])
      if size != [height, width] or not num_images:
        raise ValueError('{} images of {}x{}, but the model requires {}x{}'.format(
            num_images, *size, height, width))
      while num_read < num_images:
        pixels = stream.read(height * width)
        if len(pixels) < height * width:
          raise EOFError('the file ends early')
        yield np.frombuffer(pixels, np.uint8).reshape(height, width, 1)
        num_read += 1
      if stream.read(1):  # Reading at the end of a gzip file also verifies its checksum.
        raise ValueError('the file is longer than its header indicates')
  except (EOFError, OSError, ValueError, zlib.error) as error:
    reason = getattr(error, 'strerror', None) or str(error)
    raise ValueError('{}, after {} images'.format(reason, num_read) if num_read else
                     reason) from error
