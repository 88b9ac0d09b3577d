"""Parameters of glibc's malloc that make it keep the memory of freed tensors for the next ones.

By default it returns large blocks to the kernel after each operation, and gets zeroed ones for the
next. TensorFlow's own CPU allocator (`TF_CPU_ALLOCATOR_USE_BFC`) avoids that, too, but retries for
ten seconds when memory runs out, and cannot grow any more after that.
"""

import ctypes
import os
from typing import Any, Mapping

# The parameters of mallopt(3), and the environment variables by which users set them.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -3, -4, -8
_VARIABLES = {_M_TRIM_THRESHOLD: 'MALLOC_TRIM_THRESHOLD_', _M_MMAP_MAX: 'MALLOC_MMAP_MAX_',
              _M_ARENA_MAX: 'MALLOC_ARENA_MAX'}
# No block gets its own mapping, and freed memory is never returned. The arenas of threads would
# return it anyway, so there is only the main one. Threads that decode images then wait for each
# other: decoding alone takes a tenth longer on two cores, but with two arenas a step of VGG16 takes
# 6 % longer, and memory is a tenth more.
_KEEP = {_M_ARENA_MAX: 1, _M_MMAP_MAX: 0, _M_TRIM_THRESHOLD: -1}
# The values to which glibc adapts by itself in a process that frees a block of 32 MiB.
_DEFAULTS = {_M_ARENA_MAX: 0, _M_MMAP_MAX: 65536, _M_MMAP_THRESHOLD: 32 << 20,
             _M_TRIM_THRESHOLD: 64 << 20}


def keep_freed_memory(environment: Mapping[str, str] = os.environ) -> bool:
  """Makes malloc keep freed memory, unless the user has set its parameters.

  Call this before threads allocate memory: existing arenas stay in use.

  Returns:
    Whether the parameters were set; `return_freed_memory` resets them.
  """
  if 'GLIBC_TUNABLES' in environment or any(name in environment for name in _VARIABLES.values()):
    return False
  return _set(_KEEP)


def return_freed_memory() -> None:
  """Restores glibc's defaults, and returns the free memory to the kernel."""
  if _set(_DEFAULTS):
    _libc().malloc_trim(ctypes.c_size_t(0))


def _set(parameters: Mapping[int, int]) -> bool:
  libc = _libc()
  # Other C libraries lack these functions, or implement other parameters.
  if not hasattr(libc, 'mallopt') or not hasattr(libc, 'gnu_get_libc_version'):
    return False
  return all(libc.mallopt(parameter, value) for parameter, value in parameters.items())


def _libc() -> Any:
  return ctypes.CDLL(None)
