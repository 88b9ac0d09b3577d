"""Makes glibc's malloc keep the memory of freed tensors for later tensors.

By default, malloc returns large blocks to the kernel after each operation, and the kernel fills the
blocks for the next operation with zeros. TensorFlow's own CPU allocator
(`TF_CPU_ALLOCATOR_USE_BFC`) would keep memory, too. However, when memory runs out, that allocator
retries for ten seconds, and cannot grow any more afterwards.
"""

import ctypes
import os
from typing import Any, Mapping

# Numbers of parameters of mallopt(3), and the environment variables by which users set parameters.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -3, -4, -8
_VARIABLE_NAMES = ('MALLOC_TRIM_THRESHOLD_', 'MALLOC_MMAP_MAX_', 'MALLOC_ARENA_MAX')
# With these parameters, malloc takes all blocks from arenas, and the main arena never returns freed
# memory. Other arenas would still return memory, so all threads share the main arena. Threads that
# decode images therefore wait for each other: on two cores, decoding alone takes 10 % longer than
# with two arenas. However, with two arenas, a step of VGG16 takes 6 % longer and uses 10 % more
# memory.
_KEEPING_PARAMETERS = {_M_ARENA_MAX: 1, _M_MMAP_MAX: 0, _M_TRIM_THRESHOLD: -1}
# The defaults of glibc. glibc raises its thresholds when large blocks are freed; the thresholds in
# this dict are those after a block of 32 MiB has been freed.
_DEFAULT_PARAMETERS = {_M_ARENA_MAX: 0, _M_MMAP_MAX: 65536, _M_MMAP_THRESHOLD: 32 << 20,
                       _M_TRIM_THRESHOLD: 64 << 20}


def keep_freed_memory(environment: Mapping[str, str] = os.environ) -> bool:
  """Makes malloc keep freed memory, unless the user has set parameters of malloc.

  Call this function before other threads allocate memory, because a thread keeps the arena from
  which it first allocated.

  Returns:
    Whether the parameters were set; `return_freed_memory` resets them.
  """
  if 'GLIBC_TUNABLES' in environment or any(name in environment for name in _VARIABLE_NAMES):
    return False
  return _set_parameters(_KEEPING_PARAMETERS)


def return_freed_memory() -> None:
  """Restores glibc's defaults, and returns the free memory to the kernel."""
  if _set_parameters(_DEFAULT_PARAMETERS):
    _libc().malloc_trim(ctypes.c_size_t(0))


def _set_parameters(parameters: Mapping[int, int]) -> bool:
  """Sets parameters of malloc; returns False if they cannot be set."""
  libc = _libc()
  # C libraries other than glibc lack mallopt, or implement it with other parameters.
  if not hasattr(libc, 'mallopt') or not hasattr(libc, 'gnu_get_libc_version'):
    return False
  return all(libc.mallopt(parameter, value) for parameter, value in parameters.items())


def _libc() -> Any:
  return ctypes.CDLL(None)
