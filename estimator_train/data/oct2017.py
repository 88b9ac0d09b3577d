"""Finds and downloads the retinal OCT images of Kermany (2018), which have four classes.

The images are published as `paultimothymooney/kermany2018` on Kaggle (CC BY 4.0), in an archive of
about 11 GB. The archive has a folder `OCT2017 `, whose name ends with a space. That folder contains
`train`, `val` and `test`, which contain one folder per class. The folder `oct2017` of the archive
contains a second copy of `OCT2017 `.
"""

import functools
import glob
import logging
import os
import re
from typing import Iterator, List

from estimator_train.data import image_folder, kaggle_archive
from estimator_train.data.description import DataSet, require_data_dir
from estimator_train.data.download import DownloadResult, storing_in
from estimator_train.errors import UserError
from estimator_train.settings import Settings
from estimator_train.system.atomic import open_locked

LOG = logging.getLogger('estimator_train')

KAGGLE_DATASET = 'paultimothymooney/kermany2018'
ARCHIVE_NAME = 'kermany2018.zip'
ARCHIVE_FOLDER = 'OCT2017 '

CLASS_NAMES = ('CNV', 'DME', 'DRUSEN', 'NORMAL')
# The number of images per split and class, in the order of CLASS_NAMES. The total is 84,484,
# although the page of the data set states 84,495.
IMAGE_COUNTS = {
    'train': (37205, 11348, 8616, 26315),
    'val': (8, 8, 8, 8),
    'test': (242, 242, 242, 242),
}
# The approximate size of the archive, including the second copy.
ARCHIVE_BYTES = 11 * 10**9
# The approximate size of the unpacked images, from the average of 1,023 images: 65,850 bytes.
IMAGE_BYTES = 6 * 10**9

# The number of folder levels that are searched, including data_dir itself.
_MAX_DEPTH = 4


def describe(settings: Settings) -> DataSet:
  """Describes the images in `--data_dir`.

  Raises:
    UserError: there are no images, or `--data_dir` is not given or cannot be read.
  """
  root = find_image_root(require_data_dir(settings.data))
  train_pattern, test_pattern = (os.path.join(glob.escape(folder), '*', '*.jpeg') for folder in (
      os.path.join(root, 'train'), eval_folder(root)))
  return image_folder.describe_patterns(settings, train_pattern, test_pattern, CLASS_NAMES)


def describe_classes(settings: Settings) -> DataSet:
  """Describes the data set without listing files."""
  return image_folder.describe_classes(settings, CLASS_NAMES)


def find_image_root(data_dir: str) -> str:
  """Returns the folder whose subfolder `train` has a folder for each class.

  The folder is `data_dir` or at most three levels below `data_dir`. If there are several such
  folders, the highest level takes precedence and, on the same level, the first name.

  Raises:
    UserError: there is no such folder, or `data_dir` cannot be read.
  """
  try:
    os.listdir(data_dir)
  except FileNotFoundError:
    pass
  except OSError as error:
    raise UserError('--data_dir cannot be read', '{} ({})'.format(data_dir, error.strerror),
                    'give the folder that contains the images, or an empty folder') from error
  copies = list(_iter_copies(data_dir))
  if not copies:
    raise UserError('the images of oct2017 are missing',
                    'no folder in {} has train/{}'.format(data_dir, ', train/'.join(CLASS_NAMES)),
                    'download them with --mode=download --dataset=oct2017 --data_dir=' + data_dir)
  for ignored in copies[1:]:
    LOG.info('using %r; ignoring another copy: %r', copies[0], ignored)
  return copies[0]


def eval_folder(root: str) -> str:
  """Returns the folder of the test images: `test` or, if there is no such folder, `val`.

  Args:
    root: the folder that find_image_root returned.

  Raises:
    UserError: neither folder exists.
  """
  for split in ('test', 'val'):
    folder = os.path.join(root, split)
    if os.path.isdir(folder):
      if split == 'val':
        LOG.info('no test folder: evaluating on %r, which has few images', folder)
      return folder
  raise UserError('there are no images to evaluate on', 'neither test nor val in {!r}'.format(root),
                  'download the data set with --mode=download --dataset=oct2017')


def download_images(data_dir: str) -> List[DownloadResult]:
  """Downloads the images to `data_dir`, and returns a list of one item: the folder of the images.

  If all images are present, no request is sent and no credentials are required. Otherwise, the
  archive is downloaded if it is missing, and unpacked without the second copy. An archive that this
  call has downloaded is then removed. Several processes may call this function at the same time.

  Raises:
    UserError: the images cannot be downloaded or stored, or are incomplete.
  """
  was_complete = _is_complete(data_dir)
  if not was_complete:
    with storing_in(data_dir, ARCHIVE_BYTES + IMAGE_BYTES), open_locked(
        os.path.join(data_dir, ARCHIVE_NAME + '.lock')) as lock:
      try:
        was_complete = _is_complete(data_dir)  # Another process may have downloaded the images.
        if not was_complete:
          _download_and_unpack(data_dir)
      finally:
        os.remove(lock.name)
  root = next(_iter_copies(data_dir))
  num_bytes = sum(map(os.path.getsize, glob.glob(
      os.path.join(glob.escape(root), '*', '*', '*.jpeg'))))
  return [DownloadResult(os.path.relpath(root, data_dir), num_bytes, not was_complete)]


def _download_and_unpack(data_dir: str) -> None:
  archive, root = (os.path.join(data_dir, name) for name in (ARCHIVE_NAME, ARCHIVE_FOLDER))
  is_new = kaggle_archive.fetch_archive(KAGGLE_DATASET, archive, ARCHIVE_BYTES + IMAGE_BYTES)
  kaggle_archive.unpack_folder(
      archive, functools.partial(_find_archive_folder, archive), root)
  _check_complete(root, 'remove that folder and {}, and try again'.format(archive))
  if is_new:
    os.sync()  # Write the images to the disk before the archive is removed.
    os.remove(archive)
  else:
    LOG.info('%s has been unpacked and can be removed', archive)


def _find_archive_folder(archive: str, names: List[str]) -> str:
  """Returns the folder of the images in an archive, whose members have these names.

  An archive that a user provides may have other folders than the published archive.

  Raises:
    UserError: the archive has no images.
  """
  matches = (re.match('(.*/|)train/{}/[^.]'.format(CLASS_NAMES[0]), name) for name in names)
  folders = {match.group(1) for match in matches if match and '__MACOSX' not in match.group(1)}
  if not folders:
    raise UserError('an archive is not that of oct2017',
                    '{} has no folder train/{}'.format(archive, CLASS_NAMES[0]),
                    'remove it, and try again')
  return min(folders, key=lambda folder: (folder.count('/'), folder))


def _is_complete(data_dir: str) -> bool:
  """Whether `data_dir` has the images; raises a UserError if it has only some of them."""
  target = os.path.join(data_dir, ARCHIVE_FOLDER)
  root = next(_iter_copies(data_dir), target if os.path.isdir(target) else None)
  if root is not None:
    _check_complete(root, 'remove or complete that folder, or give another --data_dir')
  return root is not None


def _check_complete(root: str, remedy: str) -> None:
  """Raises a UserError unless each folder has the published number of images."""
  differences = []
  for split, published in IMAGE_COUNTS.items():
    for class_name, count in zip(CLASS_NAMES, published):
      present = len(_find_images(os.path.join(root, split, class_name)))
      if present != count:
        differences.append('{}/{}: {} of {}'.format(split, class_name, present, count))
  if differences:
    raise UserError('the images of oct2017 are incomplete',
                    '{!r} ({})'.format(root, ', '.join(differences)), remedy)


def _iter_copies(data_dir: str) -> Iterator[str]:
  """Yields the folders whose subfolder `train` has a folder for each class.

  Folders on a higher level come first; folders on the same level are sorted by name.
  """
  level = [data_dir]
  for _ in range(_MAX_DEPTH):
    next_level: List[str] = []
    for folder in sorted(level):
      if all(os.path.isdir(os.path.join(folder, 'train', name)) for name in CLASS_NAMES):
        yield folder
      else:
        next_level.extend(_subfolders(folder))
    level = next_level


def _subfolders(folder: str) -> List[str]:
  """Returns the subfolders, without hidden ones; [] if the folder cannot be listed."""
  return [path[:-1] for path in glob.glob(os.path.join(glob.escape(folder), '*', ''))
          if not path.endswith('/__MACOSX/')]


def _find_images(folder: str) -> List[str]:
  """Returns the images in a folder; [] if the folder does not exist."""
  return glob.glob(os.path.join(glob.escape(folder), '*.jpeg'))
