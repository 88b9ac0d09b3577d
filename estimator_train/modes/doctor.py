"""`--mode=doctor`: checks the machine for faults that would stop a run or slow it down."""

import os
from typing import Any, Dict, Iterator

from estimator_train.doctor import ERROR, OK, WARNING, CheckResult, gpus, installation, machine
from estimator_train.errors import UserError
from estimator_train.settings import Settings

DOCKER_IMAGE_VARIABLE = 'ESTIMATOR_TRAIN_IMAGE'  # The Dockerfile sets this environment variable.


def run(settings: Settings) -> Dict[str, Any]:
  """Runs all checks, prints a line for each, and returns their results.

  Raises:
    UserError: at least one check failed; the error contains the result of the mode.
  """
  check_results = []
  for check_result in _run_checks(settings):
    # Each line is printed immediately, because the next check may take a minute.
    print(check_result.format_line(), flush=True)
    check_results.append(check_result)
  counts = {level: sum(check_result.level == level for check_result in check_results)
            for level in (OK, WARNING, ERROR)}
  result = {'mode': settings.run.mode, 'ok': counts[OK], 'warnings': counts[WARNING],
            'errors': counts[ERROR],
            'checks': [check_result._asdict() for check_result in check_results]}
  if counts[ERROR]:
    raise UserError('this machine is not ready',
                    '{} error(s): {}'.format(counts[ERROR], ', '.join(
                        check_result.name for check_result in check_results
                        if check_result.level == ERROR)),
                    'fix the errors printed above', result)
  return result


def _run_checks(settings: Settings) -> Iterator[CheckResult]:
  """Runs the checks, grouped by subject, and yields their results."""
  python = installation.Interpreter()
  yield installation.check_python(python)
  if python.system != 'Linux':
    return  # The other checks support Linux only.
  in_image = DOCKER_IMAGE_VARIABLE in os.environ
  installed = installation.installed_versions()
  builds = installation.installed_builds(installed)
  build = builds[0] if len(builds) == 1 else None
  yield installation.check_tensorflow(builds)
  yield from installation.check_packages(
      installed, build is not None and build.is_nvidia_build,
      settings.devices.distribution_strategy)
  imported = installation.import_in_child()
  yield installation.check_import(imported)
  inventory = gpus.inspect_gpus()
  gpu_results = list(gpus.check_gpus(inventory, build))
  yield from gpu_results
  if inventory.gpus and not any(gpu_result.level == ERROR for gpu_result in gpu_results):
    yield from gpus.check_use(len(inventory.gpus), build, imported)
  yield machine.check_cpu(machine.read_cpu_property('flags'), build)
  yield machine.check_cores(machine.read_quota_cores(),
                            build is not None and build.is_intel_build)
  yield from machine.check_limits()
  if imported.version is not None and build is not None and not (
      inventory.gpus or build.is_nvidia_build):
    yield installation.check_build_rates(
        installation.measure_builds(build), build, in_image)
  yield from machine.check_folders(settings)
  yield machine.check_tf_config(os.environ.get('TF_CONFIG'))
  yield machine.check_kaggle_credentials(os.environ, settings.data.dataset == 'oct2017', in_image)
