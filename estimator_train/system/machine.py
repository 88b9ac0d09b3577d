"""Finds the memory, cores and driver of this machine, and tunes malloc and oneDNN to it.

TensorFlow reads environment variables when it is imported. To measure their effect on a machine,
run `tests/benchmarks/run.sh variables_stock variables_onednn`.

With the parameters of malloc, glibc keeps the memory of freed tensors for later tensors. By
default, malloc returns large blocks to the kernel after each operation, and the kernel fills the
blocks for the next operation with zeros. TensorFlow's own CPU allocator
(`TF_CPU_ALLOCATOR_USE_BFC`) would also keep memory. However, when memory runs out, that allocator
retries for ten seconds, and cannot grow any more afterwards.
"""

import ctypes
import glob
import importlib.util
import os
import re
import resource
from typing import Dict, Iterator, Mapping, Optional, Tuple

# The variables for the oneDNN build.
ONEDNN_VARIABLE_NAMES = ('KMP_BLOCKTIME', 'MKL_DEBUG_CPU_TYPE', 'TF_MKL_ALLOC_MAX_BYTES')
# (root folder, name of the limit file, name of the usage file) of cgroup v2, then of cgroup v1.
_CGROUPS = (('/sys/fs/cgroup', 'memory.max', 'memory.current'),
            ('/sys/fs/cgroup/memory', 'memory.limit_in_bytes', 'memory.usage_in_bytes'))
# Address space, in bytes, for TensorFlow's libraries, the stacks of threads and malloc's arenas.
_RESERVED_ADDRESS_BYTES = 2 << 30
# The minimum result of bytes_left_under_limits, with which TensorFlow can start.
_MIN_LIMIT_BYTES = 256 << 20
_CPU_INFO = '/proc/cpuinfo'
# The numbers of parameters of mallopt(3), and the environment variables by which users set them.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -3, -4, -8
_MALLOC_VARIABLES = ('MALLOC_TRIM_THRESHOLD_', 'MALLOC_MMAP_MAX_', 'MALLOC_ARENA_MAX')
# With these parameters, malloc takes all blocks from the main arena, which never returns freed
# memory. Other arenas would return it. Threads that decode images wait for each other, because they
# share this arena: on two cores, decoding alone takes 10 % longer than with two arenas. However,
# with two arenas, a step of VGG16 takes 6 % longer, and uses 10 % more memory.
_PARAMETERS_TO_KEEP_MEMORY = {_M_ARENA_MAX: 1, _M_MMAP_MAX: 0, _M_TRIM_THRESHOLD: -1}
# The defaults of glibc. It raises the thresholds when large blocks are freed. These values apply
# after a block of 32 MiB has been freed.
_DEFAULT_PARAMETERS = {_M_ARENA_MAX: 0, _M_MMAP_MAX: 65536, _M_MMAP_THRESHOLD: 32 << 20,
                       _M_TRIM_THRESHOLD: 64 << 20}


def available_cores() -> int:
  """Returns the number of cores that this process may use."""
  return len(os.sched_getaffinity(0))


def tune_for_cpu_training() -> bool:
  """Applies the settings that the user has not set. Must run before TensorFlow is imported.

  Returns:
    Whether malloc keeps freed memory until `return_freed_memory` is called.
  """
  if has_onednn():
    for name, value in onednn_variables().items():
      os.environ.setdefault(name, value)
    return False
  # With GPUs, most tensors in main memory belong to the input pipeline. After keep_freed_memory,
  # its many threads would compete for the lock of the only arena.
  return not has_nvidia_driver() and keep_freed_memory()


def onednn_variables() -> Dict[str, str]:
  """Returns the environment variables for the oneDNN build on this processor."""
  # By default, OpenMP's threads spin for 200 ms after an operation, and occupy cores that threads
  # of the input pipeline could use. With 30 ms, which is about one step of a small network, the
  # threads of OpenMP still do not sleep between operations.
  variables = {'KMP_BLOCKTIME': '30'}
  # MKL, which multiplies matrices in the oneDNN build, uses AVX2 on AMD processors only if this
  # variable selects AVX2. On Intel processors, MKL selects the instruction set itself.
  if cpu_property('vendor_id') == 'AuthenticAMD' and 'avx2' in cpu_property('flags').split():
    variables['MKL_DEBUG_CPU_TYPE'] = '5'
  # By default, the limit of the allocator is the memory of the machine. If the system refuses an
  # allocation below this limit, the allocator can never grow again.
  limit = bytes_left_under_limits()
  if limit is not None:
    variables['TF_MKL_ALLOC_MAX_BYTES'] = str(limit)
  return variables


def has_onednn() -> bool:
  """Returns whether the TensorFlow that this process imports is the oneDNN build."""
  # Only the oneDNN build has a folder `intel_tensorflow*`. TensorFlow must not be imported to find
  # its build, because variables that are set after the import have no effect.
  spec = importlib.util.find_spec('tensorflow')
  return spec is not None and spec.origin is not None and bool(glob.glob(os.path.join(
      glob.escape(os.path.dirname(os.path.dirname(spec.origin))), 'intel_tensorflow*')))


def would_gain_from_onednn() -> bool:
  """Returns whether the oneDNN build is not installed, but would be much faster on this machine.

  With AVX2 alone, the stock build is about as fast; see docs/performance.md.
  """
  return not has_onednn() and 'avx512f' in cpu_property('flags').split()


def has_nvidia_driver() -> bool:
  return os.path.exists('/proc/driver/nvidia')


def needs_padded_gradients() -> bool:
  """Returns whether `pad_filter_gradients` in tf_patches makes training on this machine faster."""
  flags = cpu_property('flags').split()
  return 'avx2' in flags and 'avx512f' not in flags and has_onednn()


def describe_processor() -> str:
  """Returns the name of the processor and, in brackets, the number of `available_cores`."""
  return '{} ({} cores)'.format(cpu_property('model name') or 'an unknown CPU', available_cores())


def cpu_property(key: str) -> str:
  """Returns a property of the first core in /proc/cpuinfo, such as `model name`; '' if unknown."""
  match = re.search(r'^{}\s*:(.*)$'.format(key), read_kernel_file(_CPU_INFO, 10000), re.MULTILINE)
  return match.group(1).strip() if match else ''


def read_kernel_file(path: str, max_chars: int = -1) -> str:
  """Returns the text of a file of the kernel, or its beginning; '' if it cannot be read."""
  try:
    with open(path, encoding='utf-8', errors='replace') as file:
      return file.read(max_chars)
  except OSError:
    return ''


def boot_id() -> Optional[str]:
  """Returns the ID of the current boot of this machine; None if the system has none."""
  return read_kernel_file('/proc/sys/kernel/random/boot_id').strip() or None


def keep_freed_memory(environment: Mapping[str, str] = os.environ) -> bool:
  """Makes malloc keep freed memory; returns False if the user has set parameters of malloc.

  Call this function before other threads allocate memory, because a thread keeps its first arena.
  """
  if 'GLIBC_TUNABLES' in environment or any(name in environment for name in _MALLOC_VARIABLES):
    return False
  return _set_malloc_parameters(_PARAMETERS_TO_KEEP_MEMORY)


def return_freed_memory() -> None:
  """Restores glibc's defaults, and returns the free memory to the kernel."""
  if _set_malloc_parameters(_DEFAULT_PARAMETERS):
    ctypes.CDLL(None).malloc_trim(ctypes.c_size_t(0))


def _set_malloc_parameters(parameters: Mapping[int, int]) -> bool:
  libc = ctypes.CDLL(None)
  # C libraries other than glibc lack mallopt, or implement it with other parameters.
  if not hasattr(libc, 'mallopt') or not hasattr(libc, 'gnu_get_libc_version'):
    return False
  return all(libc.mallopt(parameter, value) for parameter, value in parameters.items())


def available_bytes() -> int:
  """Returns how many bytes are available without swapping, within the cgroup limits."""
  import psutil  # Imported on demand, so that the program starts fast.
  free_bytes = int(psutil.virtual_memory().available)
  bytes_left = _bytes_left_in_cgroups()
  return free_bytes if bytes_left is None else min(free_bytes, bytes_left)


def bytes_left_under_limits() -> Optional[int]:
  """Returns the bytes left under the cgroup limits and `ulimit -v`; None without a limit.

  Ignores the free memory of the machine, unlike available_bytes.
  """
  limits = [_bytes_left_in_cgroups()]
  address_limit = resource.getrlimit(resource.RLIMIT_AS)[0]
  if address_limit != resource.RLIM_INFINITY:
    import psutil
    used = int(psutil.Process().memory_info().vms)
    limits.append(address_limit - used - _RESERVED_ADDRESS_BYTES)
  return min((max(limit, _MIN_LIMIT_BYTES) for limit in limits if limit is not None), default=None)


def _bytes_left_in_cgroups() -> Optional[int]:
  """Returns the bytes left under the cgroup limits; None without a limit below the total memory."""
  import psutil
  total_bytes = psutil.virtual_memory().total
  bytes_left = []
  for limit_path, usage_path, statistics_path in _cgroup_files():
    try:
      limit = _read_kernel_number(limit_path, r'^(\d+)$')
      # Inactive pages of files do not count, because the kernel evicts such pages when necessary.
      used = (_read_kernel_number(usage_path, r'^(\d+)$')
              - _read_kernel_number(statistics_path, r'^(?:total_)?inactive_file (\d+)$'))
    except ValueError:  # The cgroup does not exist, or its limit is "max".
      continue
    if limit < total_bytes:
      bytes_left.append(max(0, limit - used))
  return min(bytes_left, default=None)


def _cgroup_files() -> Iterator[Tuple[str, str, str]]:
  """Yields three paths (limit, usage, statistics) for each cgroup of this process and its parents.

  /sys/fs/cgroup itself is always included, because it may be the cgroup of the container.
  """
  paths = set(re.findall(
      r'^\d+:(?:memory)?:(.*)$', read_kernel_file('/proc/self/cgroup'), re.MULTILINE))
  for root, limit, usage in _CGROUPS:
    folders = {root}
    for path in paths:
      names = path.strip('/').split('/')
      folders.update(os.path.join(root, *names[:count]) for count in range(1, len(names) + 1))
    for folder in sorted(folders):
      yield tuple(os.path.join(folder, name)  # type: ignore
                  for name in (limit, usage, 'memory.stat'))


def _read_kernel_number(path: str, pattern: str) -> int:
  """Returns the number that group 1 of a regular expression matches in a file."""
  match = re.search(pattern, read_kernel_file(path), re.MULTILINE)
  if match is None:
    raise ValueError(path)
  return int(match.group(1))
