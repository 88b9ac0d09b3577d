"""Locks a `model_dir`, so that only one run at a time writes to it.

Between processes on one machine, the lock is a kernel lock on the lock file. The kernel releases
this lock when the owner ends. A network file system may not support kernel locks, or may not show
them to other machines. Therefore, the owner regularly touches the lock file, that is, sets its
modification time. A process that finds a lock file from another machine waits to see whether the
file is touched.

Each owner writes a record of itself to the lock file. Before each write to the folder, the owner
checks that the lock file at the path still has this record. The check fails if another folder is
now at the path, or if the lock file was removed and another run then locked the folder.
"""

import contextlib
import json
import logging
import os
import secrets
import socket
import threading
import time
from typing import Any, BinaryIO, Dict, Iterator, Optional

from estimator_train.errors import RunLockLost, UserError
from estimator_train.run_dir import make_folder
from estimator_train.system import json_values, locks, machine, storage

_LOG = logging.getLogger('estimator_train')
LOCK_FILE = 'run.lock'
_TOUCH_INTERVAL_SECS = 5.
# If the file is not touched for this time, another machine assumes that the owner has ended.
_OWNER_TIMEOUT_SECS = 15.
_POLL_SECS = 0.5


class FolderLocked(UserError):
  """Another process has locked the folder.

  Attributes:
    flags_digest: the argument with which the process has locked the folder; None if it is unknown.
  """
  flags_digest: Optional[str] = None


@contextlib.contextmanager
def lock_folder(model_dir: str, touch_interval_secs: float = _TOUCH_INTERVAL_SECS,
                owner_timeout_secs: float = _OWNER_TIMEOUT_SECS,
                flags_digest: Optional[str] = None) -> Iterator[None]:
  """Makes a folder if it is missing, and locks it during a `with` block.

  Atomic writes to the folder in the block raise a RunLockLost if this process no longer owns the
  lock (see storage.guard_folder).

  Args:
    owner_timeout_secs: the seconds without a touch after which an owner on another machine is
      assumed to have ended.
    flags_digest: identifies the flags of the run for other processes; None if no run trains.

  Raises:
    FolderLocked: another process has locked the folder.
    UserError: the folder is not writable.
  """
  is_new = not os.path.isdir(model_dir)
  make_folder(model_dir)
  path = os.path.join(model_dir, LOCK_FILE)
  try:
    lock = _acquire_lock(path, owner_timeout_secs, flags_digest)
  except OSError as error:
    raise UserError('--model_dir cannot be written to',
                    '{} ({})'.format(path, error.strerror),
                    'free some space, or give a folder that this user can write to') from error
  is_released = threading.Event()
  threading.Thread(target=_touch_until_released, args=(lock, touch_interval_secs, is_released),
                   name='run lock', daemon=True).start()
  try:
    with storage.guard_folder(model_dir, lock.ensure_ownership):
      yield
  finally:
    is_released.set()
    with contextlib.suppress(OSError):
      lock.release()
      if is_new:
        # If the run failed before it wrote anything, the folder is empty and is removed.
        os.rmdir(model_dir)


class _RunLock:
  """The lock of this process on a folder.

  Args:
    file: the open lock file, which this process has locked.
  """

  def __init__(self, path: str, file: BinaryIO, flags_digest: Optional[str]) -> None:
    self._path, self._file = path, file
    self._folder_descriptor = os.open(os.path.dirname(path) or os.curdir, os.O_RDONLY)
    self._is_lost_or_released = False
    # Both the main thread and the thread that touches the file check the ownership.
    self._mutex = threading.RLock()
    self._owner_record = json.dumps({
        'host': socket.gethostname(), 'pid': os.getpid(), 'boot': machine.boot_id(),
        'since': time.strftime('%Y-%m-%d %H:%M:%S %z'), 'id': secrets.token_hex(8),
        'flags': flags_digest}).encode('utf-8')
    file.truncate(0)
    file.write(self._owner_record)

  def ensure_ownership(self) -> None:
    """Checks that the lock file has the record of this process; makes a missing file again.

    Raises:
      RunLockLost: another folder is at the path, or another process has locked the folder.
      OSError: the lock file cannot be read or made.
    """
    with self._mutex:
      if self._is_lost_or_released:
        raise self._lost_error()
      try:
        file = open(self._path, 'r+b', buffering=0)  # noqa: SIM115 (_switch_to closes it.)
      except FileNotFoundError:
        self._check_folder()
        _LOG.warning('%s was removed during the run: it is made again', self._path)
        self._switch_to(open(self._path, 'x+b', buffering=0))  # noqa: SIM115 (_switch_to closes it.)
        try:
          self._file.write(self._owner_record)
        except OSError:
          os.remove(self._path)
          raise
        return
      if file.read() == self._owner_record:
        self._switch_to(file)
        return
      file.close()
      self._check_folder()
      # The lock stays lost even if the other process ends, because it has written to the folder.
      self._is_lost_or_released = True
      raise self._lost_error()

  def touch(self) -> None:
    with self._mutex:
      self.ensure_ownership()
      os.utime(self._file.fileno())

  def release(self) -> None:
    """Removes and unlocks the lock file. Raises an OSError if another process owns it."""
    with self._mutex:
      try:
        self.ensure_ownership()
        # The file is removed before it is unlocked. In the reverse order, another process could
        # lock the file before it is removed, and would lose its lock file.
        os.remove(self._path)
      finally:
        # The thread that touches the file must not make it again.
        self._is_lost_or_released = True
        self._file.close()
        os.close(self._folder_descriptor)

  def _switch_to(self, file: BinaryIO) -> None:
    """Locks `file` in place of the previous lock file; if both are the same, closes `file`."""
    if _is_same_inode(os.fstat(file.fileno()), self._file.fileno()):
      file.close()
      return
    try:
      locks.try_lock(file.fileno())
    except OSError as error:
      file.close()
      raise self._lost_error() from error
    self._file.close()
    self._file = file

  def _check_folder(self) -> None:
    """Raises a RunLockLost if another folder is at the path, or a FileNotFoundError if none is."""
    folder = os.path.dirname(self._path) or os.curdir
    if not _is_same_inode(os.stat(folder), self._folder_descriptor):
      raise RunLockLost('another folder or file system is at this path')

  def _lost_error(self) -> RunLockLost:
    return RunLockLost('another run has locked {}: {}'.format(
        self._path, _describe_owner(_read_owner(self._path) or {})))


def _is_same_inode(status: os.stat_result, descriptor: int) -> bool:
  try:
    return os.path.samestat(status, os.fstat(descriptor))
  except OSError:  # For example, because a network file system was mounted again.
    return False


def _acquire_lock(path: str, owner_timeout_secs: float,
                  flags_digest: Optional[str]) -> _RunLock:
  """Opens and locks the lock file, and records this process as the owner."""
  while True:
    with contextlib.ExitStack() as stack:
      file = stack.enter_context(open(path, 'a+b', buffering=0))
      try:
        supports_locks = locks.try_lock(file.fileno())
      except BlockingIOError:
        raise _locked_error(path, _read_owner(path)) from None
      # The previous owner may have removed the file after this process had opened the file. If so,
      # try again with a new file.
      with contextlib.suppress(FileNotFoundError):
        if locks.is_at_path(file.fileno(), path):
          _check_previous_owner_has_ended(path, supports_locks, owner_timeout_secs)
          lock = _RunLock(path, file, flags_digest)
          stack.pop_all()  # Keep the file open, which keeps the lock.
          return lock


def _check_previous_owner_has_ended(path: str, supports_locks: bool,
                                    owner_timeout_secs: float) -> None:
  """Raises a UserError if the process that is recorded in the file is alive."""
  owner = _read_owner(path)
  if owner is None:
    return
  # This process has the kernel lock, so an owner on this machine has ended.
  if owner.get('boot') != machine.boot_id() or not supports_locks:
    _LOG.info('%s belongs to %s: checking for %.0f s whether that process is alive', path,
              _describe_owner(owner), owner_timeout_secs)
    if _is_touched_within(owner_timeout_secs, path):
      raise _locked_error(path, owner)
  _LOG.info('%s was left by %s, which has ended: taking over the lock', path,
            _describe_owner(owner))


def _is_touched_within(timeout_secs: float, path: str) -> bool:
  """Returns whether the file is touched; raises a FileNotFoundError if its owner removes it."""
  deadline = time.monotonic() + timeout_secs
  initial_touch_ns = _last_touch_ns(path)
  while time.monotonic() < deadline:
    time.sleep(min(_POLL_SECS, timeout_secs))
    if _last_touch_ns(path) != initial_touch_ns:
      return True
  return False


def _last_touch_ns(path: str) -> int:
  # Opening the file makes NFS request its current modification time from the server.
  with open(path, 'rb') as file:
    return os.fstat(file.fileno()).st_mtime_ns


def _touch_until_released(lock: _RunLock, interval_secs: float,
                          is_released: threading.Event) -> None:
  while not is_released.wait(interval_secs):
    # Errors are ignored, because they are reported when other files are written.
    with contextlib.suppress(OSError):
      lock.touch()


def _read_owner(path: str) -> Optional[Dict[str, Any]]:
  """Returns the process that is recorded in the file; None if the file cannot be read."""
  with contextlib.suppress(storage.DamagedFile):
    owner: Optional[Dict[str, Any]] = storage.load_json(path, json_values.fields({}))
    return owner
  return None


def _locked_error(path: str, owner: Optional[Dict[str, Any]]) -> FolderLocked:
  error = FolderLocked('another run is writing to this --model_dir',
                       '{} is locked by {}'.format(path, _describe_owner(owner or {})),
                       'wait for that run or stop it, or give another --model_dir')
  error.flags_digest = (owner or {}).get('flags')
  return error


def _describe_owner(owner: Dict[str, Any]) -> str:
  return 'process {} on {} since {}'.format(
      *[owner.get(name, '(unknown)') for name in ('pid', 'host', 'since')])
