"""Writes files atomically, and reads the caches and reports of earlier runs.

A file that is written atomically gets its final name when it is complete. The key of a cache
contains a fingerprint of the files or arrays from which the cache was made.
"""

import contextlib
import errno
import functools
import hashlib
import io
import json
import logging
import os
import stat
from typing import Any, BinaryIO, Callable, Dict, Iterator, Optional, Sequence, TypeVar, Union

from estimator_train.system import json_values, locks, temporary_files

_LOG = logging.getLogger('estimator_train')
_CHUNK_BYTES = 1 << 16
# The function of each guarded folder raises an OSError if this process must not write there.
_guards: Dict[str, Callable[[], None]] = {}
# Spreadsheets interpret a cell as a formula if it begins with one of these characters or their
# full-width forms: https://owasp.org/www-community/attacks/CSV_Injection
_FORMULA_STARTS = tuple('=+-@\t\r\n\uff1d\uff0b\uff0d\uff20')
_T = TypeVar('_T')


def write_text(path: str, text: str) -> None:
  write_bytes(path, text.encode('utf-8'))


def write_bytes(path: str, content: bytes) -> None:
  with open_atomic(path) as file:
    file.write(content)


@contextlib.contextmanager
def open_atomic(path: str) -> Iterator[BinaryIO]:
  """Opens a temporary file. After the `with` block, renames it to `path`; removes it on an error.

  Raises:
    OSError: the file cannot be written, or guard_folder forbids it.
  """
  check_guards(path)
  temporary_path = None
  try:
    # The file stays locked until it has its final name.
    with temporary_files.make_file(path) as file:
      temporary_path = file.name
      yield file
      file.flush()
      os.fsync(file.fileno())
      check_guards(path)
      os.replace(temporary_path, path)
  except BaseException as error:
    if temporary_path is not None:
      with contextlib.suppress(OSError):
        os.remove(temporary_path)
    if isinstance(error, OSError) and (
        error.filename is None or temporary_files.has_temporary_name(error.filename)):
      error.filename = path  # The message needs a path, and the error of a full disk has none.
    raise


@contextlib.contextmanager
def guard_folder(folder: str, check: Callable[[], None]) -> Iterator[None]:
  """In a `with` block, calls `check` before each atomic write to a folder or its subfolders.

  Args:
    check: raises an OSError if this process must not write to the folder.
  """
  _guards[folder] = check
  try:
    yield
  finally:
    del _guards[folder]


def check_guards(path: str) -> None:
  """Raises an OSError if guard_folder forbids this process to write to the folder of a file."""
  for folder, check in list(_guards.items()):
    if path.startswith(os.path.join(folder, '')):
      check()


def write_json(path: str, value: Dict[str, Any]) -> None:
  """Writes JSON with one line per key; raises a ValueError for nan and infinity."""
  lines = ('{}: {}'.format(json.dumps(name), json.dumps(field_value, allow_nan=False))
           for name, field_value in value.items())
  write_text(path, '{\n  ' + ',\n  '.join(lines) + '\n}\n')


def csv_cell(value: Any) -> Any:
  """Returns the value for a CSV cell. If text looks like a formula, it gets the prefix `'`."""
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
    check: called repeatedly during the wait; raises an exception to end the wait.
  """
  while True:
    with open(path, 'ab') as file:
      locks.wait_for_lock(file.fileno(), path, check)
      # During the wait, the previous owner of the lock may have renamed or removed the opened file.
      # Then the file that now has the path is opened.
      if locks.is_at_path(file.fileno(), path):
        yield file
        return


def open_regular_file(path: Union[str, bytes]) -> io.BufferedReader:
  """Opens a regular file for reading. For anything else, raises an OSError without blocking."""
  file = open(  # noqa: SIM115 (The caller closes it.)
      path, 'rb', opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))
  if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
    file.close()
    raise OSError(errno.EINVAL, 'not a regular file', path)
  return file


class DamagedFile(Exception):
  """A file cannot be read, or does not have the contents that the program writes."""

  def __init__(self, path: str, reason: str) -> None:
    super().__init__('{} cannot be used ({})'.format(path, reason))
    self.reason = reason


def load(path: str, parse: Callable[[BinaryIO], _T]) -> Optional[_T]:
  """Parses a file; returns None if there is no file.

  Args:
    parse: raises any exception if the contents are not as expected.

  Raises:
    DamagedFile: the file is damaged, or cannot be read.
  """
  try:
    with open_regular_file(path) as file:
      return parse(file)
  except FileNotFoundError:
    return None
  except Exception as error:  # Libraries raise many kinds of exceptions for damaged contents.
    reason = '{}: {}'.format(type(error).__name__, ' '.join(str(error).split()))
    raise DamagedFile(path, getattr(error, 'strerror', None) or reason) from error


def load_or_warn(path: str, parse: Callable[[BinaryIO], _T],
                 consequence: str = 'it is made again') -> Optional[_T]:
  """Parses a file; returns None if there is no file, or after a warning if it is damaged."""
  try:
    return load(path, parse)
  except DamagedFile as damage:
    _LOG.warning('%s: %s', damage, consequence)
    return None


def parse_text(file: BinaryIO) -> str:
  """Returns the text of a UTF-8 file; raises a ValueError if it is empty or binary."""
  text = file.read().decode('utf-8')
  if not text or '\0' in text:  # A system crash can leave a file of zeros.
    raise ValueError('not text' if text else 'empty')
  return text


def parse_json(file: BinaryIO, check: json_values.Check) -> Any:
  """Returns the JSON value of a file; raises a ValueError if the value fails the check."""
  return json_values.parse(file.read().decode('utf-8'), check)


def load_json(path: str, check: json_values.Check) -> Any:
  """Returns the JSON value of a file; None if there is no file. Raises the errors of `load`."""
  return load(path, functools.partial(parse_json, check=check))


def load_json_or_warn(path: str, check: json_values.Check,
                      consequence: str = 'it is made again') -> Any:
  return load_or_warn(path, functools.partial(parse_json, check=check), consequence)


def digest_file(path: str, algorithm: str = 'md5') -> str:
  """Returns the digest of a file in hexadecimal digits."""
  digest = hashlib.new(algorithm)
  with open(path, 'rb') as file:
    for chunk in iter(lambda: file.read(_CHUNK_BYTES), b''):
      digest.update(chunk)
  return digest.hexdigest()


def fingerprint_files(paths: Sequence[Union[str, bytes]]) -> str:
  """Returns an MD5 digest of the paths, sizes and modification times of the files, in order."""
  digest = hashlib.md5()
  for path in paths:
    try:
      status = os.stat(path)
      size, modified = status.st_size, status.st_mtime_ns
    except OSError:  # For example, a broken link. The error is reported when the file is read.
      size = modified = -1
    digest.update(b'%s\0%d\0%d\0' % (os.path.abspath(os.fsencode(path)), size, modified))
  return digest.hexdigest()


def advise_kernel(paths: Sequence[Union[str, bytes]], advice: int) -> None:
  """Advises the kernel how files will be read, such as by os.POSIX_FADV_WILLNEED."""
  for path in paths:
    with contextlib.suppress(OSError):  # The error is reported when the file is read.
      descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
      try:
        os.posix_fadvise(descriptor, 0, 0, advice)
      finally:
        os.close(descriptor)


def fingerprint_arrays(arrays: Sequence[Any]) -> str:
  """Returns an MD5 digest of the dtypes, shapes and values of the arrays, in order."""
  import numpy as np  # Imported here so that the program starts quickly.
  digest = hashlib.md5()
  for array in arrays:
    digest.update('{} {}\0'.format(array.dtype, array.shape).encode('ascii'))
    # Hash chunks of the array, because a memory-mapped array may not fit into memory.
    for chunk in np.array_split(array, max(1, array.nbytes >> 24)):
      digest.update(np.ascontiguousarray(chunk))
  return digest.hexdigest()
