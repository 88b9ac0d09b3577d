"""Writes files atomically: a file gets its final name when it is complete. Also locks files."""

import contextlib
import fcntl
import json
import logging
import os
import time
from typing import Any, BinaryIO, Callable, Dict, Iterator

_LOG = logging.getLogger('estimator_train')
_POLL_SECS = 0.1
# Spreadsheets take a cell that begins with one of these characters, or their full-width forms, for
# a formula: https://owasp.org/www-community/attacks/CSV_Injection
_FORMULA_STARTS = tuple('=+-@\t\r\n\uff1d\uff0b\uff0d\uff20')


def write_text(path: str, text: str) -> None:
  """Writes the text atomically, as UTF-8."""
  write_bytes(path, text.encode('utf-8'))


def write_bytes(path: str, content: bytes) -> None:
  """Writes the bytes atomically."""
  with open_atomic(path) as file:
    file.write(content)


@contextlib.contextmanager
def open_atomic(path: str) -> Iterator[BinaryIO]:
  """Opens a temporary file, renames it to `path` after the `with` block; removes it on an error."""
  temporary_path = '{}.{}.part'.format(path, os.getpid())
  try:
    with open(temporary_path, 'wb') as file:
      yield file
      file.flush()
      os.fsync(file.fileno())
    replace(temporary_path, path)
  except BaseException as error:
    with contextlib.suppress(OSError):
      os.remove(temporary_path)
    if isinstance(error, OSError) and error.filename in (None, temporary_path):
      error.filename = path  # For the message: the error of a full disk has no path.
    raise


def replace(temporary_path: str, path: str) -> None:
  """Renames a complete file; a folder that has its name is renamed before."""
  _move_folder_away(path)
  os.replace(temporary_path, path)


def write_json(path: str, value: Dict[str, Any]) -> None:
  """Writes the value as JSON atomically, with one line per key.

  Raises:
    ValueError: a number in the value is not finite.
  """
  lines = ('{}: {}'.format(json.dumps(name), json.dumps(item, allow_nan=False))
           for name, item in value.items())
  write_text(path, '{\n  ' + ',\n  '.join(lines) + '\n}\n')


def csv_cell(value: Any) -> Any:
  """Returns the value of a CSV cell; text that spreadsheets take for a formula begins with `'`."""
  if not isinstance(value, str) or len(value) < 2 or not value.startswith(_FORMULA_STARTS):
    return value
  try:
    float(value)
    return value
  except ValueError:
    return "'" + value


@contextlib.contextmanager
def open_locked(path: str, check: Callable[[], None] = lambda: None) -> Iterator[BinaryIO]:
  """Opens a file for appending and locks it. Other callers wait until the file is closed.

  Args:
    path: the path of the file.
    check: called repeatedly during the wait; raises an exception to end the wait.
  """
  while True:
    if os.path.lexists(path) and not os.path.isfile(path):
      _move_folder_away(path)
      with contextlib.suppress(FileNotFoundError):
        os.remove(path)  # A FIFO would block.
    with open(path, 'ab') as file:
      _wait_for_lock(file, check)
      # While this process waited, the previous owner of the lock may have renamed or removed the
      # opened file. If so, open the file that `path` names now.
      is_current = False
      with contextlib.suppress(FileNotFoundError):
        is_current = os.path.samestat(os.fstat(file.fileno()), os.stat(path))
      if is_current:
        yield file
        return


def _move_folder_away(path: str) -> None:
  """Renames a folder that has the name of a file to write."""
  if os.path.isdir(path) and not os.path.islink(path):
    new_path = '{}.{}.folder'.format(path, os.getpid())
    os.rename(path, new_path)
    _LOG.warning('%s is a folder, which has the name of a file to write: renamed to %s', path,
                 new_path)


def _wait_for_lock(file: BinaryIO, check: Callable[[], None]) -> None:
  """Locks a file, as soon as no other process has locked it."""
  is_waiting = False
  while True:
    try:
      return fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      if not is_waiting:
        _LOG.info('waiting for another process that writes %s', file.name)
    is_waiting = True
    check()
    time.sleep(_POLL_SECS)
