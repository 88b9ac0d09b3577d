"""The lock that keeps a second run from writing into the same `model_dir`."""

import contextlib
import errno
import fcntl
import json
import logging
import os
import socket
import threading
import time
from typing import Any, BinaryIO, Callable, Dict, Iterator, Optional

from estimator_train.errors import UserError
from estimator_train.run_dir import run_files

_LOG = logging.getLogger('estimator_train')
LOCK_FILE = 'run.lock'
# How often the owner touches the lock file, and how long another host watches it for a change.
_TOUCH_SECS, _WATCH_SECS = 5., 15.
_POLL_SECS = 0.5
# Errors of file systems without locks.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


@contextlib.contextmanager
def locked(model_dir: str, touch_secs: float = _TOUCH_SECS,
           watch_secs: float = _WATCH_SECS) -> Iterator[None]:
  """Locks the folder, which is made if it is missing.

  Between processes of one machine the kernel's lock on the file decides; it ends with the process.
  On a network mount such locks may not reach other machines, or not exist. The owner therefore
  touches the file regularly, and a process that finds the lock file of another machine watches it
  for a change.

  Args:
    model_dir: path of the folder.
    touch_secs: seconds between two touches.
    watch_secs: seconds without a touch after which the owner is considered to have ended.

  Raises:
    UserError: another process has locked the folder, or it is not writable.
  """
  is_new = not os.path.isdir(model_dir)
  run_files.make_folder(model_dir)
  path = os.path.join(model_dir, LOCK_FILE)
  try:
    file = _acquire(path, watch_secs)
  except OSError as error:
    raise UserError('--model_dir cannot be written to',
                    '{} ({})'.format(path, error.strerror),
                    'free some space, or give a folder that this user can write to') from error
  is_over = threading.Event()
  threading.Thread(target=_touch, args=(file, touch_secs, is_over), name='run lock',
                   daemon=True).start()
  try:
    yield
  finally:
    is_over.set()
    # Removed while still locked: otherwise another process could lock the file and lose it here.
    with contextlib.suppress(OSError):
      os.remove(path)
    file.close()
    if is_new:
      # A run that fails before it writes anything leaves no folder.
      with contextlib.suppress(OSError):
        os.rmdir(model_dir)


def _acquire(path: str, watch_secs: float) -> BinaryIO:
  """Opens and locks the file, and records this process in it."""
  while True:
    with contextlib.ExitStack() as stack:
      file = stack.enter_context(open(path, 'a+b', buffering=0))
      has_locks = _lock(file, path)
      # The previous owner may have removed the file meanwhile.
      with contextlib.suppress(FileNotFoundError):
        if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
          _check_owner(path, has_locks, watch_secs)
          file.truncate(0)
          file.write(json.dumps(_this_process()).encode('utf-8'))
          stack.pop_all()
          return file


def _lock(file: BinaryIO, path: str) -> bool:
  """Locks the file; returns False if the file system has no locks.

  Raises:
    UserError: another process has locked the file.
  """
  try:
    fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    raise _locked_error(path, _read_owner(path)) from None
  except OSError as error:
    if error.errno not in _NO_LOCKS:
      raise
    return False
  return True


def _check_owner(path: str, has_locks: bool, watch_secs: float) -> None:
  """Raises a UserError if the process that is recorded in the file is alive."""
  owner = _read_owner(path)
  if owner is None:
    return
  is_here = owner.get('boot') == _boot_id()
  if is_here and not has_locks:
    is_alive = _start_ticks(owner.get('pid')) == owner.get('started')
  elif is_here:
    is_alive = False  # Otherwise it would have locked the file.
  else:
    _LOG.info('%s was left by %s: checking for %.0f s whether that process is alive', path,
              _describe_owner(owner), watch_secs)
    is_alive = _is_touched(path, watch_secs)
  if is_alive:
    raise _locked_error(path, owner)
  _LOG.info('%s was left by %s, which has ended: taking over the lock', path,
            _describe_owner(owner))


def _is_touched(path: str, watch_secs: float) -> bool:
  """Returns whether the file is touched within this time.

  Raises:
    FileNotFoundError: the owner has ended and removed the file.
  """
  deadline = time.monotonic() + watch_secs
  before = _touched_at(path)
  while time.monotonic() < deadline:
    time.sleep(min(_POLL_SECS, watch_secs))
    if _touched_at(path) != before:
      return True
  return False


def _touched_at(path: str) -> int:
  # NFS requests the current times of a file from its server when the file is opened.
  with open(path, 'rb') as file:
    return os.fstat(file.fileno()).st_mtime_ns


def _touch(file: BinaryIO, every_secs: float, is_over: threading.Event) -> None:
  while not is_over.wait(every_secs):
    # The folder may be full or missing for a while, which is reported where files are written.
    with contextlib.suppress(OSError, ValueError):
      os.utime(file.fileno())


def _this_process() -> Dict[str, Any]:
  return {'host': socket.gethostname(), 'pid': os.getpid(),
          'since': time.strftime('%Y-%m-%d %H:%M:%S %z'), 'boot': _boot_id(),
          'started': _start_ticks(os.getpid())}


def _read_owner(path: str) -> Optional[Dict[str, Any]]:
  """Returns the process that is recorded in the file; None if the file cannot be read."""
  try:
    with open(path, 'rb') as file:
      owner = json.loads(file.read().decode('utf-8'))
  except (OSError, ValueError):
    return None
  return owner if isinstance(owner, dict) else None


def _locked_error(path: str, owner: Optional[Dict[str, Any]]) -> UserError:
  return UserError('another run writes into this --model_dir',
                   '{} is locked by {}'.format(path, _describe_owner(owner or {})),
                   'wait for it or stop it, or give another --model_dir')


def _describe_owner(owner: Dict[str, Any]) -> str:
  return 'process {} on {} since {}'.format(
      *[owner.get(name, '(unknown)') for name in ('pid', 'host', 'since')])


def _boot_id() -> Optional[str]:
  """Returns the ID of the current boot of this machine; None if the system has none."""
  return _read_field('/proc/sys/kernel/random/boot_id', str.strip)


def _start_ticks(pid: Any) -> Optional[str]:
  """Returns the start time of a process in the kernel's ticks; None if it does not exist."""
  # Field 22 of the line. Field 2, the command's name, may contain spaces and parentheses.
  return _read_field('/proc/{}/stat'.format(pid), lambda stat: stat.rpartition(')')[2].split()[19])


def _read_field(path: str, extract: Callable[[str], str]) -> Optional[str]:
  try:
    with open(path) as file:
      return extract(file.read())
  except OSError:
    return None
