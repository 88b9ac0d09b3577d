"""Describes and reads CIFAR-10 (Krizhevsky, 2009): 60,000 color images, 32x32, of ten classes.

The archive of the binary version contains five files of training images and one of test images. A
record consists of the class index, one byte, and the pixel values of the red, green and blue
channels, 1,024 bytes each. In records of CIFAR-100, another index precedes the class index; see
cifar100.py.
"""

import functools
import os
import tarfile
import zlib
from typing import List, Sequence, Tuple

import numpy as np

from estimator_train.data import BinarySplit, DataFile, DataSet
from estimator_train.errors import UserError
from estimator_train.settings import Settings

FILES = (DataFile('cifar-10-binary.tar.gz', 170052171, 'c32a1d4ab5d03f1284b67883e8d87530',
                  ('https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz',)),)
CLASS_NAMES = ('airplane', 'automobile', 'bird', 'cat', 'deer', 'dog', 'frog', 'horse', 'ship',
               'truck')
IMAGE_SHAPE = (32, 32, 3)
TRAIN_FILES = tuple('cifar-10-batches-bin/data_batch_{}.bin'.format(n) for n in range(1, 6))
TEST_FILES = ('cifar-10-batches-bin/test_batch.bin',)
_IMAGE_BYTES = 32 * 32 * 3
# The images, uint8 [N, 32, 32, 3], and the class indices, uint8 [N].
Examples = Tuple[np.ndarray, np.ndarray]


def describe_data_set(settings: Settings, unused_recorded_names: Tuple[str, ...] = ()) -> DataSet:
  """Describes the data set, whose archive in `--data_dir` need not exist yet."""
  return describe_archive(settings, FILES, CLASS_NAMES, (TRAIN_FILES, TEST_FILES))


def describe_archive(settings: Settings, files: Tuple[DataFile, ...], class_names: Tuple[str, ...],
                     split_files: Sequence[Sequence[str]], num_indices: int = 1) -> DataSet:
  """Describes a data set whose archive in `--data_dir` need not exist yet.

  Args:
    files: the archive, a single file.
    split_files: the names of the training files and of the test files in the archive.
    num_indices: the number of indices in a record. The last one is the class index.
  """
  path = os.path.join(settings.data.data_dir or '', files[0].name)
  # The archive contains both splits, but is read only once.
  read_splits = functools.lru_cache(maxsize=1)(
      lambda: _read_archive(path, split_files, num_indices))
  return DataSet(settings.data.dataset, class_names, IMAGE_SHAPE,
                 train=BinarySplit((path,), lambda _: read_splits()[0], are_verified=True),
                 test=BinarySplit((path,), lambda _: read_splits()[1], are_verified=True),
                 files=files)


def _read_archive(path: str, split_files: Sequence[Sequence[str]],
                  num_indices: int) -> List[Examples]:
  """Returns the examples of each split of an archive; see describe_archive.

  The MD5 checksum of the archive has already been verified.

  Raises:
    UserError: the archive cannot be read, or has unexpected content.
  """
  examples_by_file = {}
  try:
    with tarfile.open(path, 'r|gz') as archive:  # In one pass, because gzip cannot seek backwards.
      for member in archive:
        content = archive.extractfile(member)
        if content is not None and any(member.name in files for files in split_files):
          examples_by_file[member.name] = _decode(content.read(), num_indices)
    splits = [[examples_by_file[file] for file in files] for files in split_files]
  except (OSError, EOFError, KeyError, ValueError, zlib.error, tarfile.TarError) as error:
    raise UserError('a data file cannot be read', '{} ({})'.format(
        path, getattr(error, 'strerror', None) or error),
                    'remove it and download it again with --mode=download') from error
  return [(np.concatenate([images for images, _ in split]),
           np.concatenate([class_indices for _, class_indices in split])) for split in splits]


def _decode(content: bytes, num_indices: int) -> Examples:
  """Returns the images, with the channels as their last dimension, and the class indices."""
  records = np.frombuffer(content, np.uint8).reshape(-1, num_indices + _IMAGE_BYTES)
  channels_first = records[:, num_indices:].reshape(-1, 3, 32, 32)
  return (np.ascontiguousarray(channels_first.transpose(0, 2, 3, 1)),
          records[:, num_indices - 1].copy())
