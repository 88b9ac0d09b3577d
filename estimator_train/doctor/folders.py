"""Checks the folders that a run reads and writes: existence, permissions, free space."""

import os
import shutil
from typing import List, NamedTuple

from estimator_train.doctor.check_results import CheckResult, error, ok, warning
from estimator_train.settings import Settings, choices

# The size of one checkpoint of an ImageNet network: 25 million weights with two slots of Adam each
# are 300 MB. A new checkpoint is written before an old one is deleted.
_FULL_BYTES = 300 * 10**6
# The default of five such checkpoints, and the best one.
_TIGHT_BYTES = 2 * 10**9


class Folder(NamedTuple):
  """The folder of a flag. All but `flag` and `path` describe `existing`.

  Attributes:
    flag: the name of the flag.
    path: its value.
    existing: path of the folder itself, or of its nearest existing parent.
    is_folder: whether that is a folder.
    is_readable: whether it can be listed.
    is_writable: whether files can be created in it.
    free_bytes: space available to this user.
  """
  flag: str
  path: str
  existing: str
  is_folder: bool
  is_readable: bool
  is_writable: bool
  free_bytes: int


def inspect_folders(settings: Settings) -> List[Folder]:
  """Inspects the folders of the settings."""
  named = [('--model_dir', settings.model_dir), ('--export_dir', settings.export_dir),
           ('--data_dir', settings.data_dir)]
  if settings.cache not in choices.CACHES:
    named.append(('--cache', settings.cache))
  return [_inspect_folder(flag, path) for flag, path in named if path]


def _inspect_folder(flag: str, path: str) -> Folder:
  existing = os.path.abspath(path)
  while not os.path.lexists(existing):
    existing = os.path.dirname(existing)
  try:
    free_bytes = shutil.disk_usage(existing).free
  except OSError:
    free_bytes = 0
  # access(2) considers read-only mounts, also for root.
  is_readable, is_writable = (os.access(existing, way | os.X_OK) for way in (os.R_OK, os.W_OK))
  return Folder(flag, path, existing, os.path.isdir(existing), is_readable, is_writable,
                free_bytes)


def check_folders(folders: List[Folder]) -> List[CheckResult]:
  """Checks that each folder exists or can be created, with the permissions and space it needs."""
  return [_check_folder(folder) for folder in folders]


def _check_folder(folder: Folder) -> CheckResult:
  exists = folder.existing == os.path.abspath(folder.path)
  if not folder.is_folder:
    return error(folder.flag, '{} is not a folder'.format(folder.existing), 'give another')
  if folder.flag == '--data_dir' and exists:
    return _check_data_dir(folder)
  if not folder.is_writable:
    return error(folder.flag, '{} cannot be written to'.format(folder.existing),
                 'give a folder that this user can write to; in Docker, see its -v')
  found = '{}{}, {:.1f} GB free'.format(folder.path, '' if exists else ' (does not exist yet)',
                                        folder.free_bytes / 10**9)
  if folder.free_bytes < _FULL_BYTES:
    return error(folder.flag, found, 'free some space, or give a folder on another disk')
  if folder.free_bytes < _TIGHT_BYTES:
    return warning(folder.flag, found, 'enough for small networks and data; for others free some '
                   'space, or give a folder on another disk')
  return ok(folder.flag, found)


def _check_data_dir(folder: Folder) -> CheckResult:
  """Checks that the data can be read; only downloads need to write."""
  if not folder.is_readable:
    return error(folder.flag, folder.path + ' cannot be read', 'give one that this user can read')
  if not folder.is_writable:
    return ok(folder.flag, folder.path + ', read-only: nothing can be downloaded into it')
  found = '{}, {:.1f} GB free'.format(folder.path, folder.free_bytes / 10**9)
  if folder.free_bytes < _TIGHT_BYTES:
    return warning(folder.flag, found, 'free some space before downloading a data set')
  return ok(folder.flag, found)
