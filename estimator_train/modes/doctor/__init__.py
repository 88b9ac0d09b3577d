"""`--mode=doctor`: checks the machine for faults that would stop a run or slow it down.

This module checks the folders, the cluster and the credentials that flags and environment variables
specify. `installation` checks Python and packages, and `hardware` checks the machine.
"""

import collections
import os
import shutil
import stat
from typing import Any, Dict, Iterator, List, Mapping, Optional

from estimator_train.data.oct2017 import SIGN_IN_REMEDY
from estimator_train.distribution import tf_config
from estimator_train.errors import UserError
from estimator_train.modes.doctor import hardware, installation
from estimator_train.modes.doctor.results import CheckResult, error, ok, warning
from estimator_train.run_dir import RunDir
from estimator_train.settings import Settings
from estimator_train.settings.flags import CACHES
from estimator_train.settings.proposals import make_command
from estimator_train.system import json_values, machine, storage, tensorflow_probe
from estimator_train.system.formatting import format_bytes, format_clock, format_count
from estimator_train.system.progress import ProgressBar, is_on_terminal
from estimator_train.system.summary import log_summary

# Less free space is an error, because an ImageNet network could not save another checkpoint. It has
# 25 million weights with two Adam slots each, which are 300 MB.
_MIN_FREE_BYTES = 300 * 10**6
# Less free space is a warning. By default, a run keeps five such checkpoints and the best one.
_RECOMMENDED_FREE_BYTES = 2 * 10**9
_KAGGLE_VARIABLES = ('KAGGLE_USERNAME', 'KAGGLE_KEY')
DOCKER_IMAGE_VARIABLE = 'ESTIMATOR_TRAIN_IMAGE'  # The Dockerfile sets this environment variable.


def run(settings: Settings, unused_run_dir: Optional[RunDir]) -> Dict[str, Any]:
  """Runs all checks, prints a line for each, and returns their results.

  Raises:
    UserError: at least one check failed; the error contains the result of the mode.
  """
  check_results: List[CheckResult] = []
  remaining = _run_checks(settings)
  while True:
    with ProgressBar(lambda bar: ['checking', format_clock(bar.secs)], is_shown=is_on_terminal()):
      check_result = next(remaining, None)
    if check_result is None:
      break
    # Each line is printed immediately, because the next check may take a minute.
    print(check_result.format_line(), flush=True)
    check_results.append(check_result)
  counts = collections.Counter(check_result.level for check_result in check_results)
  result = {'mode': settings.run.mode, 'ok': counts['ok'], 'warnings': counts['warning'],
            'errors': counts['error'],
            'checks': [check_result._asdict() for check_result in check_results]}
  if counts['error']:
    raise UserError('this machine is not ready',
                    '{} error(s): {}'.format(counts['error'], ', '.join(
                        check_result.name for check_result in check_results
                        if check_result.level == 'error')),
                    'fix the errors printed above', result)
  log_summary('this machine is ready: {}, {}'.format(
      format_count(len(check_results), 'check'), format_count(counts['warning'], 'warning')),
              [], make_command('--flagfile=quickstart'))
  return result


def _run_checks(settings: Settings) -> Iterator[CheckResult]:
  interpreter = installation.Interpreter()
  yield installation.check_python(interpreter)
  if interpreter.system != 'Linux':
    return  # The other checks support Linux only.
  in_image = DOCKER_IMAGE_VARIABLE in os.environ
  installed_versions = installation.find_installed_versions()
  builds = installation.find_installed_builds(installed_versions)
  build = builds[0] if len(builds) == 1 else None
  yield installation.check_tensorflow(builds)
  yield from installation.check_packages(
      installed_versions, build is not None and build.is_nvidia_build,
      settings.devices.distribution_strategy)
  import_result = tensorflow_probe.import_in_child()
  yield installation.check_import(import_result)
  inventory = hardware.inspect_gpus()
  gpu_results = list(hardware.check_gpus(inventory, build))
  yield from gpu_results
  if inventory.gpus and not any(gpu_result.level == 'error' for gpu_result in gpu_results):
    yield from hardware.check_usable_gpus(len(inventory.gpus), build, import_result)
  yield hardware.check_cpu(machine.cpu_property('flags'), build)
  yield hardware.check_cores(hardware.read_quota_cores(),
                             build is not None and build.is_intel_build)
  yield from hardware.check_limits()
  if import_result.version is not None and build is not None and not (
      inventory.gpus or build.is_nvidia_build):
    yield installation.check_build_rates(installation.measure_builds(build), in_image)
  yield from check_folders(settings)
  yield check_tf_config(os.environ.get('TF_CONFIG'))
  yield check_kaggle_credentials(os.environ, settings.data.dataset == 'oct2017', in_image)


def check_folders(settings: Settings) -> List[CheckResult]:
  """Checks that the folders that the flags name can be used, or created, and have enough space."""
  folders = [('--model_dir', settings.run.model_dir), ('--export_dir', settings.export.export_dir),
             ('--data_dir', settings.data.data_dir),
             ('--cache', None if settings.input.cache in CACHES else settings.input.cache)]
  return [_check_folder(flag, path) for flag, path in folders if path]


def _check_folder(flag: str, path: str) -> CheckResult:
  existing_path = os.path.abspath(path)
  while not os.path.lexists(existing_path):
    existing_path = os.path.dirname(existing_path)
  if not os.path.isdir(existing_path):
    return error(flag, existing_path + ' is not a folder', 'give another folder')
  exists = existing_path == os.path.abspath(path)
  is_data_dir = exists and flag == '--data_dir'  # Only a download writes to this folder.
  if is_data_dir and not os.access(path, os.R_OK | os.X_OK):
    return error(flag, path + ' cannot be read', 'give a folder that this user can read')
  # os.access reports a read-only mount as not writable, even for root.
  if not os.access(existing_path, os.W_OK | os.X_OK):
    if is_data_dir:
      return ok(flag, path + ', read-only: nothing can be downloaded into it')
    return error(flag, existing_path + ' cannot be written to',
                 'give a folder that this user can write to; in Docker, check the `-v` flag')
  free_bytes = shutil.disk_usage(existing_path).free
  found = '{}{}, {} free'.format(path, '' if exists else ' (does not exist yet)',
                                 format_bytes(free_bytes))
  if free_bytes >= _RECOMMENDED_FREE_BYTES:
    return ok(flag, found)
  if is_data_dir:
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
  return ok('TF_CONFIG', '{} of {}'.format(cluster.task, cluster.task_summary))


def check_kaggle_credentials(environment: Mapping[str, str], is_needed: bool,
                             in_image: bool) -> CheckResult:
  """Checks that Kaggle credentials exist if they are needed, and are complete and private.

  The credentials are not shown. The kaggle package is not imported, because it would sign in.

  Args:
    is_needed: whether the run downloads from Kaggle.
    in_image: whether the program runs in the Docker image, which has no access to the home folder
      of the user.
  """
  variables = [name for name in _KAGGLE_VARIABLES if environment.get(name)]
  if len(variables) == len(_KAGGLE_VARIABLES):
    return ok('kaggle', 'credentials in the environment')
  if variables:
    return warning('kaggle', variables[0] + ' is set without the other variable',
                   'set both ' + ' and '.join(_KAGGLE_VARIABLES))
  path = os.path.join(_find_kaggle_folder(environment), 'kaggle.json')
  try:
    is_exposed = os.stat(path).st_mode & (stat.S_IRGRP | stat.S_IROTH)
    config = storage.load_json(path, json_values.fields(
        {'username': json_values.text, 'key': json_values.text}))
    is_complete = config is not None and all(config[name] for name in ('username', 'key'))
  except FileNotFoundError:
    if is_needed:
      return warning('kaggle', 'no credentials', SIGN_IN_REMEDY + (
          '; in the Docker image, give `-v ~/.kaggle:/tmp/.kaggle:ro`' if in_image else ''))
    return ok('kaggle', 'no credentials; only --dataset=oct2017 needs them')
  except (OSError, storage.DamagedFile):
    is_complete = False
  if not is_complete:
    return warning('kaggle', path + ' cannot be read, or lacks username or key', SIGN_IN_REMEDY)
  if is_exposed:
    return warning('kaggle', 'other users may read ' + path, '`chmod 600 {}`'.format(path))
  return ok('kaggle', 'credentials in ' + path)


def _find_kaggle_folder(environment: Mapping[str, str]) -> str:
  """Returns the folder in which the kaggle package expects kaggle.json."""
  default = os.path.expanduser('~/.kaggle')
  # Newer releases of the package use this folder if the default folder does not exist.
  config_home = environment.get('XDG_CONFIG_HOME') or os.path.expanduser('~/.config')
  xdg_folder = os.path.join(config_home, 'kaggle')
  is_xdg = os.path.exists(xdg_folder) and not os.path.exists(default)
  return environment.get('KAGGLE_CONFIG_DIR') or (xdg_folder if is_xdg else default)
