"""Whether TensorFlow can use the GPUs that are there, alone and together.

Written from the documentation of TensorFlow, CUDA and NCCL, and not run on a GPU.
"""

import json
import os
import resource
import sys
from typing import List, NamedTuple, Optional, Tuple

from estimator_train.doctor import commands
from estimator_train.doctor.check_results import Finding, error, ok, warning

DEADLINE_SECS = 30.
_GIB = 1 << 30
# What the stock build loads when it finds a GPU; without any one of them it uses none.
CUDA_LIBRARIES = ('libcudart.so.10.0', 'libcublas.so.10.0', 'libcufft.so.10.0',
                  'libcurand.so.10.0', 'libcusolver.so.10.0', 'libcusparse.so.10.0',
                  'libcudnn.so.7')
_LOADER = '''
import ctypes, json, sys
missing = []
for name in sys.argv[1:]:
  try:
    ctypes.CDLL(name)
  except OSError:
    missing.append(name)
print(json.dumps(missing))
'''
_DOCKER_FLAGS = 'in Docker, give `--shm-size=1g --ulimit memlock=-1`'
_WHERE_IT_HANGS = 'where it hangs, give --all_reduce_alg=hierarchical_copy'


class Memory(NamedTuple):
  """What NCCL shares between processes and pins.

  Attributes:
    shm_bytes: size of /dev/shm; 0 when there is none.
    locked_bytes: how much a process may lock; None is without limit.
  """
  shm_bytes: int
  locked_bytes: Optional[int]


def look_for_libraries(names: Tuple[str, ...] = CUDA_LIBRARIES,
                       deadline_secs: float = DEADLINE_SECS) -> Tuple[str, ...]:
  """Returns those of the libraries that a process cannot load."""
  done = commands.run([sys.executable, '-c', _LOADER] + list(names), deadline_secs)
  return tuple(json.loads(done.out)) if done.code == 0 else names


def look_at_memory() -> Memory:
  """Asks the kernel."""
  locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
  try:
    stat = os.statvfs('/dev/shm')
    shm_bytes = stat.f_frsize * stat.f_blocks
  except OSError:
    shm_bytes = 0
  return Memory(shm_bytes, None if locked == resource.RLIM_INFINITY else locked)


def check_libraries(missing: Tuple[str, ...]) -> Finding:
  """Says whether the libraries of CUDA 10.0 can be loaded."""
  if missing:
    return error('cuda', 'cannot load ' + ', '.join(missing),
                  'install CUDA 10.0 and cuDNN 7, and name their folders in LD_LIBRARY_PATH; the '
                  'image tensorflow/tensorflow:1.15.0-gpu-py3 has them')
  return ok('cuda', 'the libraries of CUDA 10.0 and cuDNN 7 can be loaded')


def check_seen(num_gpus: int, seen: int, has_cuda: bool,
               visible_devices: Optional[str]) -> Finding:
  """Says whether TensorFlow sees the GPUs that NVML lists.

  Args:
    num_gpus: GPUs that NVML lists.
    seen: GPUs that TensorFlow lists.
    has_cuda: whether its build has code for GPUs.
    visible_devices: CUDA_VISIBLE_DEVICES; None when that is not set.
  """
  found = 'TensorFlow sees {} of {} GPUs'.format(seen, num_gpus)
  if seen >= num_gpus:
    return ok('gpus seen', found)
  if visible_devices is not None:
    return warning('gpus seen', '{}, with CUDA_VISIBLE_DEVICES={}'.format(found, visible_devices),
                    'unset CUDA_VISIBLE_DEVICES if all are meant')
  if not has_cuda:
    return error('gpus seen', found + ': the build that is installed has no code for GPUs',
                  'install tensorflow==1.15.0 (later 1.15 releases have it as tensorflow-gpu)')
  return error('gpus seen', found, 'the usual reasons: a CUDA library that cannot be loaded, an '
                'old driver, a GPU that the build does not know (see the lines above), or '
                'another user\'s exclusive process (nvidia-smi tells)')


def check_nccl(num_gpus: int, memory: Memory) -> List[Finding]:
  """Says whether NCCL has the memory that it needs between several GPUs."""
  findings = []
  if memory.shm_bytes < _GIB:
    findings.append(warning(
        'nccl', '/dev/shm has {} MB, and NCCL may need 1 GB over {} GPUs'.format(
            memory.shm_bytes >> 20, num_gpus),
        '{}; {}'.format(_DOCKER_FLAGS, _WHERE_IT_HANGS)))
  if memory.locked_bytes is not None:
    findings.append(warning(
        'nccl', 'a process may lock {} kB of memory (ulimit -l), and NCCL pins buffers'.format(
            memory.locked_bytes >> 10),
        'set `ulimit -l unlimited`; {}; {}'.format(_DOCKER_FLAGS, _WHERE_IT_HANGS)))
  return findings or [ok('nccl', '/dev/shm and locked memory suffice', _WHERE_IT_HANGS)]
