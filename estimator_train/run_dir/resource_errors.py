"""Translates disk and memory errors into errors for users."""

import errno
import os
import re
import resource
import shutil
from typing import Optional, Tuple

from estimator_train.errors import TrainingFailed, UserError, first_line, one_line
from estimator_train.run_dir import RunDir
from estimator_train.settings import Settings
from estimator_train.settings.flags import OptimizerFlags
from estimator_train.system.formatting import format_bytes

# The errors of file systems, and those that are caused by too many open files.
_DISK_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO,
                errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ESTALE, errno.ENOTCONN,
                errno.ENODEV, errno.ENOENT, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ELOOP)
_NO_SPACE_ERRNOS = (errno.ENOSPC, errno.EDQUOT)
_TOO_MANY_FILES_ERRNOS = (errno.EMFILE, errno.ENFILE)
_OUT_OF_MEMORY_PATTERN = re.compile(
    r'OOM when allocating tensor with shape(\[[\d,]*\]) and type (\w+) on '
    r'(?:/job:\S*/task:\d+)?(\S+) by allocator')
# This error of the dynamic linker means that the address space is too small.
_MAPPING_FAILURE_PATTERN = re.compile('failed to map segment|cannot allocate memory', re.IGNORECASE)


def translate_error(error: BaseException, settings: Settings, run_dir: Optional[RunDir],
                    previous_save_time_ns: Optional[int]) -> Optional[Exception]:
  """Translates a disk or memory error for users; returns None for any other error.

  Args:
    run_dir: None if the mode has no `model_dir`.
    previous_save_time_ns: the result of `RunDir.last_save_time_ns` when the run started. If the
      result is different now, the run has saved a checkpoint, and the translated error names it.
  """
  cause = error.__cause__
  if isinstance(error, UserError) and cause is not None and not isinstance(cause, OSError):
    # For example, `the function of --model failed` can have been caused by a lack of memory.
    error = cause
  memory_error = _translate_memory_error(error, settings.optimizer)
  if memory_error is not None:
    return memory_error
  disk_errno = _find_disk_errno(error)
  if disk_errno is None or isinstance(error, UserError):
    return None
  if disk_errno == errno.ENOENT and (run_dir is None or os.path.isdir(run_dir.path)):
    return None  # A missing file is a disk error only if model_dir itself is missing.
  if isinstance(error, OSError):
    path = None if error.filename is None else os.fsdecode(error.filename)
  else:
    path = first_line(error).rpartition('; ')[0]
  path = path or (None if run_dir is None else run_dir.path)
  what, remedy = _explain_errno(disk_errno)
  value = '{} ({}{})'.format(path or 'a file', os.strerror(disk_errno),
                             _describe_scarce_resource(disk_errno, path))
  if settings.run.trains and run_dir is not None and (
      run_dir.last_save_time_ns() not in (None, previous_save_time_ns)):
    return TrainingFailed('{}: {}: {}; the last good checkpoint is {}'.format(
        what, value, remedy, run_dir.last_checkpoint()))
  return UserError(what, value, remedy)


def _find_disk_errno(error: BaseException) -> Optional[int]:
  """Returns the errno of a disk error of Python or TensorFlow; None for other errors."""
  if isinstance(error, OSError):
    return error.errno if error.errno in _DISK_ERRNOS else None
  # The first line of an error of TensorFlow ends with that of the system, for example
  # `PATH; No space left on device`.
  text = first_line(error)
  return next((code for code in _DISK_ERRNOS if text.endswith('; ' + os.strerror(code))), None)


def error_reason(error: BaseException) -> str:
  """Returns the system's message for a disk error, or the error's own message, in one line."""
  disk_errno = _find_disk_errno(error)
  if disk_errno is not None:
    return os.strerror(disk_errno)
  return one_line(first_line(error) or str(error) or repr(error))


def error_reason_with_free_space(error: BaseException, needed_bytes: int, folder: str) -> str:
  """Returns why a file could not be written, with the needed and the free space on a full disk."""
  disk_errno = _find_disk_errno(error)
  needed_text = (
      ': {} needed'.format(format_bytes(needed_bytes)) if disk_errno in _NO_SPACE_ERRNOS else '')
  return error_reason(error) + needed_text + _describe_scarce_resource(disk_errno, folder)


def _explain_errno(disk_errno: int) -> Tuple[str, str]:
  if disk_errno in _TOO_MANY_FILES_ERRNOS:
    return ('too many open files',
            'raise the limit, for example by ulimit -n 4096, and run the same command again')
  if disk_errno in _NO_SPACE_ERRNOS:
    return 'there is no space to write', 'free some space, and run the same command again'
  return ('a folder is missing' if disk_errno == errno.ENOENT
          else 'a file cannot be read or written', 'fix the cause, and run the same command again')


def _describe_scarce_resource(disk_errno: Optional[int], path: Optional[str]) -> str:
  """Returns `, N free` for a full disk, the limit for too many open files, and '' otherwise."""
  if disk_errno in _TOO_MANY_FILES_ERRNOS:
    return ', ulimit -n is {}'.format(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
  while path and not os.path.exists(path):
    path = os.path.dirname(path) or os.curdir
  if disk_errno not in _NO_SPACE_ERRNOS or not path:
    return ''
  text = ', {} free'.format(format_bytes(shutil.disk_usage(path).free))
  status = os.statvfs(path)
  # File systems without a fixed number of inodes report 0 inodes in total.
  return text + (' and no inodes' if status.f_files and not status.f_favail else '')


def _translate_memory_error(error: BaseException,
                            flags: OptimizerFlags) -> Optional[UserError]:
  match = _OUT_OF_MEMORY_PATTERN.search(first_line(error))
  if match:
    shape, dtype, device = match.groups()
    what, prefix = 'out of memory on ' + device, 'a {} tensor of shape {} at '.format(dtype, shape)
  elif isinstance(error, MemoryError):
    limit = _describe_address_limit()
    what, prefix = 'out of memory on this machine', limit + ', ' if limit else ''
  elif isinstance(error, ImportError) and _MAPPING_FAILURE_PATTERN.search(str(error)):
    return UserError('too little memory to import TensorFlow',
                     _describe_address_limit() or 'a library cannot be mapped',
                     'raise the limit, for example by ulimit -v unlimited')
  else:
    return None
  return UserError(what, '{}--batch_size={}'.format(prefix, flags.batch_size),
                   'give a smaller --batch_size (the global batch size), or a smaller --model or '
                   '--image_size')


def _describe_address_limit() -> str:
  """Returns `ulimit -v is N`, the limit of the address space in kB; '' if there is no limit."""
  limit = resource.getrlimit(resource.RLIMIT_AS)[0]
  return '' if limit == resource.RLIM_INFINITY else 'ulimit -v is {}'.format(limit >> 10)
