"""Checks permissions and free space of the folders that a run reads and writes."""

import os
import shutil
from typing import List, NamedTuple

from estimator_train.doctor.check_results import CheckResult, error, ok, warning
from estimator_train.settings import Settings, choices

# Less free space is an error: a checkpoint of an ImageNet network (25 million weights with two Adam
# slots each) has 300 MB, and needs this space in addition to the checkpoints that already exist.
_MIN_FREE_BYTES = 300 * 10**6
# Less free space is a warning: by default, a run keeps five such checkpoints and the best one.
_RECOMMENDED_FREE_BYTES = 2 * 10**9


class Folder(NamedTuple):
  """A folder that a flag names.

  Attributes:
    flag: the name of the flag.
    path: the value of the flag.
    existing_path: the absolute path of `path` or, if nothing exists there, of the nearest parent
      that exists.
    is_folder: whether `existing_path` is a folder.
    is_readable: whether `existing_path` can be listed.
    is_writable: whether files can be created in `existing_path`.
    free_bytes: space on the disk of `existing_path` that is available to this user.
  """
  flag: str
  path: str
  existing_path: str
  is_folder: bool
  is_readable: bool
  is_writable: bool
  free_bytes: int


def inspect_folders(settings: Settings) -> List[Folder]:
  """Inspects the folders that the settings name."""
  flags_and_paths = [('--model_dir', settings.model_dir), ('--export_dir', settings.export_dir),
                     ('--data_dir', settings.data_dir)]
  if settings.cache not in choices.CACHES:
    flags_and_paths.append(('--cache', settings.cache))
  return [_inspect_folder(flag, path) for flag, path in flags_and_paths if path]


def _inspect_folder(flag: str, path: str) -> Folder:
  existing_path = os.path.abspath(path)
  while not os.path.lexists(existing_path):
    existing_path = os.path.dirname(existing_path)
  try:
    free_bytes = shutil.disk_usage(existing_path).free
  except OSError:
    free_bytes = 0
  # os.access reports a read-only mount as not writable, even for root.
  is_readable, is_writable = (os.access(existing_path, access_mode | os.X_OK)
                              for access_mode in (os.R_OK, os.W_OK))
  return Folder(flag, path, existing_path, os.path.isdir(existing_path), is_readable, is_writable,
                free_bytes)


def check_folders(folders: List[Folder]) -> List[CheckResult]:
  """Checks that each folder exists or can be created, is accessible, and has enough free space."""
  return [_check_folder(folder) for folder in folders]


def _check_folder(folder: Folder) -> CheckResult:
  exists = folder.existing_path == os.path.abspath(folder.path)
  if not folder.is_folder:
    return error(folder.flag, '{} is not a folder'.format(folder.existing_path),
                 'give another folder')
  if folder.flag == '--data_dir' and exists:
    return _check_data_dir(folder)
  if not folder.is_writable:
    return error(folder.flag, '{} cannot be written to'.format(folder.existing_path),
                 'give a folder that this user can write to; in Docker, check the `-v` flag')
  found = '{}{}, {:.1f} GB free'.format(folder.path, '' if exists else ' (does not exist yet)',
                                        folder.free_bytes / 10**9)
  if folder.free_bytes < _MIN_FREE_BYTES:
    return error(folder.flag, found, 'free some space, or give a folder on another disk')
  if folder.free_bytes < _RECOMMENDED_FREE_BYTES:
    return warning(folder.flag, found, 'enough for small networks and data; for larger ones, '
                   'free some space, or give a folder on another disk')
  return ok(folder.flag, found)


def _check_data_dir(folder: Folder) -> CheckResult:
  """Checks that the data can be read. Only a download writes to `--data_dir`."""
  if not folder.is_readable:
    return error(folder.flag, folder.path + ' cannot be read',
                 'give a folder that this user can read')
  if not folder.is_writable:
    return ok(folder.flag, folder.path + ', read-only: nothing can be downloaded into it')
  found = '{}, {:.1f} GB free'.format(folder.path, folder.free_bytes / 10**9)
  if folder.free_bytes < _RECOMMENDED_FREE_BYTES:
    return warning(folder.flag, found, 'free some space before downloading a data set')
  return ok(folder.flag, found)
