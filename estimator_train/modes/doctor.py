"""`--mode=doctor`: checks the machine for faults that would stop a run or slow it down."""

import os
from typing import Any, Dict, Iterator, Optional

from estimator_train.doctor import (
  build_rates,
  checkpoint_interval,
  engine_choice,
  folders,
  gpu_use,
  gpus,
  host,
  kaggle_key,
  packages,
  tensorflow_import,
  tf_config_check,
)
from estimator_train.doctor.check_results import ERROR, OK, WARNING, CheckResult
from estimator_train.errors import UserError
from estimator_train.settings import Settings
from estimator_train.settings.groups import DEFAULT_SAVE_SECS

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
  result = {'mode': settings.mode, 'ok': counts[OK], 'warnings': counts[WARNING],
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
  python = packages.inspect_python()
  yield packages.check_python(python)
  if python.system != 'Linux':
    return  # The other checks support Linux only.
  installed, in_image = packages.installed_versions(), DOCKER_IMAGE_VARIABLE in os.environ
  build, inventory = packages.installed_build(installed), gpus.inspect_gpus()
  yield packages.check_tensorflow(installed)
  yield from packages.check_pins(installed, packages.read_requirements())
  imported = tensorflow_import.import_in_child()
  yield tensorflow_import.check_import(imported)
  yield packages.check_pillow(installed)
  gpu_results = gpus.check_gpus(inventory, build)
  yield from gpu_results
  if inventory.gpus and not any(gpu_result.level == ERROR for gpu_result in gpu_results):
    yield from _check_gpu_use(len(inventory.gpus), build, imported)
  yield from host.check_host(host.inspect_host(), build)
  if imported.version is not None and build is not None and not (
      inventory.gpus or build.is_nvidia_build):
    yield build_rates.check_build_rates(build_rates.measure_builds(build), build, in_image)
  yield from folders.check_folders(folders.inspect_folders(settings))
  tf_config = os.environ.get('TF_CONFIG')
  yield tf_config_check.check_tf_config(tf_config)
  num_workers = tf_config_check.count_workers(tf_config)
  yield from engine_choice.check_engine(settings.distribution_strategy, num_workers,
                                        engine_choice.read_weight_bytes(settings.model_dir))
  save_secs = checkpoint_interval.read_save_secs(settings.model_dir)
  if save_secs:
    yield checkpoint_interval.check_checkpoint_interval(
        save_secs, num_workers,
        None if settings.save_checkpoints_steps else
        settings.save_checkpoints_secs or DEFAULT_SAVE_SECS)
  yield kaggle_key.check_credentials(kaggle_key.find_credentials(os.environ),
                                     settings.dataset == 'oct2017', in_image)


def _check_gpu_use(num_gpus: int, build: Optional[packages.TensorFlowBuild],
                   imported: tensorflow_import.ImportResult) -> Iterator[CheckResult]:
  """Checks that TensorFlow can use the GPUs; called if the checks of the GPUs found no error.

  Args:
    num_gpus: number of GPUs of this machine.
    build: installed build of TensorFlow; None if it is unknown.
    imported: result of importing TensorFlow in a child process.
  """
  if build is not None and not build.is_nvidia_build:  # NVIDIA's build includes CUDA's libraries.
    yield gpu_use.check_libraries(gpu_use.find_missing_libraries())
  if imported.num_gpus is not None:
    yield gpu_use.check_visible_gpus(num_gpus, imported.num_gpus, imported.has_cuda,
                                     os.environ.get('CUDA_VISIBLE_DEVICES'))
  if num_gpus > 1:
    yield from gpu_use.check_nccl(num_gpus, gpu_use.inspect_memory_limits())
