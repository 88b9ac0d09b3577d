"""glibc's malloc, set so that it keeps the memory of freed tensors for the next ones.

By default it gives large blocks back to the kernel after each operation, which has to zero them for
the next one. This is what TensorFlow's own CPU allocator (`TF_CPU_ALLOCATOR_USE_BFC`) spares, too,
but that one retries for ten seconds when memory runs out, and cannot grow any more after that.
"""

import ctypes
import os
from typing import Any, Mapping

# The parameters of mallopt(3), and the variables by which a user sets them.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -3, -4, -8
_VARIABLES = {_M_TRIM_THRESHOLD: 'MALLOC_TRIM_THRESHOLD_', _M_MMAP_MAX: 'MALLOC_MMAP_MAX_',
              _M_ARENA_MAX: 'MALLOC_ARENA_MAX'}
# No block has a mapping of its own, and freed memory is never returned. The arenas of threads would
# return it all the same, so there is one.
_KEEP = {_M_ARENA_MAX: 1, _M_MMAP_MAX: 0, _M_TRIM_THRESHOLD: -1}
# Where glibc gets by itself in a process that frees a block of 32 MiB.
_DEFAULTS = {_M_ARENA_MAX: 0, _M_MMAP_MAX: 65536, _M_MMAP_THRESHOLD: 32 << 20,
             _M_TRIM_THRESHOLD: 64 << 20}


def keep_freed_memory(environment: Mapping[str, str] = os.environ) -> bool:
  """Has malloc keep what is freed, unless the user has set its parameters.

  Fastest before threads allocate: an arena that exists stays in use.

  Returns:
    Whether anything was set, for `return_freed_memory` to reset.
  """
  if 'GLIBC_TUNABLES' in environment or any(name in environment for name in _VARIABLES.values()):
    return False
  return _set(_KEEP)


def return_freed_memory() -> None:
  """Sets glibc's defaults, and returns to the kernel what is free now."""
  if _set(_DEFAULTS):
    _libc().malloc_trim(ctypes.c_size_t(0))


def _set(parameters: Mapping[int, int]) -> bool:
  libc = _libc()
  # Other C libraries have no such function.
  if not hasattr(libc, 'mallopt') or not hasattr(libc, 'gnu_get_libc_version'):
    return False
  return all(libc.mallopt(parameter, value) for parameter, value in parameters.items())


def _libc() -> Any:
  return ctypes.CDLL(None)
