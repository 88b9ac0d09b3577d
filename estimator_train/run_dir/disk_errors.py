"""What a disk, or memory, that gives out does to a run: said in one line."""

import errno
import os
import re
import resource
import shutil
from typing import Any, Optional

from estimator_train.errors import TrainingFailed, UserError, one_line
from estimator_train.run_dir.run_files import RunDir
from estimator_train.settings import Settings, groups

# What is wrong with the place that was written to, or with the limits of the process.
_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO,
           errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ESTALE, errno.ENOTCONN, errno.ENODEV,
           errno.ENOENT)
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_TOO_MANY_FILES = (errno.EMFILE, errno.ENFILE)
_OUT_OF_MEMORY = re.compile(r'OOM when allocating tensor with shape(\[[\d,]*\]) and type (\w+) on '
                            r'(?:/job:\S*/task:\d+)?(\S+) by allocator')


def told(error: BaseException, settings: Settings, before: Optional[int]) -> Optional[Exception]:
  """Returns the error as one that a user can act on; None: it is no fault of disk or memory.

  Args:
    error: that ended the mode.
    settings: of the run.
    before: what `model_dir.saved_at` was before the mode began.
  """
  cause = error.__cause__
  if isinstance(error, UserError) and cause is not None and not isinstance(cause, OSError):
    error = cause  # It was taken for one of the user's code, say.
  memory = _out_of_memory(error, settings[groups.Optimizer])
  if memory is not None:
    return memory
  code = errno_of(error)
  if code is None or isinstance(error, UserError):
    return None
  folder = settings.model_dir
  if code == errno.ENOENT and (folder is None or os.path.isdir(folder)):
    return None  # Not the folder that is gone, but a file that somebody looked for.
  path = _path_of(error) or folder
  wrong, remedy = _wrong(code), _remedy(code)
  given = '{} ({}{})'.format(path or 'a file', os.strerror(code), _free(code, path))
  if settings.trains and folder is not None and RunDir(folder).saved_at() not in (None, before):
    return TrainingFailed('{}: {}: {}; the last good checkpoint is {}'.format(
        wrong, given, remedy, RunDir(folder).last_checkpoint()))
  return UserError(wrong, given, remedy)


def errno_of(error: BaseException) -> Optional[int]:
  """Returns which fault of the disk an error of Python or of TensorFlow tells; None: no such."""
  if isinstance(error, OSError):
    return error.errno if error.errno in _ERRNOS else None
  # TensorFlow has the system's words at the end of the first line: `PATH; No space left on device`.
  text = _first_line(error)
  return next((code for code in _ERRNOS if text.endswith('; ' + os.strerror(code))), None)


def why(error: BaseException) -> str:
  """Returns what the system says of an error, without the path."""
  code = errno_of(error)
  if code is not None:
    return os.strerror(code)
  return one_line(_first_line(error) or str(error) or repr(error))


def with_room(error: BaseException, needed: int, folder: str) -> str:
  """Returns in words why a file could not be written, what it needs, and what there is.

  Args:
    error: that writing it ended with.
    needed: bytes.
    folder: that it is to be in.
  """
  code = errno_of(error)
  needs = ': {} needed'.format(_in_mb(needed)) if code in _NO_ROOM else ''
  return why(error) + needs + _free(code, folder)


def _wrong(code: int) -> str:
  if code in _TOO_MANY_FILES:
    return 'too many open files'
  if code in _NO_ROOM:
    return 'there is no room to write'
  return 'a folder is gone' if code == errno.ENOENT else 'a file cannot be read or written'


def _remedy(code: int) -> str:
  if code in _TOO_MANY_FILES:
    return 'raise that limit, as by ulimit -n 4096, and start the same command again'
  if code in _NO_ROOM:
    return 'make room, and start the same command again'
  return 'mend that, and start the same command again'


def _free(code: Optional[int], path: Optional[str]) -> str:
  """Returns how much is left of what there is too little of, to follow on an explanation."""
  if code in _TOO_MANY_FILES:
    return ', ulimit -n is {}'.format(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
  while path and not os.path.exists(path):
    path = os.path.dirname(path) or os.curdir
  if code not in _NO_ROOM or not path:
    return ''
  text = ', {} free'.format(_in_mb(shutil.disk_usage(path).free))
  files = os.statvfs(path)
  # Some file systems have no fixed number of files, and say 0 of 0.
  return text + (' and no file' if files.f_files and not files.f_favail else '')


def _out_of_memory(error: BaseException, settings: groups.Optimizer) -> Optional[UserError]:
  found = _OUT_OF_MEMORY.search(_first_line(error))
  if found:
    shape, kind, device = found.groups()
    what, tensor = 'out of memory on ' + device, 'a {} tensor of shape {} at '.format(kind, shape)
  elif isinstance(error, MemoryError):
    what, tensor = 'out of memory on this machine', ''
  else:
    return None
  return UserError(what, '{}--batch_size={}'.format(tensor, settings.batch_size),
                   'give a smaller --batch_size, which is over all replicas, or a smaller --model '
                   'or --image_size')


def _path_of(error: BaseException) -> Optional[str]:
  if isinstance(error, OSError):
    return None if error.filename is None else os.fsdecode(error.filename)
  return _first_line(error).rpartition('; ')[0] or None


def _first_line(error: Any) -> str:
  """Returns the first line of what an error of TensorFlow says; '' of others."""
  message = getattr(error, 'message', None)
  return message.partition('\n')[0] if isinstance(message, str) else ''


def _in_mb(count: int) -> str:
  return '{:.1f} MB'.format(count / 1e6) if count >= 1e6 else '{:.0f} kB'.format(count / 1e3)
