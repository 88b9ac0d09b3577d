"""File patterns: `*`, `?` and `[...]` within a name, `**` for any number of folders."""

import fnmatch
import glob
import os
from typing import Iterator, List, Sequence, Tuple

from estimator_train.errors import UserError

# (device, inode) of the folders on a path.
_FolderIds = Tuple[Tuple[int, int], ...]


def expand(pattern: str) -> List[bytes]:
  """Returns the matching files, in the same order on every machine.

  As with `glob`, a name that starts with a dot is matched only by a pattern that starts with a dot.
  Unlike with `glob`, a link to a folder above itself is not followed.

  Args:
    pattern: a pattern such as `data/train/**/*.jpeg`.

  Returns:
    The paths, as bytes because file names need not be valid text.

  Raises:
    UserError: a folder cannot be listed.
  """
  return list(iter_files(pattern))


def iter_files(pattern: str) -> Iterator[bytes]:
  """Yields the files of `expand`, folder by folder.

  Raises:
    UserError: a folder cannot be listed.
  """
  parts = [part for part in os.fsencode(pattern).split(b'/') if part]
  if parts and parts[-1] == b'**':
    parts.append(b'*')
  matches = _matches(b'/' if pattern.startswith('/') else b'', parts, ())
  # A pattern with several `**` can match a file more than once.
  return iter(dict.fromkeys(matches)) if parts.count(b'**') > 1 else matches


def _matches(folder: bytes, parts: Sequence[bytes], above: _FolderIds) -> Iterator[bytes]:
  if not parts:
    return
  part, rest = parts[0], parts[1:]
  if not glob.has_magic(part):
    path = os.path.join(folder, part)
    if rest:
      yield from _matches(path, rest, above)
    elif os.path.lexists(path) and not os.path.isdir(path):
      yield path
  elif part == b'**':
    yield from _matches(folder, rest, above)
    below = above + (_folder_id(folder),)
    for name in _list_names(folder, b'*', folders=True):
      path = os.path.join(folder, name)
      if _folder_id(path) not in below:
        yield from _matches(path, parts, below)
  elif rest:
    for name in _list_names(folder, part, folders=True):
      yield from _matches(os.path.join(folder, name), rest, above)
  else:
    for name in _list_names(folder, part, folders=False):
      yield os.path.join(folder, name)


def _list_names(folder: bytes, part: bytes, folders: bool) -> List[bytes]:
  """Returns the sorted matching names of the folders, or of the other files, in a folder."""
  try:
    with os.scandir(folder or b'.') as entries:
      return sorted(entry.name for entry in entries
                    if _is_folder(entry) == folders
                    and (part.startswith(b'.') or not entry.name.startswith(b'.'))
                    and fnmatch.fnmatchcase(entry.name, part))
  except (FileNotFoundError, NotADirectoryError):
    return []
  except OSError as error:
    raise UserError('a folder cannot be listed',
                    '{} ({})'.format(os.fsdecode(folder or b'.'), error.strerror),
                    'make it readable, or give a pattern that does not include it') from error


def _is_folder(entry: 'os.DirEntry[bytes]') -> bool:
  try:
    return entry.is_dir()
  except OSError:  # For example a link to itself, which is reported when it is read.
    return False


def _folder_id(folder: bytes) -> Tuple[int, int]:
  try:
    status = os.stat(folder or b'.')
  except OSError:
    return 0, 0
  return status.st_dev, status.st_ino
