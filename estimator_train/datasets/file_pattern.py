"""Expands file patterns: `*`, `?` and `[...]` within a name, `**` for any number of folders."""

import fnmatch
import glob
import os
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from estimator_train.errors import UserError

# (device, inode) of each folder in which `_iter_matches` is expanding a `**`.
_FolderIds = Tuple[Tuple[int, int], ...]


class Listing(NamedTuple):
  """The files of a folder in which a pattern searches files.

  Attributes:
    num_matched: the number of files that match.
    others: the names of the files that do not match.
  """
  num_matched: int
  others: List[bytes]


Listings = Dict[bytes, Listing]  # By the path of the folder.


def expand(pattern: str, listings: Optional[Listings] = None) -> List[bytes]:
  """Returns the matching files, in the same order on every machine.

  As with `glob`, a name that starts with a dot is matched only by a pattern that starts with a dot.
  Unlike with `glob`, `**` does not enter a folder again during the search inside that folder, even
  if a symbolic link leads back to the folder.

  Args:
    pattern: a pattern such as `data/train/**/*.jpeg`.
    listings: is filled with the listings of the folders in which files are searched.

  Returns:
    The paths, as bytes because file names need not be valid text.

  Raises:
    UserError: a folder cannot be listed.
  """
  return list(iter_files(pattern, listings))


def iter_files(pattern: str, listings: Optional[Listings] = None) -> Iterator[bytes]:
  """Yields the files that `expand` returns, folder by folder.

  Raises:
    UserError: a folder cannot be listed.
  """
  parts = [part for part in os.fsencode(pattern).split(b'/') if part]
  if parts and parts[-1] == b'**':
    parts.append(b'*')
  matches = _iter_matches(b'/' if pattern.startswith('/') else b'', parts, (), listings)
  # A pattern with several `**` can match a file in several ways. Such a file is yielded once.
  return iter(dict.fromkeys(matches)) if parts.count(b'**') > 1 else matches


def _iter_matches(folder: bytes, parts: Sequence[bytes], ancestors: _FolderIds,
                  listings: Optional[Listings]) -> Iterator[bytes]:
  """Yields the files in a folder that match the parts of a pattern.

  `**` does not enter one of the `ancestors` again, so that loops of symbolic links end.
  """
  if not parts:
    return
  part, rest = parts[0], parts[1:]
  if not glob.has_magic(part):
    path = os.path.join(folder, part)
    if rest:
      yield from _iter_matches(path, rest, ancestors, listings)
    elif os.path.lexists(path) and not os.path.isdir(path):
      yield path
  elif part == b'**':
    yield from _iter_matches(folder, rest, ancestors, listings)
    ancestors_below = ancestors + (_folder_id(folder),)
    for name in _list_names(folder, b'*', of_folders=True):
      path = os.path.join(folder, name)
      if _folder_id(path) not in ancestors_below:
        yield from _iter_matches(path, parts, ancestors_below, listings)
  elif rest:
    for name in _list_names(folder, part, of_folders=True):
      yield from _iter_matches(os.path.join(folder, name), rest, ancestors, listings)
  else:
    others: List[bytes] = []
    names = _list_names(folder, part, of_folders=False, others=others)
    if listings is not None:
      listings[folder] = Listing(len(names), others)
    for name in names:
      yield os.path.join(folder, name)


def _list_names(folder: bytes, part: bytes, of_folders: bool,
                others: Optional[List[bytes]] = None) -> List[bytes]:
  """Returns the sorted names in a folder that match `part`, a name in a pattern.

  The names are those of folders if `of_folders` is set, else those of files. Names that do not
  match are added to `others`.
  """
  try:
    with os.scandir(folder or b'.') as entries:
      names = [entry.name for entry in entries
               if _is_folder(entry) == of_folders
               and (part.startswith(b'.') or not entry.name.startswith(b'.'))]
    found = sorted(name for name in names if fnmatch.fnmatchcase(name, part))
    if others is not None and len(found) < len(names):
      others.extend(sorted(set(names).difference(found)))
    return found
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
