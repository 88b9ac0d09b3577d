"""The folders that a run reads and writes: there, writable, roomy."""

import os
import shutil
from typing import List, NamedTuple

from estimator_train.doctor.check_results import Finding, error, ok, warning
from estimator_train.settings import Settings, choices

# No checkpoint of an ImageNet network fits: 25 million weights, and as many pairs in Adam, are
# 300 MB, and it is written before an old one goes.
_FULL_BYTES = 300 * 10**6
# The default of five checkpoints of such a network, and a best one.
_TIGHT_BYTES = 2 * 10**9


class Folder(NamedTuple):
  """A folder that is named by a flag.

  Attributes:
    flag: the flag.
    path: its value.
    existing: the folder itself, or the nearest that is there above it.
    is_folder: whether that is a folder.
    is_readable: whether it can be listed.
    is_writable: whether files can be made in it.
    free_bytes: what this user may still write there.
  """
  flag: str
  path: str
  existing: str
  is_folder: bool
  is_readable: bool
  is_writable: bool
  free_bytes: int


def look(settings: Settings) -> List[Folder]:
  """Looks at the folders that the settings name."""
  named = [('--model_dir', settings.model_dir), ('--export_dir', settings.export_dir),
           ('--data_dir', settings.data_dir)]
  if settings.cache not in choices.CACHES:
    named.append(('--cache', settings.cache))
  return [_look(flag, path) for flag, path in named if path]


def _look(flag: str, path: str) -> Folder:
  existing = os.path.abspath(path)
  while not os.path.lexists(existing):
    existing = os.path.dirname(existing)
  try:
    free_bytes = shutil.disk_usage(existing).free
  except OSError:
    free_bytes = 0
  # access(2) knows of read-only mounts too, for root as well.
  is_readable, is_writable = (os.access(existing, way | os.X_OK) for way in (os.R_OK, os.W_OK))
  return Folder(flag, path, existing, os.path.isdir(existing), is_readable, is_writable,
                free_bytes)


def check(folders: List[Folder]) -> List[Finding]:
  """Says whether each folder is, or can be made, what its flag needs."""
  return [_check(folder) for folder in folders]


def _check(folder: Folder) -> Finding:
  is_there = folder.existing == os.path.abspath(folder.path)
  if not folder.is_folder:
    return error(folder.flag, '{} is no folder'.format(folder.existing), 'give another')
  if folder.flag == '--data_dir' and is_there:
    return _check_data(folder)
  if not folder.is_writable:
    return error(folder.flag, '{} cannot be written to'.format(folder.existing),
                 'give a folder that this user can write to; in Docker, see its -v')
  found = '{}{}, {:.1f} GB free'.format(folder.path, '' if is_there else ' (not there yet)',
                                        folder.free_bytes / 10**9)
  if folder.free_bytes < _FULL_BYTES:
    return error(folder.flag, found, 'free some, or give a folder on another disk')
  if folder.free_bytes < _TIGHT_BYTES:
    return warning(folder.flag, found, 'enough for small networks and data; for others free some, '
                   'or give a folder on another disk')
  return ok(folder.flag, found)


def _check_data(folder: Folder) -> Finding:
  """Says whether what is there can be read; writing is only for what is missing."""
  if not folder.is_readable:
    return error(folder.flag, folder.path + ' cannot be read', 'give one that this user can read')
  if not folder.is_writable:
    return ok(folder.flag, folder.path + ', read-only: nothing can be downloaded into it')
  found = '{}, {:.1f} GB free'.format(folder.path, folder.free_bytes / 10**9)
  if folder.free_bytes < _TIGHT_BYTES:
    return warning(folder.flag, found, 'free some if anything is to be downloaded')
  return ok(folder.flag, found)
