"""Checks the CPU, the memory, the limits, and the folders, cluster and credentials that are given.
"""

import json
import os
import re
import resource
import shutil
import stat
from typing import Iterator, List, Mapping, Optional

from estimator_train.data.oct2017 import SIGN_IN_REMEDY
from estimator_train.distribution import tf_config
from estimator_train.distribution.threads import available_cores
from estimator_train.doctor import CheckResult, error, ok, warning
from estimator_train.doctor.installation import TensorFlowBuild
from estimator_train.errors import UserError
from estimator_train.settings import Settings, choices
from estimator_train.system import memory

# Training on Fashion-MNIST needs 0.5 GB. An image network on a CPU needs several times as much.
_RECOMMENDED_MEMORY_BYTES = 2 * 10**9
_MIN_OPEN_FILES = 1024  # The default on Linux, and enough for every run.
_CGROUP_V2_CPU_MAX = '/sys/fs/cgroup/cpu.max'
_CGROUP_V1_CPU_QUOTA = '/sys/fs/cgroup/cpu/cpu.cfs_quota_us'
_CGROUP_V1_CPU_PERIOD = '/sys/fs/cgroup/cpu/cpu.cfs_period_us'
# Less free space is an error: a checkpoint of an ImageNet network (25 million weights with two Adam
# slots each) has 300 MB, and needs this space in addition to the checkpoints that already exist.
_MIN_FREE_BYTES = 300 * 10**6
# Less free space is a warning: by default, a run keeps five such checkpoints and the best one.
_RECOMMENDED_FREE_BYTES = 2 * 10**9
_KAGGLE_VARIABLES = ('KAGGLE_USERNAME', 'KAGGLE_KEY')


def read_cpu_property(key: str) -> str:
  """Returns a property of the first CPU in /proc/cpuinfo, such as `model name`; '' if unknown."""
  match = re.search(r'^{}\s*:(.*)$'.format(key), _read_file('/proc/cpuinfo'), re.MULTILINE)
  return match.group(1).strip() if match else ''


def _read_file(path: str) -> str:
  try:
    with open(path) as file:
      return file.read()
  except OSError:
    return ''


def read_quota_cores() -> Optional[float]:
  """Returns the seconds of CPU time per second that the container may use; None: no limit."""
  text = _read_file(_CGROUP_V2_CPU_MAX) or '{} {}'.format(
      _read_file(_CGROUP_V1_CPU_QUOTA), _read_file(_CGROUP_V1_CPU_PERIOD))
  # Without a limit, the quota is "max" or -1.
  numbers = re.match(r'(\d+)\s+(\d+)$', text.strip())
  return int(numbers.group(1)) / int(numbers.group(2)) if numbers else None


def check_cpu(flags: str, build: Optional[TensorFlowBuild]) -> CheckResult:
  """Checks that the CPU has the instructions that the build of TensorFlow uses.

  Args:
    flags: the flags in /proc/cpuinfo.
    build: the installed build; None if it is unknown.
  """
  # AVX-512 consists of several features; avx512f is the one that all CPUs with AVX-512 have.
  features = [name for name, flag in (('AVX', 'avx'), ('AVX2', 'avx2'), ('AVX-512', 'avx512f'))
              if flag in flags.split()]
  if not flags:
    return warning('cpu', 'its features are unknown',
                   'TensorFlow needs AVX: see `grep avx /proc/cpuinfo`')
  if 'AVX' not in features:
    return error('cpu', 'no AVX, which the builds of TensorFlow 1.15 need',
                 'use another machine, or enable CPU passthrough of the virtual machine')
  if build is not None and build.name == 'intel-tensorflow-avx512' and 'AVX-512' not in features:
    return error('cpu', ', '.join(features) + '; {} needs AVX-512'.format(build.name),
                 'install intel-tensorflow instead')
  return ok('cpu', ', '.join(features))


def check_cores(quota_cores: Optional[float], has_onednn: bool) -> CheckResult:
  """Checks that the container gets the CPU time of all cores that it sees.

  Args:
    quota_cores: what `read_quota_cores` returned.
    has_onednn: whether the build of TensorFlow is that with oneDNN.
  """
  cores = available_cores()
  if quota_cores is None or quota_cores >= cores:
    return ok('cores', str(cores))
  # With oneDNN, one operation runs at a time, so parallel operations need no limit. The threads
  # of this operation are OpenMP threads, whose number OMP_NUM_THREADS limits.
  remedy = ('set `OMP_NUM_THREADS={0}` and give ' if has_onednn
            else 'give --inter_op_parallelism_threads={0} ')
  return warning('cores', '{}, but the container gets the CPU time of {:g} core(s); TensorFlow '
                 'starts one thread per core, and these threads are throttled'.format(
                     cores, round(quota_cores, 2)),
                 (remedy + '--intra_op_parallelism_threads={0} --num_parallel_calls={0}').format(
                     max(1, int(quota_cores))))


def check_limits() -> Iterator[CheckResult]:
  """Checks the available memory, within the limit of the container, and the open-file limit."""
  available = memory.available_bytes()
  found = '{:.1f} GB available'.format(available / 10**9)
  if available < _RECOMMENDED_MEMORY_BYTES:
    yield warning('memory', found, 'stop other programs, or raise the container\'s limit; '
                  '--cache=none and a smaller --batch_size need less memory')
  else:
    yield ok('memory', found)
  limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
  if limit == resource.RLIM_INFINITY or limit >= _MIN_OPEN_FILES:
    yield ok('open files', 'no limit' if limit == resource.RLIM_INFINITY else
             'up to {} per process'.format(limit))
  else:
    yield warning('open files', 'a process may have only {} open'.format(limit),
                  'set `ulimit -n {}`'.format(_MIN_OPEN_FILES))


def check_folders(settings: Settings) -> List[CheckResult]:
  """Checks that the folders that the flags name can be used, or created, and have enough space."""
  folders = [('--model_dir', settings.run.model_dir), ('--export_dir', settings.export.export_dir),
             ('--data_dir', settings.data.data_dir),
             ('--cache', None if settings.input.cache in choices.CACHES else settings.input.cache)]
  return [_check_folder(flag, path) for flag, path in folders if path]


def _check_folder(flag: str, path: str) -> CheckResult:
  existing_path = os.path.abspath(path)
  while not os.path.lexists(existing_path):
    existing_path = os.path.dirname(existing_path)
  if not os.path.isdir(existing_path):
    return error(flag, existing_path + ' is not a folder', 'give another folder')
  exists = existing_path == os.path.abspath(path)
  is_data = exists and flag == '--data_dir'  # Only a download writes to this folder.
  if is_data and not os.access(path, os.R_OK | os.X_OK):
    return error(flag, path + ' cannot be read', 'give a folder that this user can read')
  # os.access reports a read-only mount as not writable, even for root.
  if not os.access(existing_path, os.W_OK | os.X_OK):
    if is_data:
      return ok(flag, path + ', read-only: nothing can be downloaded into it')
    return error(flag, existing_path + ' cannot be written to',
                 'give a folder that this user can write to; in Docker, check the `-v` flag')
  free_bytes = shutil.disk_usage(existing_path).free
  found = '{}{}, {:.1f} GB free'.format(path, '' if exists else ' (does not exist yet)',
                                        free_bytes / 10**9)
  if free_bytes >= _RECOMMENDED_FREE_BYTES:
    return ok(flag, found)
  if is_data:
    return warning(flag, found, 'free some space before downloading a data set')
  if free_bytes < _MIN_FREE_BYTES:
    return error(flag, found, 'free some space, or give a folder on another disk')
  return warning(flag, found, 'enough for small networks and data; for larger ones, free some '
                 'space, or give a folder on another disk')


def check_tf_config(text: Optional[str]) -> CheckResult:
  """Checks the content of TF_CONFIG, but not whether the addresses can be reached."""
  if not text:
    return ok('TF_CONFIG', 'not set: the run uses this machine alone')
  try:
    cluster = tf_config.parse_cluster({'TF_CONFIG': text})
  except UserError as invalid:
    return error('TF_CONFIG', '{}: {}'.format(invalid.what[len(tf_config.ERROR_PREFIX):],
                                              invalid.given), invalid.remedy)
  if cluster is None:
    return ok('TF_CONFIG', 'has no cluster: the run uses this machine alone')
  return ok('TF_CONFIG', '{} of {}'.format(cluster.task, tf_config.describe_task_counts(cluster)))


def check_kaggle_credentials(environment: Mapping[str, str], is_needed: bool,
                             in_image: bool) -> CheckResult:
  """Checks that Kaggle credentials exist if they are needed, and are complete and private.

  Neither shows the credentials nor imports the kaggle package, which would sign in to Kaggle.

  Args:
    environment: environment variables.
    is_needed: whether the run downloads from Kaggle.
    in_image: whether the program runs in the Docker image, from which the home folder of the user
      cannot be accessed.
  """
  variables = [name for name in _KAGGLE_VARIABLES if environment.get(name)]
  if len(variables) == len(_KAGGLE_VARIABLES):
    return ok('kaggle', 'credentials in the environment')
  if variables:
    return warning('kaggle', variables[0] + ' is set without the other variable',
                   'set both ' + ' and '.join(_KAGGLE_VARIABLES))
  path = os.path.join(_kaggle_folder(environment), 'kaggle.json')
  try:
    is_exposed = os.stat(path).st_mode & (stat.S_IRGRP | stat.S_IROTH)
    with open(path, encoding='utf-8') as file:
      config = json.load(file)
    is_complete = all(config[name] for name in ('username', 'key'))
  except FileNotFoundError:
    if is_needed:
      return warning('kaggle', 'no credentials', SIGN_IN_REMEDY + (
          '; in the Docker image, give `-v ~/.kaggle:/tmp/.kaggle:ro`' if in_image else ''))
    return ok('kaggle', 'no credentials; only --dataset=oct2017 needs them')
  except (OSError, ValueError, KeyError, TypeError):
    is_complete = False
  if not is_complete:
    return warning('kaggle', path + ' cannot be read, or lacks username or key', SIGN_IN_REMEDY)
  if is_exposed:
    return warning('kaggle', 'other users may read ' + path, '`chmod 600 {}`'.format(path))
  return ok('kaggle', 'credentials in ' + path)


def _kaggle_folder(environment: Mapping[str, str]) -> str:
  """Returns the folder in which the kaggle package expects kaggle.json."""
  default = os.path.expanduser('~/.kaggle')
  # Newer releases of the package use this folder if the default folder does not exist.
  config_home = environment.get('XDG_CONFIG_HOME') or os.path.expanduser('~/.config')
  xdg_folder = os.path.join(config_home, 'kaggle')
  is_xdg = os.path.exists(xdg_folder) and not os.path.exists(default)
  return environment.get('KAGGLE_CONFIG_DIR') or (xdg_folder if is_xdg else default)
