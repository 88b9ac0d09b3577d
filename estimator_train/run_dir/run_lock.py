"""One run, one `model_dir`: the lock that keeps a second process from writing into it."""

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
# How often the holder touches its lock, and how long another host waits to see that.
_TOUCH_SECS, _WATCH_SECS = 5., 15.
_LOOK_SECS = 0.5
# What file systems say that know no locks.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


@contextlib.contextmanager
def held(model_dir: str, touch_secs: float = _TOUCH_SECS,
         watch_secs: float = _WATCH_SECS) -> Iterator[None]:
  """Holds the lock of the folder, which is made where it is missing.

  The kernel's lock of the file decides between processes of one machine; it ends with the process.
  A network mount may keep such locks from other machines, or know none. So the holder touches the
  file all the while, and whoever finds the lock of another machine watches it for a moment.

  Args:
    model_dir: of the run.
    touch_secs: between two touches.
    watch_secs: without a touch after which the holder is taken for dead.

  Raises:
    UserError: another process holds it, or the folder cannot be written to.
  """
  is_new = not os.path.isdir(model_dir)
  run_files.make_folder(model_dir)
  path = os.path.join(model_dir, LOCK_FILE)
  try:
    file = _acquire(path, watch_secs)
  except OSError as error:
    raise UserError('--model_dir cannot be written to',
                    '{} ({})'.format(path, error.strerror),
                    'make room, or give a folder that this user can write to') from error
  is_over = threading.Event()
  threading.Thread(target=_touch, args=(file, touch_secs, is_over), name='run lock',
                   daemon=True).start()
  try:
    yield
  finally:
    is_over.set()
    # Removed before it is let go, so that nobody finds it without its holder.
    with contextlib.suppress(OSError):
      os.remove(path)
    file.close()
    if is_new:
      # A run that was refused before it wrote anything leaves nothing.
      with contextlib.suppress(OSError):
        os.rmdir(model_dir)


def _acquire(path: str, watch_secs: float) -> BinaryIO:
  """Returns the file, locked and with this process's name in it."""
  while True:
    with contextlib.ExitStack() as stack:
      file = stack.enter_context(open(path, 'a+b', buffering=0))
      knows_locks = _lock(file, path)
      # Whoever had the lock may have removed the file by now.
      with contextlib.suppress(FileNotFoundError):
        if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
          _check_holder(path, knows_locks, watch_secs)
          file.truncate(0)
          file.write(json.dumps(_this_process()).encode('utf-8'))
          stack.pop_all()
          return file


def _lock(file: BinaryIO, path: str) -> bool:
  """Returns whether the file system knows locks; raises a UserError when another has this one."""
  try:
    fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    raise _refusal(path, _read(path)) from None
  except OSError as error:
    if error.errno not in _NO_LOCKS:
      raise
    return False
  return True


def _check_holder(path: str, knows_locks: bool, watch_secs: float) -> None:
  """Raises a UserError when the process that is named in the file lives."""
  holder = _read(path)
  if holder is None:
    return
  is_here = holder.get('boot') == _boot_id()
  if is_here and not knows_locks:
    is_alive = _started(holder.get('pid')) == holder.get('started')
  elif is_here:
    is_alive = False  # Or it would hold the lock.
  else:
    _LOG.info('%s was left by %s: looking for %.0f s whether that lives', path, _name(holder),
              watch_secs)
    is_alive = _is_touched(path, watch_secs)
  if is_alive:
    raise _refusal(path, holder)
  _LOG.info('%s was left by %s, which is gone: taken over', path, _name(holder))


def _is_touched(path: str, watch_secs: float) -> bool:
  """Returns whether the file changes within this time, or goes, as its holder ends."""
  give_up = time.monotonic() + watch_secs
  before = _touched_at(path)
  while time.monotonic() < give_up:
    time.sleep(min(_LOOK_SECS, watch_secs))
    if _touched_at(path) != before:
      return True
  return False


def _touched_at(path: str) -> int:
  # Opening a file is what makes NFS ask its server for the file's times.
  with open(path, 'rb') as file:
    return os.fstat(file.fileno()).st_mtime_ns


def _touch(file: BinaryIO, every_secs: float, is_over: threading.Event) -> None:
  while not is_over.wait(every_secs):
    # The folder may be gone, or full, for a while: that is told by who writes into it.
    with contextlib.suppress(OSError, ValueError):
      os.utime(file.fileno())


def _this_process() -> Dict[str, Any]:
  return {'host': socket.gethostname(), 'pid': os.getpid(),
          'since': time.strftime('%Y-%m-%d %H:%M:%S %z'), 'boot': _boot_id(),
          'started': _started(os.getpid())}


def _read(path: str) -> Optional[Dict[str, Any]]:
  """Returns what the file says of its holder; None when it says nothing that can be read."""
  try:
    with open(path, 'rb') as file:
      holder = json.loads(file.read().decode('utf-8'))
  except (OSError, ValueError):
    return None
  return holder if isinstance(holder, dict) else None


def _refusal(path: str, holder: Optional[Dict[str, Any]]) -> UserError:
  return UserError('another run writes into this --model_dir',
                   '{} is held by {}'.format(path, _name(holder or {})),
                   'wait for it or stop it, or give another --model_dir')


def _name(holder: Dict[str, Any]) -> str:
  return 'process {} on {} since {}'.format(
      *[holder.get(name, '(unknown)') for name in ('pid', 'host', 'since')])


def _boot_id() -> Optional[str]:
  """Returns what tells this boot of this machine from all others; None where it is not told."""
  return _of_file('/proc/sys/kernel/random/boot_id', str.strip)


def _started(pid: Any) -> Optional[str]:
  """Returns when the process began, in the kernel's ticks; None when there is no such process."""
  # The name before it, in parentheses, may hold anything.
  return _of_file('/proc/{}/stat'.format(pid), lambda stat: stat.rpartition(')')[2].split()[19])


def _of_file(path: str, find: Callable[[str], str]) -> Optional[str]:
  try:
    with open(path) as file:
      return find(file.read())
  except OSError:
    return None
