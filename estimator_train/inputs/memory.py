"""How much memory this process may still take."""

import re

_CGROUPS = (  # (limit, in use, what that is made of) of cgroup v2 and v1, as a container sees them.
    ('/sys/fs/cgroup/memory.max', '/sys/fs/cgroup/memory.current', '/sys/fs/cgroup/memory.stat'),
    ('/sys/fs/cgroup/memory/memory.limit_in_bytes', '/sys/fs/cgroup/memory/memory.usage_in_bytes',
     '/sys/fs/cgroup/memory/memory.stat'))


def available_bytes() -> int:
  """Returns the bytes that the kernel can give without swapping, within the container's limit."""
  available = _value('/proc/meminfo', r'^MemAvailable: +(\d+) kB$') * 1024
  for limit, usage, statistics in _CGROUPS:
    try:
      # Pages of files that nobody uses count as in use there, and are given up when needed.
      used = _value(usage, r'^(\d+)$') - _value(statistics, r'^(?:total_)?inactive_file (\d+)$')
      available = min(available, max(0, _value(limit, r'^(\d+)$') - used))
    except (OSError, ValueError):  # No such cgroup, or a limit of "max".
      continue
  return available


def _value(path: str, pattern: str) -> int:
  with open(path) as file:
    match = re.search(pattern, file.read(), re.MULTILINE)
  if match is None:
    raise ValueError(path)
  return int(match.group(1))
