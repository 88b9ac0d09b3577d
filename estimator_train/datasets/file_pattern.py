"""Expands file patterns: `*`, `?` and `[...]` within a name, `**` for any number of folders."""

import fnmatch
import glob
import os
from typing import Iterator, List, Sequence, Tuple

from estimator_train.errors import UserError

# (device, inode) of each folder in which `_iter_matches` is expanding a `**`.
_FolderIds = Tuple[Tuple[int, int], ...]


def expand(pattern: str) -> List[bytes]:
  """Returns the matching files, in the same order on every machine.

  As with `glob`, a name that starts with a dot is matched only by a pattern that starts with a dot.
  Unlike with `glob`, `**` does not enter a folder again during the search inside that folder, even
  if a symbolic link leads back to the folder.

  Args:
    pattern: a pattern such as `data/train/**/*.jpeg`.

  Returns:
    The paths, as bytes because file names need not be valid text.

  Raises:
    UserError: a folder cannot be listed.
  """
  return list(iter_files(pattern))


def iter_files(pattern: str) -> Iterator[bytes]:
  """Yields the files that `expand` returns, folder by folder.

  Raises:
    UserError: a folder cannot be listed.
  """
  parts = [part for part in os.fsencode(pattern).split(b'/') if part]
  if parts and parts[-1] == b'**':
    parts.append(b'*')
  matches = _iter_matches(b'/' if pattern.startswith('/') else b'', parts, ())
  # A pattern with several `**` can match a file in several ways. Such a file is yielded once.
  return iter(dict.fromkeys(matches)) if parts.count(b'**') > 1 else matches


def _iter_matches(folder: bytes, parts: Sequence[bytes], ancestors: _FolderIds) -> Iterator[bytes]:
  """Yields the files in a folder that match the parts of a pattern.

  `**` does not enter one of the `ancestors` again, so that loops of symbolic links end.
  """
  if not parts:
    return
  part, rest = parts[0], parts[1:]
  if not glob.has_magic(part):
    path = os.path.join(folder, part)
    if rest:
      yield from _iter_matches(path, rest, ancestors)
    elif os.path.lexists(path) and not os.path.isdir(path):
      yield path
  elif part == b'**':
    yield from _iter_matches(folder, rest, ancestors)
    ancestors_below = ancestors + (_folder_id(folder),)
    for name in _list_names(folder, b'*', of_folders=True):
      path = os.path.join(folder, name)
      if _folder_id(path) not in ancestors_below:
        yield from _iter_matches(path, parts, ancestors_below)
  elif rest:
    for name in _list_names(folder, part, of_folders=True):
      yield from _iter_matches(os.path.join(folder, name), rest, ancestors)
  else:
    for name in _list_names(folder, part, of_folders=False):
      yield os.path.join(folder, name)


def _list_names(folder: bytes, part: bytes, of_folders: bool) -> List[bytes]:
  """Returns the sorted names in a folder that match `part`, a name in a pattern.

  The names are those of folders if `of_folders` is set, else those of files.
  """
  try:
    with os.scandir(folder or b'.') as entries:
      return sorted(entry.name for entry in entries
                    if _is_folder(entry) == of_folders
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
  except OSError:  # For example a link to itself. The error is reported when the entry is read.
    return False


def _folder_id(folder: bytes) -> Tuple[int, int]:
  """Returns (device, inode) of a folder, or (0, 0) if the folder cannot be examined."""
  try:
    status = os.stat(folder or b'.')
  except OSError:
    return 0, 0
  return status.st_dev, status.st_ino
