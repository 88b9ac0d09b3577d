"""Measures the memory that this process may still use."""

import os
import re
import resource
from typing import Iterator, Optional, Tuple

# (root folder, name of the limit file, name of the usage file) of cgroup v2, then of cgroup v1.
_CGROUPS = (('/sys/fs/cgroup', 'memory.max', 'memory.current'),
            ('/sys/fs/cgroup/memory', 'memory.limit_in_bytes', 'memory.usage_in_bytes'))
# Address space, in bytes, for TensorFlow's libraries, the stacks of threads and malloc's arenas.
_RESERVED_ADDRESS_BYTES = 2 << 30
# The result of bytes_left_under_limits is at least this number, even if less is left, so
# that TensorFlow can start.
_MIN_LIMIT_BYTES = 256 << 20


def available_bytes() -> int:
  """Returns the bytes that are available without swapping, within the limits of the cgroups."""
  import psutil  # Imported on demand, so that the program starts fast.
  available = int(psutil.virtual_memory().available)
  left = _bytes_left_in_cgroups()
  return available if left is None else min(available, left)


def bytes_left_under_limits() -> Optional[int]:
  """Returns the bytes left under the cgroup limits and `ulimit -v`; None without a limit.

  Ignores the free memory of the machine, unlike available_bytes. The result becomes the limit of
  the allocator of TensorFlow's oneDNN build (`TF_MKL_ALLOC_MAX_BYTES`).
  """
  bytes_left = [_bytes_left_in_cgroups(), _address_bytes_left()]
  return min((max(left, _MIN_LIMIT_BYTES) for left in bytes_left if left is not None),
             default=None)


def _bytes_left_in_cgroups() -> Optional[int]:
  """Returns the bytes left under the limits of the cgroups; None if there is no limit.

  Ignores a limit that is not below the memory of the machine.
  """
  import psutil
  physical = psutil.virtual_memory().total
  left = []
  for limit_path, usage_path, statistics_path in _cgroup_files():
    try:
      limit = _read_number(limit_path, r'^(\d+)$')
      # Inactive pages of files do not count, because the kernel evicts such pages when necessary.
      used = (_read_number(usage_path, r'^(\d+)$')
              - _read_number(statistics_path, r'^(?:total_)?inactive_file (\d+)$'))
    except (OSError, ValueError):  # The cgroup does not exist, or its limit is "max".
      continue
    if limit < physical:
      left.append(max(0, limit - used))
  return min(left, default=None)


def _cgroup_files() -> Iterator[Tuple[str, str, str]]:
  """Yields the paths of three files (limit, usage, statistics) for each cgroup of this process.

  Includes the parents of these cgroups, whose limits apply, too. In a container, often only
  /sys/fs/cgroup itself is visible. It is then the cgroup of the container, so it is always
  included.
  """
  try:
    with open('/proc/self/cgroup') as file:
      paths = {line.rstrip('\n').split(':', 2)[2] for line in file
               if line.split(':', 2)[1] in ('', 'memory')}
  except (OSError, IndexError):
    paths = set()
  for root, limit, usage in _CGROUPS:
    folders = {root}
    for path in paths:
      names = path.strip('/').split('/')
      folders.update(os.path.join(root, *names[:count]) for count in range(1, len(names) + 1))
    for folder in sorted(folders):
      yield tuple(os.path.join(folder, name)  # type: ignore
                  for name in (limit, usage, 'memory.stat'))


def _address_bytes_left() -> Optional[int]:
  """Returns the bytes of address space left for tensors; None if there is no limit."""
  limit = resource.getrlimit(resource.RLIMIT_AS)[0]
  if limit == resource.RLIM_INFINITY:
    return None
  import psutil
  return limit - int(psutil.Process().memory_info().vms) - _RESERVED_ADDRESS_BYTES


def _read_number(path: str, pattern: str) -> int:
  """Returns the number in a file that group 1 of a regular expression matches."""
  with open(path) as file:
    match = re.search(pattern, file.read(), re.MULTILINE)
  if match is None:
    raise ValueError(path)
  return int(match.group(1))
