"""Checks gzipped idx files before training, so that a wrong file is named rather than trained on.

An idx file is a header of big-endian 32-bit numbers, its magic number first and then its
dimensions, followed by one byte an element.
"""

import gzip
import struct
import zlib
from typing import Sequence, Tuple

from estimator_train.datasets.description import IdxSplit
from estimator_train.errors import UserError

IMAGE_HEADER_BYTES = 16
LABEL_HEADER_BYTES = 8
IMAGE_MAGIC = 0x803
_LABEL_MAGIC = 0x801
_CHUNK_BYTES = 1 << 20

_GET_AGAIN = 'remove it and get it again with --mode=download'


def check_split(split: IdxSplit, image_shape: Sequence[int], num_classes: int,
                checksummed: bool) -> int:
  """Checks the images and labels of a split against each other and what the model expects.

  TensorFlow 1.15 trains on whatever a damaged gzip file yields, without looking at its CRC.

  Args:
    split: the two files.
    image_shape: (height, width, ...) that the images must have.
    num_classes: labels must be below this.
    checksummed: whether the files have been compared with published checksums; the images are not
      decompressed again then.

  Returns:
    The number of examples.

  Raises:
    UserError: a file is missing, unreadable or not what it should be.
  """
  num_images, height, width = _read_header(split.images, 'images', IMAGE_MAGIC, IMAGE_HEADER_BYTES)
  if (height, width) != tuple(image_shape[:2]):
    raise UserError(
        'images have the wrong size',
        '{}: {}x{}, expected {}x{}'.format(split.images, height, width, *image_shape[:2]),
        'choose the --dataset that these files belong to')
  if not checksummed:
    _check_length(split.images, IMAGE_HEADER_BYTES + num_images * height * width)

  num_labels, = _read_header(split.labels, 'labels', _LABEL_MAGIC, LABEL_HEADER_BYTES)
  _check_length(split.labels, LABEL_HEADER_BYTES + num_labels)
  if num_images != num_labels:
    raise UserError(
        'there must be as many labels as images',
        '{} has {} images, {} has {} labels'.format(
            split.images, num_images, split.labels, num_labels),
        'use two files that belong together')
  _check_labels(split.labels, num_classes)
  return num_images


def count(split: IdxSplit) -> int:
  """Returns the number of examples, by the images' header; UserError where that is wrong."""
  return _read_header(split.images, 'images', IMAGE_MAGIC, IMAGE_HEADER_BYTES)[0]


def read_images(split: IdxSplit) -> memoryview:
  """Returns the images' elements, a byte each; UserError where the file cannot be read."""
  return _read(split.images, IMAGE_HEADER_BYTES)


def read_labels(split: IdxSplit) -> memoryview:
  """Returns the labels, a byte each; UserError where the file cannot be read."""
  return _read(split.labels, LABEL_HEADER_BYTES)


def _read(path: str, header_bytes: int) -> memoryview:
  try:
    with open(path, 'rb') as file:
      # Unlike gzip's, this goes on without the lock that Python code has to hold.
      return memoryview(zlib.decompress(file.read(), zlib.MAX_WBITS | 16))[header_bytes:]
  except (OSError, zlib.error) as error:
    raise _unreadable(path, error) from error


def _read_header(path: str, what: str, magic: int, header_bytes: int) -> Tuple[int, ...]:
  """Returns the dimensions of an idx file."""
  try:
    with open(path, 'rb') as file:
      if file.read(2) != b'\x1f\x8b':
        raise UserError('a data file is not gzip', path, _GET_AGAIN)
      file.seek(0)
      header = gzip.GzipFile(fileobj=file).read(header_bytes)
  except FileNotFoundError:
    raise UserError(
        'there is no such data file', path, 'get it with --mode=download') from None
  except (EOFError, OSError, zlib.error) as error:
    raise _unreadable(path, error) from error
  if len(header) < header_bytes:
    raise _wrong_length(path, 'at least {}'.format(header_bytes), str(len(header)))
  found, *dimensions = struct.unpack('>{}I'.format(header_bytes // 4), header)
  if found != magic:
    raise UserError('not an idx file of {}'.format(what),
                    '{}: magic number {:#x}, expected {:#x}'.format(path, found, magic),
                    'give the file of {}, or {}'.format(what, _GET_AGAIN))
  if not dimensions[0]:
    raise UserError('a data file has no examples', path, _GET_AGAIN)
  return tuple(dimensions)


def _check_length(path: str, expected: int) -> None:
  """Raises UserError unless the file holds `expected` bytes when decompressed.

  Only its first gzip member counts: TensorFlow 1.15 reads no further, and says nothing.
  """
  length = 0
  try:
    with open(path, 'rb') as file:
      member = zlib.decompressobj(zlib.MAX_WBITS | 16)  # 16: a gzip header and trailer around it.
      while not member.eof and length <= expected:  # Zeros shrink to a thousandth.
        chunk = member.unconsumed_tail or file.read(_CHUNK_BYTES)
        if not chunk:
          raise _wrong_length(path, str(expected), '{} and then a cut'.format(length))
        length += len(member.decompress(chunk, _CHUNK_BYTES))
  except (OSError, zlib.error) as error:
    raise _unreadable(path, error) from error
  if length != expected:
    raise _wrong_length(path, str(expected),
                        str(length) if member.eof else '{} and more'.format(expected))


def _check_labels(path: str, num_classes: int) -> None:
  """Raises UserError for the first label that is not a class."""
  try:
    with gzip.open(path) as file:
      labels = file.read()[LABEL_HEADER_BYTES:]
  except (EOFError, OSError, zlib.error) as error:
    raise _unreadable(path, error) from error
  if max(labels) >= num_classes:
    position = next(i for i, label in enumerate(labels) if label >= num_classes)
    raise UserError(
        'labels must be below the number of classes, {}'.format(num_classes),
        '{}: label {} at position {}'.format(path, labels[position], position),
        'choose the --dataset that these files belong to')


def _wrong_length(path: str, expected: str, found: str) -> UserError:
  return UserError('a data file has the wrong length',
                   '{}: expected {} bytes decompressed, found {}'.format(path, expected, found),
                   _GET_AGAIN)


def _unreadable(path: str, error: Exception) -> UserError:
  return UserError('cannot read a data file',
                   '{}: {}'.format(path, getattr(error, 'strerror', None) or error),
                   'check that it is a readable file, or ' + _GET_AGAIN)
