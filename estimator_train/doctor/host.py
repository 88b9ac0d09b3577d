"""The CPU, the memory and the limits of the machine, or of the container."""

import re
import resource
from typing import FrozenSet, List, NamedTuple, Optional

from estimator_train.distribution.threads import available_cores
from estimator_train.doctor.check_results import Finding, error, ok, warning
from estimator_train.doctor.packages import Build
from estimator_train.process import memory

# Fashion-MNIST takes 0.5 GB (README), an image network on a CPU several times that.
_LITTLE_MEMORY_BYTES = 2 * 10**9
_FEW_FILES = 1024  # What Linux gives by default, and enough for every run here.
_QUOTA_V2 = '/sys/fs/cgroup/cpu.max'
_QUOTA_V1 = '/sys/fs/cgroup/cpu/cpu.cfs_quota_us'
_PERIOD_V1 = '/sys/fs/cgroup/cpu/cpu.cfs_period_us'


class Host(NamedTuple):
  """What processes may use.

  Attributes:
    cpu_name: its maker's name of it; empty where it is not known.
    cpu_flags: features of the CPU, as /proc/cpuinfo names them; empty where it is not known.
    cores: those that a process may run on.
    quota_cores: how many cores' time the container gets; None is without limit.
    memory_bytes: what the kernel can give.
    open_files: how many a process may have open; None is without limit.
  """
  cpu_name: str
  cpu_flags: FrozenSet[str]
  cores: int
  quota_cores: Optional[float]
  memory_bytes: int
  open_files: Optional[int]


def look() -> Host:
  """Asks the kernel."""
  files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
  return Host(
      _of_cpu('model name'), frozenset(_of_cpu('flags').split()), available_cores(),
      quota_cores(_read(_QUOTA_V2) or '{} {}'.format(_read(_QUOTA_V1), _read(_PERIOD_V1))),
      memory.available_bytes(), None if files == resource.RLIM_INFINITY else files)


def _of_cpu(key: str) -> str:
  match = re.search(r'^{}\s*:(.*)$'.format(key), _read('/proc/cpuinfo'), re.MULTILINE)
  return match.group(1).strip() if match else ''


def _read(path: str) -> str:
  try:
    with open(path) as file:
      return file.read()
  except OSError:
    return ''


def quota_cores(text: str) -> Optional[float]:
  """Returns the cores in a cgroup's "QUOTA PERIOD", microseconds; None for "max", -1 or nothing."""
  numbers = re.match(r'(\d+)\s+(\d+)$', text.strip())
  return int(numbers.group(1)) / int(numbers.group(2)) if numbers else None


def check(host: Host, build: Optional[Build]) -> List[Finding]:
  """Says whether CPU, cores, memory and limits suffice."""
  return [_check_cpu(host.cpu_flags, build),
          _check_cores(host.cores, host.quota_cores, build is not None and build.is_intels),
          _check_memory(host.memory_bytes), _check_files(host.open_files)]


def _check_cpu(flags: FrozenSet[str], build: Optional[Build]) -> Finding:
  if not flags:
    return warning('cpu', 'its features are not known',
                   'TensorFlow needs AVX: see `grep avx /proc/cpuinfo`')
  # As /proc/cpuinfo has it; avx512f is the part that all CPUs with AVX-512 have.
  has = [name for name, flag in (('AVX', 'avx'), ('AVX2', 'avx2'), ('AVX-512', 'avx512f'))
         if flag in flags]
  if 'avx' not in flags:
    return error('cpu', 'no AVX, which the builds of TensorFlow 1.15 need',
                 'use another machine, or let the virtual machine pass the CPU through')
  if build is not None and build.name == 'intel-tensorflow-avx512' and 'avx512f' not in flags:
    return error('cpu', ', '.join(has) + '; {} needs AVX-512'.format(build.name),
                 'install intel-tensorflow instead')
  return ok('cpu', ', '.join(has))


def _check_cores(cores: int, quota: Optional[float], has_onednn: bool) -> Finding:
  if quota is not None and quota < cores:
    threads = max(1, int(quota))
    # With oneDNN one operation runs at a time, on OpenMP's threads.
    remedy = ('set `OMP_NUM_THREADS={0}` and give ' if has_onednn
              else 'give --inter_op_parallelism_threads={0} ')
    return warning('cores', '{}, but the container gets the time of {:g}; TensorFlow starts a '
                   'thread a core, and they are throttled'.format(cores, round(quota, 2)),
                   (remedy + '--intra_op_parallelism_threads={0} --num_parallel_calls={0}').format(
                       threads))
  return ok('cores', str(cores))


def _check_memory(available: int) -> Finding:
  found = '{:.1f} GB available'.format(available / 10**9)
  if available < _LITTLE_MEMORY_BYTES:
    return warning('memory', found, 'end other programs, or raise the container\'s limit; '
                   '--cache=none and a smaller --batch_size take less')
  return ok('memory', found)


def _check_files(limit: Optional[int]) -> Finding:
  if limit is not None and limit < _FEW_FILES:
    return warning('open files', 'a process may have {} open'.format(limit),
                   'set `ulimit -n {}`'.format(_FEW_FILES))
  return ok('open files', 'no limit' if limit is None else 'up to {} a process'.format(limit))
