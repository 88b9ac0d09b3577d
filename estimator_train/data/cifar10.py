"""Describes and reads CIFAR-10 (Krizhevsky, 2009): 60,000 colour images, 32x32, of ten classes.

The archive of the binary version has five files of training images and one of test images. A record
is the class index, one byte, and the pixel values of the red, the green and the blue channel, 1,024
bytes each.
"""

import functools
import gzip
import os
import tarfile
import zlib
from typing import Dict, Iterator, Sequence, Tuple

import numpy as np

from estimator_train.data.description import BinarySplit, DataFile, DataSet
from estimator_train.errors import UserError
from estimator_train.settings import Settings

FILES = (DataFile('cifar-10-binary.tar.gz', 170052171, 'c32a1d4ab5d03f1284b67883e8d87530',
                  ('https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz',)),)
CLASS_NAMES = ('airplane', 'automobile', 'bird', 'cat', 'deer', 'dog', 'frog', 'horse', 'ship',
               'truck')
IMAGE_SHAPE = (32, 32, 3)
TRAIN_FILES = tuple('cifar-10-batches-bin/data_batch_{}.bin'.format(n) for n in range(1, 6))
TEST_FILES = ('cifar-10-batches-bin/test_batch.bin',)
_RECORD_BYTES = 1 + 32 * 32 * 3
# Limits against decompression bombs: the largest file in the archive, and the unpacked archive.
_MAX_FILE_BYTES, _MAX_BYTES = 10000 * _RECORD_BYTES, 1 << 28


def describe(settings: Settings) -> DataSet:
  """Describes the images in `--data_dir`, whose archive need not exist yet."""
  path = os.path.join(settings.data.data_dir or '', FILES[0].name)
  train, test = (BinarySplit((path,), functools.partial(read_images, names=names))
                 for names in (TRAIN_FILES, TEST_FILES))
  return DataSet('cifar10', CLASS_NAMES, IMAGE_SHAPE, train, test, FILES)


def read_images(paths: Sequence[str], names: Sequence[str]) -> Tuple[np.ndarray, np.ndarray]:
  """Reads files of an archive, in memory that is limited whatever the archive contains.

  Args:
    paths: the path of the archive.
    names: the names of the files in the archive.

  Returns:
    The images, uint8 [N, 32, 32, 3], and the class indices, uint8 [N], in the order of `names`.

  Raises:
    UserError: the archive does not exist, is damaged, or lacks one of the files.
  """
  (path,) = paths
  found: Dict[str, Tuple[np.ndarray, np.ndarray]] = {}
  try:
    with gzip.open(path) as archive:
      for name, content in _iter_files(archive):
        if name in names:
          if name in found or len(content) % _RECORD_BYTES:
            raise tarfile.ReadError('{} has {} bytes, or is there twice'.format(name, len(content)))
          records = np.frombuffer(content, np.uint8).reshape(-1, _RECORD_BYTES)
          channels_first = records[:, 1:].reshape(-1, 3, 32, 32)
          found[name] = (np.ascontiguousarray(channels_first.transpose(0, 2, 3, 1)),
                         records[:, 0].copy())
    missing = [name for name in names if name not in found]
    if missing:
      raise tarfile.ReadError('there is no ' + missing[0])
  except FileNotFoundError:
    raise UserError('a data file does not exist', path,
                    'download it with --mode=download') from None
  except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
    raise UserError('a data file cannot be read', '{} ({})'.format(
        path, getattr(error, 'strerror', None) or error),
                    'remove it and download it again with --mode=download') from error
  images, class_indices = zip(*(found[name] for name in names))
  return np.concatenate(images), np.concatenate(class_indices)


def _iter_files(archive: gzip.GzipFile) -> Iterator[Tuple[str, bytes]]:
  """Yields the name and the content of each regular file of an archive.

  The archive is read to its end, where gzip verifies the checksum. `tarfile` only decodes the
  headers: its own loop over an archive can be made endless by a wrong size.

  Raises:
    OSError, EOFError, zlib.error, tarfile.TarError: the archive is damaged, or too large.
  """
  num_read = 0
  for header in iter(lambda: archive.read(tarfile.BLOCKSIZE), b''):
    num_read += len(header)
    if num_read > _MAX_BYTES:
      raise tarfile.ReadError('it has more than {:,} bytes'.format(_MAX_BYTES))
    if not header.strip(b'\0'):  # Padding at the end.
      continue
    member = tarfile.TarInfo.frombuf(header, 'utf-8', 'surrogateescape')
    if not 0 <= member.size <= _MAX_FILE_BYTES:
      raise tarfile.ReadError('{!r} has {:,} bytes'.format(member.name, member.size))
    content = archive.read(-(-member.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE)
    num_read += len(content)
    if len(content) < member.size:
      raise tarfile.ReadError('truncated within {!r}'.format(member.name))
    if member.isreg():
      yield member.name, content[:member.size]
