"""Makes temporary files and folders, and removes the leftovers of killed processes.

A temporary name is unique among all machines that share a folder. The writer locks the file. Before
a process makes its first temporary file in a folder, it removes the leftovers there.
"""

import contextlib
import functools
import hashlib
import os
import re
import secrets
import shutil
import stat
import time
from typing import BinaryIO, Iterator, Set

from estimator_train.system import locks, machine

# A temporary name ends with a digest of the writer's boot ID, and a random number.
_TEMPORARY_NAME = re.compile(r'.+\.([0-9a-f]{6})-[0-9a-f]{12}\.part$', re.DOTALL)
# A file that has not changed for so long is a leftover, even if no lock shows it, because a file
# system may support no locks, or hide the locks of other machines.
_LEFTOVER_AGE_SECS = 24 * 3600.
# Longer names are shortened, because file systems limit a temporary name to 255 bytes.
_MAX_NAME_BYTES = 220
# The folders from which this process has removed leftovers.
_cleaned_folders: Set[str] = set()


def temporary_name(path: str) -> str:
  """Returns a unique name for the file that will be renamed to `path`, in the same folder."""
  folder, name = os.path.split(path)
  short_name = os.fsdecode(os.fsencode(name)[:_MAX_NAME_BYTES])
  return os.path.join(folder, '{}.{}-{}.part'.format(short_name, _boot_digest(),
                                                     secrets.token_hex(6)))


def has_temporary_name(path: str) -> bool:
  return bool(_TEMPORARY_NAME.match(path))


@contextlib.contextmanager
def make_folder(path: str) -> Iterator[str]:
  """Makes a folder with a temporary name, and removes it after the `with` block if it still exists.

  Args:
    path: any path in the parent of the folder, such as the path to which the caller renames it.
  """
  _remove_leftovers_once(os.path.dirname(path))
  while True:
    name = temporary_name(path)
    os.mkdir(name)
    with contextlib.suppress(FileNotFoundError):  # Another process has removed it.
      descriptor = os.open(name, os.O_RDONLY)
      if _lock_unless_removed(descriptor):
        break
      os.close(descriptor)
  try:
    yield name
  finally:
    shutil.rmtree(name, ignore_errors=True)
    os.close(descriptor)


def make_file(path: str) -> BinaryIO:
  """Makes, opens and locks the temporary file that will be renamed to `path`."""
  _remove_leftovers_once(os.path.dirname(path))
  while True:
    file = open(temporary_name(path), 'xb')  # noqa: SIM115 (The caller closes it.)
    if _lock_unless_removed(file.fileno()):
      return file
    file.close()


def _lock_unless_removed(descriptor: int) -> bool:
  """Locks a new file or folder; returns False if another process removes it as a leftover."""
  try:
    return not locks.try_lock(descriptor) or os.fstat(descriptor).st_nlink > 0
  except BlockingIOError:
    return False


@functools.lru_cache(maxsize=None)
def _boot_digest() -> str:
  """Returns 6 hexadecimal digits for the current boot of this machine; zeros if unknown."""
  boot_id = machine.boot_id()
  return hashlib.md5(boot_id.encode()).hexdigest()[:6] if boot_id else 6 * '0'


def _remove_leftovers_once(folder: str) -> None:
  if folder not in _cleaned_folders:
    _cleaned_folders.add(folder)
    remove_leftovers(folder)


def remove_leftovers(folder: str) -> None:
  """Removes files and folders with temporary names whose writers were killed.

  On the writer's machine, the lock shows whether the writer is alive. Files without locks, of other
  machines, or from before a reboot are removed if they have not changed for a day.
  """
  with contextlib.suppress(OSError):
    for name in os.listdir(folder or os.curdir):
      match = _TEMPORARY_NAME.match(name)
      if match:
        with contextlib.suppress(OSError):  # The writer has locked it, or has renamed it.
          _remove_leftover(os.path.join(folder, name), match.group(1) == _boot_digest())


def _remove_leftover(path: str, is_of_this_boot: bool) -> None:
  """Removes a file or folder with a temporary name, unless its writer may be alive."""
  descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
  try:
    is_unlocked = (locks.try_lock(descriptor) and is_of_this_boot
                   and int(_boot_digest(), 16) != 0)
    status = os.fstat(descriptor)
    if is_unlocked or time.time() - status.st_mtime > _LEFTOVER_AGE_SECS:
      # The file is removed before it is unlocked. If a writer has just made the file, it therefore
      # finds the file removed when it gets the lock.
      shutil.rmtree(path) if stat.S_ISDIR(status.st_mode) else os.remove(path)
  finally:
    os.close(descriptor)
