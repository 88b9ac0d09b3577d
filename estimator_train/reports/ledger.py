"""Writes the ledger, a table of the published and the measured figures of a workload.

The ledger is written as `ledger.json` and as `ledger.md`.
"""

from typing import Any, Dict, Iterator, List, Mapping, Optional

from estimator_train.configs.workloads import WORKLOADS, Figure, RunResults, WorkloadPart
from estimator_train.run_dir.run_files import RunDir
from estimator_train.settings import groups
from estimator_train.system import atomic

LEDGER_FILE, MARKDOWN_FILE = 'ledger.json', 'ledger.md'
NOT_MEASURED = 'not measured here'
FAILED = 'failed'
# The columns of the table: (key in a row of ledger.json, title in ledger.md).
_COLUMNS = (('what', 'figure'), ('published', 'published'), ('published_conditions', 'conditions'),
            ('measured', 'measured'), ('conditions', 'conditions here'), ('ratio', 'ratio'),
            ('why', 'why they differ'))


def write_ledger(settings: groups.Run, workload: str, part_results: Mapping[str, RunResults],
                 skip_reasons: Mapping[str, str], part_errors: Mapping[str, str],
                 machine: str) -> Dict[str, Any]:
  """Prints and writes the ledger, and returns the contents of `ledger.json`.

  The keys of the three mappings are names of parts. Each part of the workload is in one mapping.

  Args:
    settings: `--mode` and `--model_dir`.
    workload: name of the workload.
    part_results: the results of each completed part.
    skip_reasons: the reason for each part that was not run.
    part_errors: the error of each part that failed.
    machine: description of the machine.
  """
  run_dir = RunDir(settings.model_dir)
  rows = list(_make_rows(workload, part_results, skip_reasons, part_errors))
  result = {'mode': settings.mode, 'model_dir': settings.model_dir, 'workload': workload,
            'machine': machine, 'rows': rows}
  table = list(_format_markdown(workload, machine, rows))
  for line in table:
    print(line)
  atomic.write_text(run_dir.path_to(MARKDOWN_FILE), '\n'.join(table) + '\n')
  atomic.write_json(run_dir.path_to(LEDGER_FILE), result)
  return result


def _make_rows(workload_name: str, part_results: Mapping[str, RunResults],
               skip_reasons: Mapping[str, str],
               part_errors: Mapping[str, str]) -> Iterator[Dict[str, Optional[str]]]:
  """Yields one row per figure, first the figures of the parts, then the combined figures."""
  workload = WORKLOADS[workload_name]
  for part in workload.parts:
    for figure in part.figures:
      if part.name in part_results:
        results = part_results[part.name]
        yield _make_row(figure, figure.measure(results), _describe_conditions(results),
                        _explain_difference(figure, part, results))
      elif part.name in part_errors:
        yield _make_row(figure, None, None, part_errors[part.name], FAILED)
      else:
        yield _make_row(figure, None, None, skip_reasons[part.name])
  for figure in workload.combined_figures:
    if len(part_results) == len(workload.parts):
      yield _make_row(figure, figure.measure(part_results), 'the runs above', figure.caveat)
    else:
      yield _make_row(figure, None, None, 'requires the results of all runs')


def _make_row(figure: Figure, measured: Optional[float], conditions: Optional[str],
              why: Optional[str], placeholder: str = NOT_MEASURED) -> Dict[str, Optional[str]]:
  """Returns a row of ledger.json.

  Args:
    figure: the published figure.
    measured: the measured figure; None if the figure was not measured.
    conditions: the conditions of the measurement.
    why: the reason why the figures differ or why there is no measurement.
    placeholder: the text of the column `measured` if there is no measurement.
  """
  return {'what': figure.name, 'published': figure.published,
          'published_conditions': figure.conditions or None,
          'measured': placeholder if measured is None else figure.number_format.format(measured),
          'conditions': conditions, 'ratio': _ratio(figure, measured), 'why': why or None}


def _ratio(figure: Figure, measured: Optional[float]) -> Optional[str]:
  """Returns measured ÷ published as text; None if one of the numbers is unknown.

  If a range was published, `measured` is divided by the closest value within the range.
  """
  if measured is None or figure.published_range is None:
    return None
  low, high = figure.published_range
  return '{:.3g}'.format(measured / min(max(measured, low), high))


def _describe_conditions(results: RunResults) -> str:
  """Describes the devices, the batch size and the last step of the measured run."""
  throughput = results['throughput']
  return '{} replica{} on {}, {} examples per replica, step {:,}'.format(
      throughput['num_replicas'], '' if throughput['num_replicas'] == 1 else 's',
      ', '.join(throughput['devices']), throughput['per_replica_batch_size'],
      throughput['global_step'])


def _explain_difference(figure: Figure, part: WorkloadPart, results: RunResults) -> str:
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


def _format_markdown(workload: str, machine: str,
                     rows: List[Dict[str, Optional[str]]]) -> Iterator[str]:
  yield '`{}` on {}'.format(workload, machine)
  yield ''
  yield _format_row(title for _, title in _COLUMNS)
  yield _format_row('---' for _ in _COLUMNS)
  for row in rows:
    yield _format_row((row[key] or '').replace('|', '\\|') for key, _ in _COLUMNS)


def _format_row(cells: Any) -> str:
  return '| ' + ' | '.join(cells) + ' |'
