"""Checks whether TensorFlow can use the GPUs of the machine, one or several in a run.

These checks are based on the documentation of TensorFlow, CUDA and NCCL, and have not been tested
on a GPU.
"""

import json
import os
import resource
import sys
from typing import List, NamedTuple, Optional, Tuple

from estimator_train.doctor import commands
from estimator_train.doctor.check_results import CheckResult, error, ok, warning

TIMEOUT_SECS = 30.
_GIB = 1 << 30
# The stock build of TensorFlow loads these libraries when it finds a GPU. If one of the libraries
# cannot be loaded, TensorFlow uses no GPU.
CUDA_LIBRARIES = ('libcudart.so.10.0', 'libcublas.so.10.0', 'libcufft.so.10.0',
                  'libcurand.so.10.0', 'libcusolver.so.10.0', 'libcusparse.so.10.0',
                  'libcudnn.so.7')
_LOADER_CODE = '''
import ctypes, json, sys
missing = []
for name in sys.argv[1:]:
  try:
    ctypes.CDLL(name)
  except OSError:
    missing.append(name)
print(json.dumps(missing))
'''
_DOCKER_REMEDY = 'in Docker, give `--shm-size=1g --ulimit memlock=-1`'
_HANG_REMEDY = 'if training hangs, give --all_reduce_alg=hierarchical_copy'


class NcclMemoryLimits(NamedTuple):
  """The limits of shared memory and of locked memory. NCCL needs memory of these two kinds.

  Attributes:
    shm_bytes: size of /dev/shm; 0 if /dev/shm does not exist.
    locked_bytes: memory that a process may lock (pin); None: no limit.
  """
  shm_bytes: int
  locked_bytes: Optional[int]


def find_missing_libraries(names: Tuple[str, ...] = CUDA_LIBRARIES,
                           timeout_secs: float = TIMEOUT_SECS) -> Tuple[str, ...]:
  """Returns the libraries that a child process cannot load; if the child fails, returns `names`."""
  result = commands.run_command([sys.executable, '-c', _LOADER_CODE] + list(names), timeout_secs)
  return tuple(json.loads(result.stdout)) if result.exit_code == 0 else names


def inspect_memory_limits() -> NcclMemoryLimits:
  """Returns the limits that the kernel sets for this process."""
  locked_bytes = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
  try:
    shm_status = os.statvfs('/dev/shm')
    shm_bytes = shm_status.f_frsize * shm_status.f_blocks
  except OSError:
    shm_bytes = 0
  return NcclMemoryLimits(
      shm_bytes, None if locked_bytes == resource.RLIM_INFINITY else locked_bytes)


def check_libraries(missing: Tuple[str, ...]) -> CheckResult:
  """Checks that the libraries of CUDA 10.0 and cuDNN 7 can be loaded."""
  if missing:
    return error('cuda', 'cannot load ' + ', '.join(missing),
                  'install CUDA 10.0 and cuDNN 7, and add their folders to LD_LIBRARY_PATH; the '
                  'image tensorflow/tensorflow:1.15.0-gpu-py3 has them')
  return ok('cuda', 'the libraries of CUDA 10.0 and cuDNN 7 can be loaded')


def check_visible_gpus(num_gpus: int, num_visible: int, has_cuda: bool,
                       visible_devices: Optional[str]) -> CheckResult:
  """Checks that TensorFlow sees the GPUs that NVML, NVIDIA's management library, lists.

  Args:
    num_gpus: number of GPUs that NVML lists.
    num_visible: number of GPUs that TensorFlow lists.
    has_cuda: whether the build of TensorFlow supports GPUs.
    visible_devices: value of CUDA_VISIBLE_DEVICES; None if this variable is not set.
  """
  found = 'TensorFlow sees {} of {} GPUs'.format(num_visible, num_gpus)
  if num_visible >= num_gpus:
    return ok('gpus seen', found)
  if visible_devices is not None:
    return warning('gpus seen', '{}, with CUDA_VISIBLE_DEVICES={}'.format(found, visible_devices),
                    'unset CUDA_VISIBLE_DEVICES to use all')
  if not has_cuda:
    return error('gpus seen', found + ': the installed build does not support GPUs',
                  'install tensorflow==1.15.0 (for later 1.15 releases, tensorflow-gpu)')
  return error('gpus seen', found, 'the usual reasons: a CUDA library that cannot be loaded, an '
                'old driver, a GPU that the build does not support (see the lines above), or '
                'another user\'s exclusive process (see nvidia-smi)')


def check_nccl(num_gpus: int, limits: NcclMemoryLimits) -> List[CheckResult]:
  """Checks that the limits of shared and locked memory are high enough for NCCL.

  NCCL's documentation recommends 1 GB of shared memory, and no limit of locked memory. Because the
  documentation does not name a sufficient limit of locked memory, any such limit is a warning.
  """
  results = []
  if limits.shm_bytes < _GIB:
    results.append(warning(
        'nccl', '/dev/shm has {} MB, and NCCL may need 1 GB for {} GPUs'.format(
            limits.shm_bytes >> 20, num_gpus),
        '{}; {}'.format(_DOCKER_REMEDY, _HANG_REMEDY)))
  if limits.locked_bytes is not None:
    results.append(warning(
        'nccl', 'a process may lock {} kB of memory (ulimit -l), and NCCL pins buffers'.format(
            limits.locked_bytes >> 10),
        'set `ulimit -l unlimited`; {}; {}'.format(_DOCKER_REMEDY, _HANG_REMEDY)))
  return results or [ok('nccl', '/dev/shm and locked memory are sufficient', _HANG_REMEDY)]
