"""`--mode=reproduce`: runs a published workload, and compares measured and published figures.

The comparison is called the ledger, and is written as `ledger.json` and as `ledger.md`.
"""

import functools
import json
import logging
import os
import re
from typing import Any, BinaryIO, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence

from estimator_train import settings as settings_lib
from estimator_train.errors import UserError
from estimator_train.reports import evaluation, file_checks, page, throughput
from estimator_train.run_dir import RunDir
from estimator_train.settings import Settings, workloads
from estimator_train.settings.flags import OUTPUT_FLAGS
from estimator_train.settings.workloads import WORKLOADS, PublishedValue, RunResults, WorkloadPart
from estimator_train.system import child_process, machine, storage, tensorflow_probe

_LOG = logging.getLogger('estimator_train')
LEDGER_FILE, MARKDOWN_FILE = 'ledger.json', 'ledger.md'
NOT_MEASURED = 'not measured here'
FAILED = 'failed'
# The columns of the table: (key in a row of ledger.json, title in ledger.md).
_COLUMNS = (('what', 'figure'), ('published', 'published'), ('published_conditions', 'conditions'),
            ('measured', 'measured'), ('conditions', 'conditions here'), ('ratio', 'ratio'),
            ('why', 'why they differ'))
# Flags that may differ when the mode is run again in the same model_dir.
_CHANGEABLE_FLAGS = ('model_dir', 'log_every_steps', *OUTPUT_FLAGS)
# The type of `child_process.run_program`. Its two arguments are the flags and the path of the log.
RunChild = Callable[[Sequence[str], str], child_process.ChildRun]


class PartOutcome(NamedTuple):
  """The results of a part of a workload, or why there are none.

  Attributes:
    results: throughput.json and evaluation.json of the run; None if it was not run, or failed.
    reason: why there are no results.
    placeholder: the text in place of the figures that were not measured.
  """
  results: Optional[RunResults]
  reason: str = ''
  placeholder: str = NOT_MEASURED


def run(settings: Settings, run_dir: RunDir, run_child: RunChild = child_process.run_program,
        count_gpus: Callable[[], int] = tensorflow_probe.count_gpus) -> Dict[str, Any]:
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
  run_dir.check_flags(settings, _CHANGEABLE_FLAGS)
  run_dir.make()
  run_dir.record_flags(settings)
  num_gpus = count_gpus()
  workload = WORKLOADS[settings.experiments.workload]
  outcomes = {part.name: _obtain_results(part, settings, num_gpus, run_child)
              for part in workload.parts}
  result = write_ledger(settings, outcomes)
  page.write_page_of_finished_run(run_dir.path, settings.reporting)
  errors = [outcome.reason for outcome in outcomes.values() if outcome.placeholder == FAILED]
  if errors and not any(outcome.results for outcome in outcomes.values()):
    raise UserError('no part of the workload succeeded', errors[0],
                    'see the logs in ' + run_dir.path, result)
  return result


def _obtain_results(part: WorkloadPart, settings: Settings, num_gpus: int,
                    run_child: RunChild) -> PartOutcome:
  """Returns the results of a part of an earlier run, or else runs the part if this machine can."""
  if part.needs_all_gpus and part.num_gpus > num_gpus:
    return PartOutcome(None, 'requires {} GPU(s), this machine has {}'.format(
        part.num_gpus, num_gpus or 'none'))
  run_dir = RunDir(settings.run.model_dir)
  results = storage.load_or_warn(_part_file(run_dir.path, part, 'json'),
                                 functools.partial(_parse_results, part), 'the part runs again')
  if results is not None:
    _LOG.info('part %s is already complete', part.name)
    return PartOutcome(results)
  arguments = part_arguments(part, settings, num_gpus)
  _LOG.info('running part %s: %s', part.name, ' '.join(arguments))
  child = run_child(arguments, _part_file(run_dir.path, part, 'log'))
  if child.error is not None:
    _LOG.warning('part %s failed: %s', part.name, child.error)
    return PartOutcome(None, child.error, FAILED)
  results = {}
  for name, file in (('throughput', throughput.THROUGHPUT_FILE),
                     ('evaluation', evaluation.EVALUATION_FILE)):
    with open(run_dir.path_to(part.folder, file), encoding='utf-8') as content:
      results[name] = json.load(content)
  # The next part may resume in the same folder and overwrite both files, so they are copied.
  storage.write_json(_part_file(run_dir.path, part, 'json'), results)
  return PartOutcome(results)


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
  return (['--flagfile=' + os.path.join(workloads.FOLDER, part.flagfile + '.flags')]
          + ['--{}={}'.format(name, value) for name, value in flags.items()]
          + [argument for argument in settings_lib.to_arguments(settings)
             if argument.partition('=')[0] not in ('--mode', '--workload', '--model_dir')])


def _parse_results(part: WorkloadPart, file: BinaryIO) -> RunResults:
  results: RunResults = storage.parse_json(file, file_checks.WORKLOAD_PART)
  for figure in part.figures:  # Raises an exception if a figure is missing, or null.
    _make_row(figure, float(figure.measure(results)), _describe_conditions(results),
              _explain_difference(figure, part, results))
  return results


def _part_file(folder: str, part: WorkloadPart, extension: str) -> str:
  return os.path.join(folder, '{}.{}'.format(part.name, extension))


def write_ledger(settings: Settings, outcomes: Dict[str, PartOutcome]) -> Dict[str, Any]:
  """Prints and writes the ledger, and returns the contents of `ledger.json`.

  Args:
    settings: settings of the mode.
    outcomes: the outcome of each part of the workload, by its name.
  """
  run_dir, workload = RunDir(settings.run.model_dir), str(settings.experiments.workload)
  rows = list(_make_rows(workload, outcomes))
  this_machine = machine.describe()
  result = {'mode': settings.run.mode, 'model_dir': run_dir.path, 'workload': workload,
            'machine': this_machine, 'rows': rows}
  table = list(_format_markdown(workload, this_machine, rows))
  for line in table:
    print(line)
  storage.write_text(run_dir.path_to(MARKDOWN_FILE), '\n'.join(table) + '\n')
  storage.write_json(run_dir.path_to(LEDGER_FILE), result)
  return result


def _make_rows(workload_name: str,
               outcomes: Dict[str, PartOutcome]) -> Iterator[Dict[str, Optional[str]]]:
  """Yields one row per figure, first the figures of the parts, then the combined figures."""
  workload = WORKLOADS[workload_name]
  part_results = {name: outcome.results for name, outcome in outcomes.items() if outcome.results}
  for part in workload.parts:
    results, reason, placeholder = outcomes[part.name]
    for figure in part.figures:
      if results is None:
        yield _make_row(figure, None, None, reason, placeholder)
      else:
        yield _make_row(figure, figure.measure(results), _describe_conditions(results),
                        _explain_difference(figure, part, results))
  for figure in workload.combined_figures:
    if len(part_results) == len(workload.parts):
      yield _make_row(figure, figure.measure(part_results), 'the runs above', figure.caveat)
    else:
      yield _make_row(figure, None, None, 'requires the results of all runs')


def _make_row(figure: PublishedValue, measured: Optional[float], conditions: Optional[str],
              reason: Optional[str], placeholder: str = NOT_MEASURED) -> Dict[str, Optional[str]]:
  """Returns a row of ledger.json.

  Args:
    figure: the published figure.
    measured: the measured figure; None if the figure was not measured.
    conditions: the conditions of the measurement.
    reason: the reason why the figures differ or why there is no measurement.
    placeholder: the text of the column `measured` if there is no measurement.
  """
  return {'what': figure.name, 'published': figure.published,
          'published_conditions': figure.conditions or None,
          'measured': placeholder if measured is None else figure.number_format.format(measured),
          'conditions': conditions, 'ratio': _ratio(figure, measured), 'why': reason or None}


def _ratio(figure: PublishedValue, measured: Optional[float]) -> Optional[str]:
  """Returns measured ÷ published as text; None if one of the numbers is unknown.

  If a range was published, `measured` is divided by the closest value within the range.
  """
  numbers = re.findall(r'[\d.]+', (figure.published or '').replace(',', ''))
  if measured is None or not numbers:
    return None
  low, high = float(numbers[0]), float(numbers[-1])
  return '{:.3g}'.format(measured / min(max(measured, low), high))


def _describe_conditions(results: RunResults) -> str:
  """Describes the devices, the batch size and the last step of the measured run."""
  throughput = results['throughput']
  return '{} replica{} on {}, {} examples per replica, step {:,}'.format(
      throughput['num_replicas'], '' if throughput['num_replicas'] == 1 else 's',
      ', '.join(throughput['devices']), throughput['per_replica_batch_size'],
      throughput['global_step'])


def _explain_difference(figure: PublishedValue, part: WorkloadPart, results: RunResults) -> str:
  """Returns the known reasons why the measured and the published figure differ."""
  reasons = []
  devices = results['throughput']['devices']
  if figure.depends_on_devices and (len(devices) != part.num_gpus or 'gpu' not in devices[0]):
    reasons.append('published on {} GPU{}, measured on {}'.format(
        part.num_gpus, '' if part.num_gpus == 1 else 's',
        '{} GPU(s)'.format(len(devices)) if 'gpu' in devices[0] else 'CPU cores'))
  elif figure.depends_on_devices:
    reasons.append('different GPUs')
  if figure.caveat:
    reasons.append(figure.caveat)
  return '; '.join(reasons)


def _format_markdown(workload: str, machine_name: str,
                     rows: List[Dict[str, Optional[str]]]) -> Iterator[str]:
  yield '`{}` on {}'.format(workload, machine_name)
  yield ''
  yield _format_row(title for _, title in _COLUMNS)
  yield _format_row('---' for _ in _COLUMNS)
  for row in rows:
    yield _format_row((row[key] or '').replace('|', '\\|') for key, _ in _COLUMNS)


def _format_row(cells: Any) -> str:
  return '| ' + ' | '.join(cells) + ' |'
