"""Retinal OCT images of four classes (Kermany 2018): where their folders are, and how to get them.

Published as `paultimothymooney/kermany2018` on Kaggle (CC BY 4.0): one archive of some 11 GB whose
folder `OCT2017 `, with a blank at its end, has one folder a class below `train`, `val` and `test`.
The archive has all of it a second time, below `oct2017`.
"""

import glob
import logging
import os
from typing import Dict, Iterator, List, Optional, Tuple

from estimator_train.datasets import image_folder, kaggle_archive, unpack
from estimator_train.datasets.description import DataSet, required_data_dir
from estimator_train.datasets.transfer import Fetched
from estimator_train.errors import UserError
from estimator_train.files.atomic import open_locked
from estimator_train.settings import Settings, groups

LOG = logging.getLogger('estimator_train')

DATASET = 'paultimothymooney/kermany2018'
ARCHIVE = 'kermany2018.zip'
FOLDER = 'OCT2017 '
SECOND_COPY = 'oct2017/'

LABELS = ('CNV', 'DME', 'DRUSEN', 'NORMAL')
# 84,484 images by split, in the order of LABELS. (The data set's page says 84,495.)
COUNTS = {
    'train': (37205, 11348, 8616, 26315),
    'val': (8, 8, 8, 8),
    'test': (242, 242, 242, 242),
}
# The archive, with its second copy, and the images once: an image has 65,850 bytes on average
# (measured over 1,023 of them).
ARCHIVE_BYTES = 11 * 10**9
IMAGE_BYTES = 6 * 10**9

# Levels of folders that are searched; data_dir is the first.
_DEPTH = 4


def describe(settings: Settings) -> DataSet:
  """Lists the images that are there.

  Raises:
    UserError: there are none, or data_dir is not given or cannot be read.
  """
  root = find(required_data_dir(settings[groups.Data]))
  train, test = (os.path.join(glob.escape(folder), '*', '*.jpeg') for folder in (
      os.path.join(root, 'train'), eval_folder(root)))
  return image_folder.describe_patterns(settings, train, test, LABELS)


def describe_classes(settings: Settings) -> DataSet:
  """Describes the images without listing any."""
  return image_folder.describe_classes(settings, LABELS)


def get(settings: Settings) -> List[Fetched]:
  """Does what `download` does, in `--data_dir`."""
  return download(required_data_dir(settings[groups.Data]))


def find(data_dir: str) -> str:
  """Returns the folder whose `train` has a folder for each class, whatever unpacking made of it.

  It is `data_dir` or a few levels below. Of several copies, the one with the fewest levels is
  taken, and among these the first by name.

  Raises:
    UserError: there is none, or data_dir cannot be read.
  """
  try:
    os.listdir(data_dir)
  except FileNotFoundError:
    pass
  except OSError as error:
    raise UserError('--data_dir cannot be read', '{} ({})'.format(data_dir, error.strerror),
                    'give the folder that has or will have the images') from error
  copies = list(_copies(data_dir))
  if not copies:
    raise UserError('the images of oct2017 are not there',
                    'no folder of train/{} in {}'.format(', train/'.join(LABELS), data_dir),
                    'get them with --mode=download --dataset=oct2017 --data_dir=' + data_dir)
  for other in copies[1:]:
    LOG.info('%r is used; another copy is ignored: %r', copies[0], other)
  return copies[0]


def eval_folder(root: str) -> str:
  """Returns the folder to evaluate on, below what `find` returned: `test`, or else `val`.

  Raises:
    UserError: there is neither.
  """
  for split in ('test', 'val'):
    folder = os.path.join(root, split)
    if os.path.isdir(folder):
      if split == 'val':
        LOG.info('there is no test folder; evaluating on %r, which has few images', folder)
      return folder
  raise UserError('there is nothing to evaluate on', 'neither test nor val in {!r}'.format(root),
                  'get the whole data set: --mode=download --dataset=oct2017')


def download(data_dir: str) -> List[Fetched]:
  """Makes sure that all images are below `data_dir`, and returns their folder as the one item.

  What is there and complete is left alone, without a request and without credentials. The archive
  is downloaded unless it is there, and unpacked without its second copy. It is removed at the end
  when this call downloaded it. Several processes may call this at once.

  Raises:
    UserError: the images cannot be had or stored, or they are not all there.
  """
  root = _complete(data_dir)
  if root:
    return [_describe(root, data_dir, False)]
  try:
    os.makedirs(data_dir, exist_ok=True)
    with open_locked(os.path.join(data_dir, ARCHIVE + '.lock')) as lock:
      try:
        return [_download(data_dir)]
      finally:
        os.remove(lock.name)
  except OSError as error:
    raise UserError('cannot store the data set',
                    '{}: {}'.format(error.filename or data_dir, error.strerror or error),
                    'choose a --data_dir that can be written') from error


def _download(data_dir: str) -> Fetched:
  root = _complete(data_dir)  # Another process may have been faster.
  if root:
    return _describe(root, data_dir, False)
  archive = os.path.join(data_dir, ARCHIVE)
  target = os.path.join(data_dir, FOLDER)
  _check_target(data_dir, target, archive)
  needed = ARCHIVE_BYTES + max(0, IMAGE_BYTES - _size(target))
  fetched = kaggle_archive.fetch(DATASET, archive, needed)
  unpack.unpack(archive, data_dir, SECOND_COPY)
  root = next(_copies(data_dir), target)
  wrong = _differences(root)
  if wrong:
    raise UserError('the images of oct2017 are not all there', '{!r} ({})'.format(root, wrong),
                    'remove that folder and {}, and run it again'.format(archive))
  if fetched.downloaded:
    os.sync()  # The archive goes when what came out of it is safe.
    os.remove(archive)
  else:
    LOG.info('%s is unpacked and may be removed', archive)
  return _describe(root, data_dir, True)


def _check_target(data_dir: str, target: str, archive: str) -> None:
  """Raises a UserError when images are there that unpacking would not complete."""
  root = next(_copies(data_dir), target)
  # With the archive beside it, it may be what an interrupted call began to unpack.
  if root != target and not os.path.exists(archive):
    raise UserError('the images of oct2017 are not all there',
                    '{!r} ({})'.format(root, _differences(root)),
                    'remove or complete that folder, or give another --data_dir')


def _complete(data_dir: str) -> Optional[str]:
  """Returns the folder that `find` would, when all images are in it."""
  root = next(_copies(data_dir), None)
  return root if root and not _differences(root) else None


def _copies(data_dir: str) -> Iterator[str]:
  """Yields the folders that have all classes, those with the fewest levels first, by name."""
  level = [data_dir]
  for _ in range(_DEPTH):
    below: List[str] = []
    for folder in sorted(level):
      if all(os.path.isdir(os.path.join(folder, 'train', label)) for label in LABELS):
        yield folder
      else:
        below.extend(_subfolders(folder))
    level = below


def _subfolders(folder: str) -> List[str]:
  try:
    with os.scandir(folder) as entries:
      return [entry.path for entry in entries
              if not entry.name.startswith('.') and not unpack.is_clutter(entry.name)
              and entry.is_dir()]
  except OSError:
    return []


def _images(folder: str) -> Iterator[os.DirEntry]:
  try:
    with os.scandir(folder) as entries:
      yield from (entry for entry in entries
                  if entry.name.endswith('.jpeg') and not entry.name.startswith('.'))
  except FileNotFoundError:
    pass


def _class_folders(root: str) -> Iterator[Tuple[str, int]]:
  """Yields each folder of images, and how many are published."""
  for split, counts in COUNTS.items():
    for label, count in zip(LABELS, counts):
      yield os.path.join(root, split, label), count


def _differences(root: str) -> str:
  """Returns which folders have another number of images than published, as a list to read."""
  found: Dict[str, Tuple[int, int]] = {
      os.path.relpath(folder, root): (sum(1 for _ in _images(folder)), count)
      for folder, count in _class_folders(root)}
  return ', '.join('{}: {} of {}'.format(name, there, count)
                   for name, (there, count) in found.items() if there != count)


def _size(root: str) -> int:
  return sum(image.stat().st_size for folder, _ in _class_folders(root)
             for image in _images(folder))


def _describe(root: str, data_dir: str, downloaded: bool) -> Fetched:
  return Fetched(os.path.relpath(root, data_dir), _size(root), downloaded)
