"""File patterns: `*`, `?` and `[...]` within a name, `**` for folders of any depth."""

import fnmatch
import glob
import os
from typing import Iterator, List, Sequence, Tuple

from estimator_train.errors import UserError

_Folders = Tuple[Tuple[int, int], ...]  # (device, inode) of each folder that a path leads through.


def expand(pattern: str) -> List[bytes]:
  """Returns the files that match, in the same order on every machine.

  As in `glob`, names that begin with a dot match only a part that does so too. Unlike there, links
  that lead back to a folder above themselves are not followed.

  Args:
    pattern: such as `data/train/**/*.jpeg`.

  Returns:
    Paths as bytes, since names of files need not be text.

  Raises:
    UserError: a folder cannot be listed.
  """
  return list(walk(pattern))


def walk(pattern: str) -> Iterator[bytes]:
  """Yields what `expand` returns, folder by folder.

  Raises:
    UserError: a folder cannot be listed.
  """
  parts = [part for part in os.fsencode(pattern).split(b'/') if part]
  if parts and parts[-1] == b'**':
    parts.append(b'*')
  found = _matches(b'/' if pattern.startswith('/') else b'', parts, ())
  # With several of these, the same file can be found in several ways.
  return iter(dict.fromkeys(found)) if parts.count(b'**') > 1 else found


def _matches(folder: bytes, parts: Sequence[bytes], above: _Folders) -> Iterator[bytes]:
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
    below = above + (_identity(folder),)
    for name in _names(folder, b'*', folders=True):
      path = os.path.join(folder, name)
      if _identity(path) not in below:
        yield from _matches(path, parts, below)
  elif rest:
    for name in _names(folder, part, folders=True):
      yield from _matches(os.path.join(folder, name), rest, above)
  else:
    for name in _names(folder, part, folders=False):
      yield os.path.join(folder, name)


def _names(folder: bytes, part: bytes, folders: bool) -> List[bytes]:
  """Returns the names in a folder that match, sorted: those of folders, or of everything else."""
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
                    'make it readable, or give a pattern that passes by it') from error


def _is_folder(entry: 'os.DirEntry[bytes]') -> bool:
  try:
    return entry.is_dir()
  except OSError:  # A link that leads to itself, say; whoever reads it will tell.
    return False


def _identity(folder: bytes) -> Tuple[int, int]:
  try:
    status = os.stat(folder or b'.')
  except OSError:
    return 0, 0
  return status.st_dev, status.st_ino
