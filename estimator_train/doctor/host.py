"""Checks the CPU, the memory and the limits of the machine, or of the container."""

import re
import resource
from typing import FrozenSet, List, NamedTuple, Optional

from estimator_train.distribution.threads import available_cores
from estimator_train.doctor.check_results import CheckResult, error, ok, warning
from estimator_train.doctor.packages import TensorFlowBuild
from estimator_train.process import memory

# Training on Fashion-MNIST needs 0.5 GB. An image network on a CPU needs several times as much.
_RECOMMENDED_MEMORY_BYTES = 2 * 10**9
_MIN_OPEN_FILES = 1024  # The default on Linux, and enough for every run.
_CGROUP_V2_CPU_MAX = '/sys/fs/cgroup/cpu.max'
_CGROUP_V1_CPU_QUOTA = '/sys/fs/cgroup/cpu/cpu.cfs_quota_us'
_CGROUP_V1_CPU_PERIOD = '/sys/fs/cgroup/cpu/cpu.cfs_period_us'


class Host(NamedTuple):
  """The resources that a process may use.

  Attributes:
    cpu_name: model name of the CPU; empty if unknown.
    cpu_flags: features of the CPU, as in /proc/cpuinfo; empty if unknown.
    cores: number of cores on which a process may run.
    quota_cores: seconds of CPU time per second that the container may use; None: no limit.
    memory_bytes: available memory, within the limit of the container.
    max_open_files: number of files that a process may have open; None: no limit.
  """
  cpu_name: str
  cpu_flags: FrozenSet[str]
  cores: int
  quota_cores: Optional[float]
  memory_bytes: int
  max_open_files: Optional[int]


def inspect_host() -> Host:
  """Returns the resources that the kernel reports."""
  max_open_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
  return Host(
      _read_cpu_property('model name'), frozenset(_read_cpu_property('flags').split()),
      available_cores(),
      parse_quota(_read_file(_CGROUP_V2_CPU_MAX) or '{} {}'.format(
          _read_file(_CGROUP_V1_CPU_QUOTA), _read_file(_CGROUP_V1_CPU_PERIOD))),
      memory.available_bytes(),
      None if max_open_files == resource.RLIM_INFINITY else max_open_files)


def _read_cpu_property(key: str) -> str:
  match = re.search(r'^{}\s*:(.*)$'.format(key), _read_file('/proc/cpuinfo'), re.MULTILINE)
  return match.group(1).strip() if match else ''


def _read_file(path: str) -> str:
  try:
    with open(path) as file:
      return file.read()
  except OSError:
    return ''


def parse_quota(text: str) -> Optional[float]:
  """Returns the number of cores for the text "QUOTA PERIOD" of a cgroup.

  Returns None, for no limit, if the quota is "max", -1 or missing.
  """
  numbers = re.match(r'(\d+)\s+(\d+)$', text.strip())
  return int(numbers.group(1)) / int(numbers.group(2)) if numbers else None


def check_host(host: Host, build: Optional[TensorFlowBuild]) -> List[CheckResult]:
  """Checks the features of the CPU, the number of cores, the memory, and the open-file limit."""
  return [_check_cpu(host.cpu_flags, build),
          _check_cores(host.cores, host.quota_cores, build is not None and build.is_intel_build),
          _check_memory(host.memory_bytes), _check_open_files(host.max_open_files)]


def _check_cpu(flags: FrozenSet[str], build: Optional[TensorFlowBuild]) -> CheckResult:
  if not flags:
    return warning('cpu', 'its features are unknown',
                   'TensorFlow needs AVX: see `grep avx /proc/cpuinfo`')
  # AVX-512 consists of several features; avx512f is the one that all CPUs with AVX-512 have.
  features = [name for name, flag in (('AVX', 'avx'), ('AVX2', 'avx2'), ('AVX-512', 'avx512f'))
              if flag in flags]
  if 'avx' not in flags:
    return error('cpu', 'no AVX, which the builds of TensorFlow 1.15 need',
                 'use another machine, or enable CPU passthrough of the virtual machine')
  if build is not None and build.name == 'intel-tensorflow-avx512' and 'avx512f' not in flags:
    return error('cpu', ', '.join(features) + '; {} needs AVX-512'.format(build.name),
                 'install intel-tensorflow instead')
  return ok('cpu', ', '.join(features))


def _check_cores(cores: int, quota_cores: Optional[float], has_onednn: bool) -> CheckResult:
  if quota_cores is not None and quota_cores < cores:
    threads = max(1, int(quota_cores))
    # With oneDNN, one operation runs at a time, so parallel operations need no limit. The threads
    # of this operation are OpenMP threads, whose number OMP_NUM_THREADS limits.
    remedy = ('set `OMP_NUM_THREADS={0}` and give ' if has_onednn
              else 'give --inter_op_parallelism_threads={0} ')
    return warning('cores', '{}, but the container gets the CPU time of {:g} core(s); TensorFlow '
                   'starts one thread per core, and these threads are throttled'.format(
                       cores, round(quota_cores, 2)),
                   (remedy + '--intra_op_parallelism_threads={0} --num_parallel_calls={0}').format(
                       threads))
  return ok('cores', str(cores))


def _check_memory(available: int) -> CheckResult:
  found = '{:.1f} GB available'.format(available / 10**9)
  if available < _RECOMMENDED_MEMORY_BYTES:
    return warning('memory', found, 'stop other programs, or raise the container\'s limit; '
                   '--cache=none and a smaller --batch_size need less memory')
  return ok('memory', found)


def _check_open_files(limit: Optional[int]) -> CheckResult:
  if limit is not None and limit < _MIN_OPEN_FILES:
    return warning('open files', 'a process may have only {} open'.format(limit),
                   'set `ulimit -n {}`'.format(_MIN_OPEN_FILES))
  return ok('open files', 'no limit' if limit is None else 'up to {} per process'.format(limit))
