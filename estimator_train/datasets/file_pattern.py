"""File patterns: `*`, `?` and `[...]` within a name, `**` for folders of any depth."""

import contextlib
import fnmatch
import glob
import itertools
import os
import sqlite3
import tempfile
from typing import Iterable, Iterator, List, Sequence, Tuple

from estimator_train.errors import UserError

_Folders = Tuple[Tuple[int, int], ...]  # (device, inode) of each folder that a path leads through.


# Names of a folder that are sorted in memory; more are sorted in a temporary file.
_IN_MEMORY = 50000


def expand(pattern: str) -> List[bytes]:
  """Returns the files that match, in the same order on every machine.

  As in `glob`, names that begin with a dot match only a part that does so too. Unlike there, links
  that lead back to a folder above themselves are not followed, and a million names cost little
  more memory than their bytes.

  Args:
    pattern: such as `data/train/**/*.jpeg`.

  Returns:
    Paths as bytes, since names of files need not be text.

  Raises:
    UserError: a folder cannot be listed.
  """
  return list(walk(pattern))


def walk(pattern: str) -> Iterator[bytes]:
  """Yields what `expand` returns, as it is found; any number of names in the same memory.

  Raises:
    UserError: a folder cannot be listed.
  """
  parts = [part for part in os.fsencode(pattern).split(b'/') if part]
  if parts and parts[-1] == b'**':
    parts.append(b'*')
  found = _matches(b'/' if pattern.startswith('/') else b'', parts, ())
  # With several of these, the same file can be found in several ways.
  return _each_once(found) if parts.count(b'**') > 1 else found


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


def _names(folder: bytes, part: bytes, folders: bool) -> Iterator[bytes]:
  """Returns the names in a folder that match, sorted: those of folders, or of everything else."""
  try:
    with os.scandir(folder or b'.') as entries:
      return _sorted(entry.name for entry in entries
                     if _is_folder(entry) == folders
                     and (part.startswith(b'.') or not entry.name.startswith(b'.'))
                     and fnmatch.fnmatchcase(entry.name, part))
  except (FileNotFoundError, NotADirectoryError):
    return iter(())
  except OSError as error:
    raise UserError('a folder cannot be listed',
                    '{} ({})'.format(os.fsdecode(folder or b'.'), error.strerror),
                    'make it readable, or give a pattern that passes by it') from error


def _sorted(names: Iterator[bytes]) -> Iterator[bytes]:
  """Takes all of the names, then returns them sorted."""
  some = list(itertools.islice(names, _IN_MEMORY))
  if len(some) < _IN_MEMORY:
    return iter(sorted(some))
  store = _store('(name blob)')
  with _reworded():
    store.executemany('insert into names values (?)',
                      ((name,) for name in itertools.chain(some, names)))
  return _select(store)


def _select(store: sqlite3.Connection) -> Iterator[bytes]:
  with contextlib.closing(store), _reworded():
    for name, in store.execute('select name from names order by name'):
      yield name


def _each_once(paths: Iterable[bytes]) -> Iterator[bytes]:
  """Yields each path where it comes first."""
  with contextlib.closing(_store('(name blob primary key) without rowid')) as store:
    for path in paths:
      with _reworded():
        is_new = store.execute('insert or ignore into names values (?)', (path,)).rowcount
      if is_new:
        yield path


def _store(columns: str) -> sqlite3.Connection:
  """Makes a table on disk, which goes when it is closed."""
  with _reworded():
    store = sqlite3.connect('', isolation_level=None)
    store.execute('create table names ' + columns)
    store.execute('begin')
  return store


@contextlib.contextmanager
def _reworded() -> Iterator[None]:
  try:
    yield
  except sqlite3.Error as error:
    raise UserError('names of files cannot be sorted in a temporary file',
                    '{} ({})'.format(tempfile.gettempdir(), error),
                    'make room there') from error


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
