"""Finds and downloads the retinal OCT images of Kermany (2018), which have four classes.

The images are published as `paultimothymooney/kermany2018` on Kaggle (CC BY 4.0), in an archive of
about 11 GB. The archive has a folder `OCT2017 `, whose name ends with a space. That folder contains
`train`, `val` and `test`, which contain one folder per class. The folder `oct2017` of the archive
contains a second copy of `OCT2017 `.
"""

import glob
import logging
import os
from typing import Dict, Iterator, List, Optional, Tuple

from estimator_train.datasets import image_folder, kaggle_archive, unpack
from estimator_train.datasets.description import DataSet, require_data_dir
from estimator_train.datasets.transfer import DownloadResult
from estimator_train.errors import UserError
from estimator_train.files.atomic import open_locked
from estimator_train.settings import Settings, groups

LOG = logging.getLogger('estimator_train')

KAGGLE_DATASET = 'paultimothymooney/kermany2018'
ARCHIVE_NAME = 'kermany2018.zip'
ARCHIVE_FOLDER = 'OCT2017 '
SECOND_COPY_FOLDER = 'oct2017/'

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
  root = find_image_root(require_data_dir(settings[groups.Data]))
  train_pattern, test_pattern = (os.path.join(glob.escape(folder), '*', '*.jpeg') for folder in (
      os.path.join(root, 'train'), eval_folder(root)))
  return image_folder.describe_patterns(settings, train_pattern, test_pattern, CLASS_NAMES)


def describe_classes(settings: Settings) -> DataSet:
  """Describes the data set without listing files."""
  return image_folder.describe_classes(settings, CLASS_NAMES)


def get(settings: Settings) -> List[DownloadResult]:
  """Downloads the data set to `--data_dir`; see download_images."""
  return download_images(require_data_dir(settings[groups.Data]))


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
  root = _find_complete_copy(data_dir)
  if root:
    return [_make_result(root, data_dir, downloaded=False)]
  try:
    os.makedirs(data_dir, exist_ok=True)
    with open_locked(os.path.join(data_dir, ARCHIVE_NAME + '.lock')) as lock:
      try:
        return [_download_and_unpack(data_dir)]
      finally:
        os.remove(lock.name)
  except OSError as error:
    raise UserError('cannot store the data set',
                    '{}: {}'.format(error.filename or data_dir, error.strerror or error),
                    'choose a writable --data_dir') from error


def _download_and_unpack(data_dir: str) -> DownloadResult:
  """Downloads and unpacks the archive, unless another process has done so in the meantime."""
  root = _find_complete_copy(data_dir)
  if root:
    return _make_result(root, data_dir, downloaded=False)
  archive = os.path.join(data_dir, ARCHIVE_NAME)
  target = os.path.join(data_dir, ARCHIVE_FOLDER)
  _check_incomplete_copy(data_dir, target, archive)
  needed_bytes = ARCHIVE_BYTES + max(0, IMAGE_BYTES - _total_bytes(target))
  fetched = kaggle_archive.fetch_archive(KAGGLE_DATASET, archive, needed_bytes)
  unpack.unpack_zip(archive, data_dir, SECOND_COPY_FOLDER)
  root = next(_iter_copies(data_dir), target)
  differences = _describe_differences(root)
  if differences:
    raise UserError('the images of oct2017 are incomplete', '{!r} ({})'.format(root, differences),
                    'remove that folder and {}, and try again'.format(archive))
  if fetched.downloaded:
    os.sync()  # Write the images to the disk before the archive is removed.
    os.remove(archive)
  else:
    LOG.info('%s has been unpacked and can be removed', archive)
  return _make_result(root, data_dir, downloaded=True)


def _check_incomplete_copy(data_dir: str, target: str, archive: str) -> None:
  """Raises a UserError if there is an incomplete copy that unpacking would not complete.

  Args:
    data_dir: the folder with the copies.
    target: the folder to which the published archive is unpacked.
    archive: the path of the archive. A user's archive may have other folders than the published
      archive.
  """
  root = next(_iter_copies(data_dir), target)
  # If the archive is present, an interrupted call may have unpacked some files to `root`. Unpacking
  # the archive again adds the missing files.
  if root != target and not os.path.exists(archive):
    raise UserError('the images of oct2017 are incomplete',
                    '{!r} ({})'.format(root, _describe_differences(root)),
                    'remove or complete that folder, or give another --data_dir')


def _find_complete_copy(data_dir: str) -> Optional[str]:
  """Returns the folder that find_image_root would return; None if the folder lacks images."""
  root = next(_iter_copies(data_dir), None)
  return root if root and not _describe_differences(root) else None


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
  try:
    with os.scandir(folder) as entries:
      return [entry.path for entry in entries
              if not entry.name.startswith('.') and not unpack.is_macos_metadata(entry.name)
              and entry.is_dir()]
  except OSError:
    return []


def _iter_images(folder: str) -> Iterator[os.DirEntry]:
  """Yields the images in a folder; no images if the folder does not exist."""
  try:
    with os.scandir(folder) as entries:
      yield from (entry for entry in entries
                  if entry.name.endswith('.jpeg') and not entry.name.startswith('.'))
  except FileNotFoundError:
    pass


def _iter_class_folders(root: str) -> Iterator[Tuple[str, int]]:
  """Yields the folder of each split and class, and the published number of its images."""
  for split, counts in IMAGE_COUNTS.items():
    for class_name, count in zip(CLASS_NAMES, counts):
      yield os.path.join(root, split, class_name), count


def _describe_differences(root: str) -> str:
  """Returns text that names each folder whose number of images is not the published number."""
  counts: Dict[str, Tuple[int, int]] = {
      os.path.relpath(folder, root): (sum(1 for _ in _iter_images(folder)), count)
      for folder, count in _iter_class_folders(root)}
  return ', '.join('{}: {} of {}'.format(name, present, published)
                   for name, (present, published) in counts.items() if present != published)


def _total_bytes(root: str) -> int:
  """Returns the total size of the images in all class folders."""
  return sum(image.stat().st_size for folder, _ in _iter_class_folders(root)
             for image in _iter_images(folder))


def _make_result(root: str, data_dir: str, downloaded: bool) -> DownloadResult:
  return DownloadResult(os.path.relpath(root, data_dir), _total_bytes(root), downloaded)
