"""How much memory this process may still take, within the limits of its cgroups and its own."""

import os
import re
import resource
from typing import Iterator, Optional, Tuple

# (folder, limit, in use) of cgroup v2 and v1.
_CGROUPS = (('/sys/fs/cgroup', 'memory.max', 'memory.current'),
            ('/sys/fs/cgroup/memory', 'memory.limit_in_bytes', 'memory.usage_in_bytes'))
# Of address space, for TensorFlow's libraries, the stacks of threads and malloc's arenas.
_RESERVED_ADDRESSES = 2 << 30
_LEAST_LIMIT = 256 << 20


def available_bytes() -> int:
  """Returns the bytes that the kernel can give without swapping, within the cgroups' limits."""
  import psutil  # Only where it is needed: the program's start should be fast.
  available = int(psutil.virtual_memory().available)
  left = _left_in_cgroups()
  return available if left is None else min(available, left)


def process_limit_bytes() -> Optional[int]:
  """Returns the most that tensors can take under a limit of this process; None: without one.

  Limits are those of its cgroups, and of its address space (`ulimit -v`).
  """
  limits = [_left_in_cgroups(), _left_addresses()]
  found = [max(limit, _LEAST_LIMIT) for limit in limits if limit is not None]
  return min(found, default=None)


def _left_in_cgroups() -> Optional[int]:
  """Returns what is left under the lowest limit that is below the machine's memory, in bytes."""
  import psutil
  physical = psutil.virtual_memory().total
  left = []
  for limit_path, usage_path, statistics_path in _cgroup_files():
    try:
      limit = _value(limit_path, r'^(\d+)$')
      # Pages of files that nobody uses count as in use there, and are given up when needed.
      used = (_value(usage_path, r'^(\d+)$')
              - _value(statistics_path, r'^(?:total_)?inactive_file (\d+)$'))
    except (OSError, ValueError):  # No such cgroup, or a limit of "max".
      continue
    if limit < physical:
      left.append(max(0, limit - used))
  return min(left, default=None)


def _cgroup_files() -> Iterator[Tuple[str, str, str]]:
  """Yields the files of limit, use and statistics of this process's cgroups, and of those above.

  In a container only the root can be there, which is the container's own.
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


def _left_addresses() -> Optional[int]:
  limit = resource.getrlimit(resource.RLIMIT_AS)[0]
  if limit == resource.RLIM_INFINITY:
    return None
  import psutil
  return limit - int(psutil.Process().memory_info().vms) - _RESERVED_ADDRESSES


def _value(path: str, pattern: str) -> int:
  with open(path) as file:
    match = re.search(pattern, file.read(), re.MULTILINE)
  if match is None:
    raise ValueError(path)
  return int(match.group(1))
