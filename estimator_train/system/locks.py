"""Locks files and folders, so that one process at a time writes to them.

The kernel releases a lock when the file is closed, or when the process ends. A network file system
may not support locks, or may not show them to other machines.
"""

import errno
import fcntl
import logging
import os
import time
from typing import Callable

_LOG = logging.getLogger('estimator_train')
_POLL_SECS = 0.1
# The errors of file systems that support no locks, or no locks of files that are open for reading.
_UNSUPPORTED_ERRNOS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EBADF)


def try_lock(descriptor: int) -> bool:
  """Locks an open file or folder; returns False if the file system does not support locks.

  Raises:
    BlockingIOError: another process has locked it.
  """
  try:
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return True
  except OSError as error:
    if error.errno not in _UNSUPPORTED_ERRNOS:
      raise
    return False


def wait_for_lock(descriptor: int, path: str, check: Callable[[], None] = lambda: None) -> None:
  """Locks an open file or folder as soon as no other process has locked it.

  Args:
    path: only for the log.
    check: called repeatedly during the wait; raises an exception to end the wait.

  Raises:
    OSError: the file system does not support locks.
  """
  is_waiting = False
  while True:
    try:
      if try_lock(descriptor):
        return
      raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK), path)
    except BlockingIOError:
      if not is_waiting:
        _LOG.info('waiting for another process that writes %s', path)
    is_waiting = True
    check()
    time.sleep(_POLL_SECS)


def is_at_path(descriptor: int, path: str) -> bool:
  """Returns whether an open file still has a path: it was not renamed, removed or replaced."""
  try:
    return os.path.samestat(os.fstat(descriptor), os.stat(path))
  except FileNotFoundError:
    return False
