"""Translates disk, memory and GPU errors into errors for users."""

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
_ROOT_NUMBER_PATTERN = re.compile(r'^\(\d+\) ')
# Other errors of GPUs: a pattern, what failed, and the remedy. The first match counts. The texts
# are those of TensorFlow 1.15 in public reports; see docs/docker.md.
_MEMORY_REMEDY = ('free the memory that other processes use (see nvidia-smi), select another GPU '
                  'by CUDA_VISIBLE_DEVICES, or give a smaller --batch_size')
_GPU_ERRORS = tuple((re.compile(pattern), what, remedy) for pattern, what, remedy in (
    ("No OpKernel was registered to support Op 'Cudnn", 'the model requires a GPU',
     'give --num_gpus=1, or replace CuDNNLSTM by LSTM(recurrent_activation="sigmoid") and CuDNNGRU '
     'by GRU(recurrent_activation="sigmoid", reset_after=True), which compute the same'),
    ('Dst tensor is not initialized|CUDA_ERROR_OUT_OF_MEMORY|Status: out of memory|'
     'CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED', 'out of memory on a GPU',
     _MEMORY_REMEDY),
    ('driver version is insufficient', 'the driver of the GPU is too old',
     'install a newer one; --mode=doctor names the version'),
    ('devices are busy or unavailable', 'another process has the GPU for itself',
     'end it, select another GPU by CUDA_VISIBLE_DEVICES, or run `nvidia-smi -c 0` as root'),
    ('no kernel image|kernel image is invalid', 'TensorFlow does not support the GPU',
     '--mode=doctor names the build that does'),
    ('mapped to multiple CUDA devices', 'this process already uses other GPUs',
     'create no session before the run, or start a new process'),
    ('NCCL', 'NCCL failed', 'NCCL_DEBUG=WARN shows the reason; in Docker, give `--shm-size=1g '
     '--ulimit memlock=-1`; --all_reduce_alg=hierarchical_copy does not use NCCL'),
    (r'cuDNN|CUDNN_STATUS|CUBLAS|Blas \w+ launch failed|BLAS support|DNN library|CUDA_ERROR|ptxas|'
     r'Failed to call Then|CUDA runtime|cuda\w+\(\) failed|failed call to cu',
     'a library of CUDA failed',
     'free the memory that other processes use (see nvidia-smi), and check the build and the '
     'driver by --mode=doctor'),
))
# This error of the dynamic linker means that the address space is too small.
_MAPPING_FAILURE_PATTERN = re.compile('failed to map segment|cannot allocate memory', re.IGNORECASE)


def translate_error(error: BaseException, settings: Settings, run_dir: Optional[RunDir],
                    previous_save_time_ns: Optional[int]) -> Optional[Exception]:
  """Translates a disk, memory or GPU error for users; returns None for any other error.

  Args:
    run_dir: None if the mode has no `model_dir`.
    previous_save_time_ns: the result of `RunDir.last_save_time_ns` when the run started. If the
      result is different now, the run has saved a checkpoint, and the translated error names it.
  """
  cause = error.__cause__
  if isinstance(error, UserError) and cause is not None and not isinstance(cause, OSError):
    # For example, `the function of --model failed` can have been caused by a lack of memory.
    error = cause
  translated = (_translate_memory_error(error, settings.optimizer)
                or _translate_gpu_error(error))
  if translated is not None:
    return translated
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
  match = _OUT_OF_MEMORY_PATTERN.search(_message_of(error))
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


def _translate_gpu_error(error: BaseException) -> Optional[UserError]:
  for line in _message_of(error).splitlines():
    for pattern, what, remedy in _GPU_ERRORS:
      if pattern.search(line):
        return UserError(what, _ROOT_NUMBER_PATTERN.sub('', line.strip()), remedy)
  return None


def _message_of(error: BaseException) -> str:
  """Returns the message of an error of TensorFlow without the operations; '' for other errors.

  If operations fail on several devices, the first line is `2 root error(s) found.`, and the errors
  follow.
  """
  message = getattr(error, 'message', None)
  lines = message.splitlines() if isinstance(message, str) else ()
  return '\n'.join(line for line in lines if not line.lstrip().startswith('[['))


def _describe_address_limit() -> str:
  """Returns `ulimit -v is N`, the limit of the address space in kB; '' if there is no limit."""
  limit = resource.getrlimit(resource.RLIMIT_AS)[0]
  return '' if limit == resource.RLIM_INFINITY else 'ulimit -v is {}'.format(limit >> 10)
