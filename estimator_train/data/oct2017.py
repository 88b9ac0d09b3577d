"""Finds and downloads the retinal OCT images of Kermany (2018), which have four classes.

The images are published as `paultimothymooney/kermany2018` on Kaggle (CC BY 4.0), in an archive of
about 11 GB. The archive has a folder `OCT2017 `, whose name ends with a space. That folder contains
`train`, `val` and `test`, which contain one folder per class. The folder `oct2017` of the archive
contains a second copy of `OCT2017 `.

The `kaggle` package provides only the credentials and the URL, because its download function is
unreliable. Release 1.7.4.5 reads the complete archive into memory and fails to resume. Release
1.6.17 writes to the final file name, mistakes an interrupted connection for the end of the file,
and resumes without checking which bytes the server sends.
"""

import base64
import collections
import contextlib
import functools
import glob
import io
import logging
import os
import re
import shutil
import struct
import zipfile
import zlib
from typing import BinaryIO, Dict, Iterable, List, Optional, Tuple

from estimator_train.data import DataSet, DataSpec, download, image_folder, require_data_dir
from estimator_train.data.download import DownloadResult
from estimator_train.errors import UserError
from estimator_train.settings import Settings
from estimator_train.system.storage import open_locked

_LOG = logging.getLogger('estimator_train')

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
# The approximate size of the unpacked images. The average size of 1,023 images is 65,850 bytes.
IMAGE_BYTES = 6 * 10**9

SIGN_IN_REMEDY = (
    'create an API key at kaggle.com/settings, and put its kaggle.json into ~/.kaggle (or the '
    'folder KAGGLE_CONFIG_DIR), or set KAGGLE_USERNAME and KAGGLE_KEY')

# The paths of the images in the archive, in any folder. Only these files are unpacked.
_IMAGE_PATH = re.compile(r'(?:.*/)?((?:train|val|test)/(?:CNV|DME|DRUSEN|NORMAL)/[\w-]+\.jpeg)')
# Exceptions that zipfile raises for damaged or encrypted archives.
_DAMAGE_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError, struct.error)

# The number of levels of folders that are searched for the images, including data_dir itself.
_MAX_DEPTH = 4


def describe_data_set(settings: Settings, unused_recorded_names: Tuple[str, ...] = ()) -> DataSet:
  """Describes the images in `--data_dir`.

  Raises:
    UserError: there are no images, or `--data_dir` is not given or cannot be read.
  """
  root = find_image_root(require_data_dir(settings.data))
  train_pattern, test_pattern = (os.path.join(glob.escape(folder), '*', '*.jpeg') for folder in (
      os.path.join(root, 'train'), find_test_folder(root)))
  return image_folder.describe_patterns(settings, train_pattern, test_pattern, CLASS_NAMES)


def describe_spec(settings: Settings, unused_recorded_names: Tuple[str, ...] = ()) -> DataSpec:
  """Describes the data set without listing files."""
  return image_folder.make_spec(settings.data, CLASS_NAMES)


def find_image_root(data_dir: str) -> str:
  """Returns the folder whose subfolder `train` has a folder for each class.

  The folder is `data_dir`, or is at most three levels below it. If there are several such folders,
  the one on the highest level is returned. Among those on the same level, it is the first by name.

  Raises:
    UserError: there is no such folder.
  """
  root = _find_image_root_or_none(data_dir)
  if root is None:
    raise UserError('the images of oct2017 are missing',
                    'no folder in {} has train/{}'.format(data_dir, ', train/'.join(CLASS_NAMES)),
                    'download them with --mode=download --dataset=oct2017 --data_dir=' + data_dir)
  return root


def find_test_folder(root: str) -> str:
  """Returns the folder of the test images: `test` in `root` or, if it does not exist, `val`.

  Raises:
    UserError: neither folder exists.
  """
  for split in ('test', 'val'):
    folder = os.path.join(root, split)
    if os.path.isdir(folder):
      if split == 'val':
        _LOG.info('no test folder: evaluating on %r, which has few images', folder)
      return folder
  raise UserError('there are no images to evaluate on', 'neither test nor val in {!r}'.format(root),
                  'download the data set with --mode=download --dataset=oct2017')


def download_images(data_dir: str) -> List[DownloadResult]:
  """Downloads the images to `data_dir`.

  If all images are present, no request is sent, and no credentials are required. Otherwise, the
  archive is downloaded unless it exists, and unpacked without the second copy. An archive that this
  call has downloaded is removed at the end. Several processes may call this function at the same
  time.

  Returns:
    A list of one result, about the folder of the images.

  Raises:
    UserError: the images cannot be downloaded or stored, or are incomplete.
  """
  was_complete = _has_images(data_dir)
  if not was_complete:
    with download.prepare_folder(data_dir, ARCHIVE_BYTES + IMAGE_BYTES), open_locked(
        os.path.join(data_dir, ARCHIVE_NAME + '.lock')) as lock:
      was_complete = _has_images(data_dir)  # Another process may have downloaded the images.
      if not was_complete:
        _download_and_unpack(data_dir)
      os.remove(lock.name)
  root = find_image_root(data_dir)
  num_bytes = sum(os.path.getsize(os.path.join(root, path)) for path in _list_images(root))
  return [DownloadResult(os.path.relpath(root, data_dir), num_bytes, not was_complete)]


def _download_and_unpack(data_dir: str) -> None:
  archive, root = (os.path.join(data_dir, name) for name in (ARCHIVE_NAME, ARCHIVE_FOLDER))
  was_downloaded = download.download_if_missing(archive, ARCHIVE_BYTES + IMAGE_BYTES,
                                        functools.partial(finish_archive_download, archive))
  unpack_images(archive, root)
  if was_downloaded:
    os.sync()  # Writes the images to the disk before the archive is removed.
    os.remove(archive)
  else:
    _LOG.info('%s has been unpacked and can be removed', archive)


def finish_archive_download(path: str, part_file: BinaryIO) -> None:
  """Downloads the missing bytes of the archive to a partial file.

  Args:
    path: the path of the complete archive, for messages.

  Raises:
    UserError: there are no credentials, or the archive cannot be downloaded.
  """
  user, key, url = _read_credentials(path)
  size = download.partial_size(part_file)
  _LOG.info('downloading %s from Kaggle%s', KAGGLE_DATASET,
            ', resuming after %d bytes' % size if size else '')
  authorization = 'Basic ' + base64.b64encode('{}:{}'.format(user, key).encode()).decode()
  try:
    download.append_missing_bytes(url, part_file, authorization=authorization)
  except download.DownloadFailed as error:
    raise UserError(
        'cannot download {} from Kaggle'.format(KAGGLE_DATASET),
        '{} for the user {}'.format(error, user),
        'try again, the download resumes; check the network and the key, and at '
        'kaggle.com/datasets/{} that this user may download it (signed in, terms accepted, '
        'telephone verified)'.format(KAGGLE_DATASET)) from error


def _read_credentials(path: str) -> Tuple[str, str, str]:
  """Returns the user name, the API key, and the URL of the archive.

  Logs and errors must not contain the key.
  """
  try:
    # The import of kaggle signs in, prints to standard output, and can raise various exceptions. In
    # older releases, it raises SystemExit to end the process.
    with contextlib.redirect_stdout(io.StringIO()):
      import kaggle
      from kaggle.configuration import Configuration
    config = kaggle.api.config_values
    return str(config['username']), str(config['key']), '{}/datasets/download/{}'.format(
        Configuration().host, KAGGLE_DATASET)
  except (OSError, ValueError, KeyError, SystemExit) as error:
    raise UserError('Kaggle requires credentials',
                    'no KAGGLE_USERNAME and KAGGLE_KEY, and no kaggle.json with both ({})'.format(
                        getattr(error, 'strerror', None) or type(error).__name__),
                    '{}; or download the archive of kaggle.com/datasets/{} to {}'.format(
                        SIGN_IN_REMEDY, KAGGLE_DATASET, path)) from error


def unpack_images(archive: str, target: str) -> None:
  """Unpacks one copy of the images.

  The files get the default permissions of the user. No other process may use the target at the same
  time.

  Args:
    archive: the path of the archive.
    target: the path of the unpacked folder, which must not exist.

  Raises:
    UserError: the archive is damaged, does not have the published number of images per folder, or
      is too large for the disk. The temporary folder is removed.
    OSError: the files cannot be stored. The temporary folder is removed.
  """
  # The name starts with a dot, so that file patterns do not match the folder if this process is
  # killed.
  temporary = os.path.join(os.path.dirname(target), '.unpacking')
  shutil.rmtree(temporary, ignore_errors=True)
  try:
    with zipfile.ZipFile(archive) as zip_file:
      members: Dict[str, zipfile.ZipInfo] = {}
      for member in zip_file.infolist():
        match = _IMAGE_PATH.fullmatch(member.orig_filename)
        if match:
          member.filename = match.group(1)  # The path in the temporary folder.
          members.setdefault(member.filename, member)
      _check_complete(members, archive, 'remove it, and try again')
      total = sum(member.file_size for member in members.values())
      download.check_free_space(os.path.dirname(target), total)
      with download.show_progress('unpacking', total) as advance:
        for member in members.values():
          # This writes a regular file of at most member.file_size bytes, and verifies the CRC.
          zip_file.extract(member, temporary)
          advance(member.file_size)
      os.rename(temporary, target)
  except _DAMAGE_ERRORS as error:
    raise UserError('an archive is damaged, or not a zip file', '{} ({})'.format(archive, error),
                    'remove it and download it again with --mode=download') from error
  finally:
    shutil.rmtree(temporary, ignore_errors=True)


def _has_images(data_dir: str) -> bool:
  """Returns whether `data_dir` has the images; raises a UserError if it has only some of them."""
  target = os.path.join(data_dir, ARCHIVE_FOLDER)
  root = _find_image_root_or_none(data_dir) or (target if os.path.isdir(target) else None)
  if root is not None:
    _check_complete(_list_images(root), root,
                    'remove or complete that folder, or give another --data_dir')
  return root is not None


def _list_images(root: str) -> List[str]:
  """Returns the paths of the images in a folder, such as `train/CNV/CNV-1.jpeg`."""
  return [os.path.relpath(path, root)
          for path in glob.glob(os.path.join(glob.escape(root), '*', '*', '*.jpeg'))]


def _check_complete(paths: Iterable[str], location: str, remedy: str) -> None:
  """Raises a UserError unless each folder has the published number of images.

  Args:
    paths: the paths of the images, such as `train/CNV/CNV-1.jpeg`.
    location: the folder or archive of the images, for the message.
  """
  present_counts = collections.Counter(path.rpartition('/')[0] for path in paths)
  published_counts = {
      '{}/{}'.format(split, class_name): count for split, counts in IMAGE_COUNTS.items()
      for class_name, count in zip(CLASS_NAMES, counts)}
  differences = ['{}: {} of {}'.format(folder, present_counts[folder], count)
                 for folder, count in published_counts.items() if present_counts[folder] != count]
  if differences:
    raise UserError('the images of oct2017 are incomplete',
                    '{!r} ({})'.format(location, ', '.join(differences)), remedy)


def _find_image_root_or_none(data_dir: str) -> Optional[str]:
  """Returns the folder that find_image_root describes; None if there is none."""
  for depth in range(_MAX_DEPTH):
    # `*` does not match hidden folders.
    pattern = os.path.join(glob.escape(data_dir), *['*'] * depth, 'train')
    for train_folder in sorted(glob.glob(pattern)):
      if '/__MACOSX/' not in train_folder and all(
          os.path.isdir(os.path.join(train_folder, name)) for name in CLASS_NAMES):
        return os.path.dirname(train_folder)
  return None
