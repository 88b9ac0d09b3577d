"""Describes and reads CIFAR-10 (Krizhevsky, 2009): 60,000 colour images, 32x32, of ten classes.

The archive of the binary version has five files of training images and one of test images. A record
is the class index, one byte, and the pixel values of the red, the green and the blue channel, 1,024
bytes each.
"""

import functools
import os
import tarfile
import zlib
from typing import Tuple

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
_RECORD_BYTES = 1 + 32 * 32 * 3
Images = Tuple[np.ndarray, np.ndarray]  # uint8 [N, 32, 32, 3], class indices uint8 [N].


def describe(settings: Settings) -> DataSet:
  """Describes the images in `--data_dir`, whose archive need not exist yet."""
  path = os.path.join(settings.data.data_dir or '', FILES[0].name)
  read = functools.lru_cache(maxsize=1)(_read_archive)  # Both splits are in one archive.
  return DataSet('cifar10', CLASS_NAMES, IMAGE_SHAPE,
                 train=BinarySplit((path,), lambda paths: read(*paths)[0]),
                 test=BinarySplit((path,), lambda paths: read(*paths)[1]), files=FILES)


def _read_archive(path: str) -> Tuple[Images, Images]:
  """Reads the training and the test images of an archive whose MD5 checksum has been verified.

  Raises:
    UserError: the archive cannot be read, or is another one.
  """
  records = {}
  try:
    with tarfile.open(path, 'r|gz') as archive:  # In one pass: gzip cannot seek backwards.
      for member in archive:
        content = archive.extractfile(member)
        if content is not None and member.name in TRAIN_FILES + TEST_FILES:
          records[member.name] = _decode(content.read())
    splits = [[records[name] for name in names] for names in (TRAIN_FILES, TEST_FILES)]
  except (OSError, EOFError, KeyError, ValueError, zlib.error, tarfile.TarError) as error:
    raise UserError('a data file cannot be read', '{} ({})'.format(
        path, getattr(error, 'strerror', None) or error),
                    'remove it and download it again with --mode=download') from error
  train, test = ((np.concatenate([images for images, _ in split]),
                  np.concatenate([class_indices for _, class_indices in split]))
                 for split in splits)
  return train, test


def _decode(content: bytes) -> Images:
  """Returns the images and the class indices of a file, with the channels last."""
  records = np.frombuffer(content, np.uint8).reshape(-1, _RECORD_BYTES)
  channels_first = records[:, 1:].reshape(-1, 3, 32, 32)
  return np.ascontiguousarray(channels_first.transpose(0, 2, 3, 1)), records[:, 0].copy()
