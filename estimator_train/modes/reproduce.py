"""`--mode=reproduce`: runs a published workload, and compares measured and published figures."""

import json
import logging
import os
from typing import Any, BinaryIO, Callable, Dict, Optional, Sequence

from estimator_train import settings as settings_lib
from estimator_train.configs.workloads import WORKLOADS, RunResults, WorkloadPart
from estimator_train.distribution import threads
from estimator_train.doctor import installation, machine
from estimator_train.errors import UserError
from estimator_train.reports import evaluation, ledger, page, throughput
from estimator_train.run_dir.run_files import RunDir
from estimator_train.settings import Settings
from estimator_train.system import atomic, child_process, paths, stored

_LOG = logging.getLogger('estimator_train')
# Flags that may differ when the mode is run again in the same model_dir.
_CHANGEABLE_FLAGS = ('model_dir', 'log_every_steps', 'verbosity')
# The type of `child_process.run_program`. Its two arguments are the flags and the path of the log.
RunChild = Callable[[Sequence[str], str], child_process.ChildRun]


def run(settings: Settings, run_child: RunChild = child_process.run_program,
        count_gpus: Callable[[], int] = installation.count_gpus) -> Dict[str, Any]:
  """Runs the parts of the workload, and returns the published and the measured figures.

  Parts that are complete in this `model_dir` are not run again. The comparison of the published and
  the measured figures, called the ledger, is printed and written to ledger.json.

  Args:
    settings: settings of the mode.
    run_child: runs the program in a child process.
    count_gpus: returns the number of GPUs.

  Raises:
    UserError: at least one part failed and none succeeded; the error carries the dict that this
      function would return.
  """
  assert settings.experiments.workload is not None
  run_dir = RunDir(settings.run.model_dir)
  run_dir.check_flags(settings, _CHANGEABLE_FLAGS)
  run_dir.make()
  run_dir.record_flags(settings)
  num_gpus = count_gpus()
  # The keys of these dicts are the names of parts.
  part_results: Dict[str, RunResults] = {}
  skip_reasons: Dict[str, str] = {}
  part_errors: Dict[str, str] = {}
  for part in WORKLOADS[settings.experiments.workload].parts:
    if part.needs_all_gpus and part.num_gpus > num_gpus:
      skip_reasons[part.name] = 'requires {} GPU(s), this machine has {}'.format(
          part.num_gpus, num_gpus or 'none')
      continue
    results = (_read_results(run_dir.path, part)
               or _run_part(settings, part, num_gpus, run_child, part_errors))
    if results is not None:
      part_results[part.name] = results
  result = ledger.write_ledger(settings.run, settings.experiments.workload, part_results,
                               skip_reasons, part_errors, _describe_machine())
  page.write_page_of_finished_run(settings.run.model_dir, settings.reporting)
  if part_errors and not part_results:
    raise UserError('no part of the workload succeeded', next(iter(part_errors.values())),
                    'see the logs in ' + run_dir.path, result)
  return result


def _run_part(settings: Settings, part: WorkloadPart, num_gpus: int, run_child: RunChild,
              part_errors: Dict[str, str]) -> Optional[RunResults]:
  """Runs a part and returns its results, or adds its error to `part_errors`."""
  run_dir = RunDir(settings.run.model_dir)
  arguments = part_arguments(part, settings, num_gpus)
  _LOG.info('running part %s: %s', part.name, ' '.join(arguments))
  child = run_child(arguments, _part_file(run_dir.path, part, 'log'))
  if child.error is not None:
    _LOG.warning('part %s failed: %s', part.name, child.error)
    part_errors[part.name] = child.error
    return None
  folder = run_dir.path_to(part.folder)
  results = {}
  for name, file in (('throughput', throughput.THROUGHPUT_FILE),
                     ('evaluation', evaluation.EVALUATION_FILE)):
    with open(os.path.join(folder, file), encoding='utf-8') as content:
      results[name] = json.load(content)
  # The next part may resume in the same folder and overwrite both files, so they are copied.
  atomic.write_json(_part_file(settings.run.folder, part, 'json'), results)
  return results


def part_arguments(part: WorkloadPart, settings: Settings, num_gpus: int) -> Sequence[str]:
  """Returns the arguments for the run of a part.

  The order is: the flagfile, the flags of the part, the user's flags. Later flags override.

  Args:
    part: part to run.
    settings: settings of the mode, with the user's flags, which override the flags of the part.
    num_gpus: number of GPUs of this machine.
  """
  flags = dict(part.flags)
  if settings.devices.num_gpus >= 0 or settings.devices.num_cpu_replicas:
    # The user has chosen the devices.
    flags.pop('num_cpu_replicas', None)
  elif num_gpus >= part.num_gpus:  # This machine has the GPUs of the published run.
    flags.pop('num_cpu_replicas', None)
    flags['num_gpus'] = part.num_gpus
  flags['model_dir'] = os.path.join(str(settings.run.model_dir), part.folder)
  return (['--flagfile=' + os.path.join(paths.CONFIGS_DIR, part.flagfile + '.flags')]
          + ['--{}={}'.format(name, value) for name, value in flags.items()]
          + [argument for argument in settings_lib.to_arguments(settings)
             if argument.partition('=')[0] not in ('--mode', '--workload', '--model_dir')])


def _read_results(folder: str, part: WorkloadPart) -> Optional[RunResults]:
  """Returns the results of a part if it is already complete, else None."""
  def parse(file: BinaryIO) -> RunResults:
    results: RunResults = stored.parse_json(file)
    for figure in part.figures:  # Raises a KeyError if a key is missing.
      figure.measure(results)
    return results

  results = stored.load_or_warn(_part_file(folder, part, 'json'), parse, 'the part runs again')
  if results is None:
    return None
  _LOG.info('part %s is already complete', part.name)
  return results


def _part_file(folder: str, part: WorkloadPart, extension: str) -> str:
  return os.path.join(folder, '{}.{}'.format(part.name, extension))


def _describe_machine() -> str:
  return '{} ({} cores)'.format(machine.read_cpu_property('model name') or 'an unknown CPU',
                                threads.available_cores())
