"""`ledger.json` and `ledger.md`: what was published of a workload beside what was measured."""

from typing import Any, Dict, Iterator, List, Mapping, Optional

from estimator_train.configs.workloads import WORKLOADS, Figure, Part, Ran
from estimator_train.files import atomic
from estimator_train.run_dir.run_files import RunDir
from estimator_train.settings import groups

FILE, MARKDOWN_FILE = 'ledger.json', 'ledger.md'
NOT_MEASURED = 'not measured here'
FAILED = 'failed'
_COLUMNS = (('what', 'figure'), ('published', 'published'), ('published_conditions', 'conditions'),
            ('measured', 'measured'), ('conditions', 'conditions here'), ('ratio', 'ratio'),
            ('why', 'why they differ'))


def write(settings: groups.Run, workload: str, runs: Mapping[str, Ran], skipped: Mapping[str, str],
          failed: Mapping[str, str], machine: str) -> Dict[str, Any]:
  """Prints the table, writes both files, and returns the content of `ledger.json`.

  Args:
    settings: of the run.
    workload: its name.
    runs: what the parts left, by their names.
    skipped: why the others were not run.
    failed: why those that were run gave nothing.
    machine: that they ran on.
  """
  run_dir = RunDir(settings.model_dir)
  rows = list(_rows(workload, runs, skipped, failed))
  result = {'mode': settings.mode, 'model_dir': settings.model_dir, 'workload': workload,
            'machine': machine, 'rows': rows}
  table = list(_markdown(workload, machine, rows))
  for line in table:
    print(line)
  atomic.write_text(run_dir.file(MARKDOWN_FILE), '\n'.join(table) + '\n')
  atomic.write_json(run_dir.file(FILE), result)
  return result


def _rows(name: str, runs: Mapping[str, Ran], skipped: Mapping[str, str],
          failed: Mapping[str, str]) -> Iterator[Dict[str, Optional[str]]]:
  workload = WORKLOADS[name]
  for part in workload.parts:
    for figure in part.figures:
      if part.name in runs:
        ran = runs[part.name]
        yield _row(figure, figure.measure(ran), _conditions(ran),
                   _why(figure, part, ran))
      elif part.name in failed:
        yield _row(figure, None, None, failed[part.name], FAILED)
      else:
        yield _row(figure, None, None, skipped[part.name])
  for figure in workload.across:
    if len(runs) == len(workload.parts):
      yield _row(figure, figure.measure(runs), 'the runs above', figure.note)
    else:
      yield _row(figure, None, None, 'not all runs that it takes were made')


def _row(figure: Figure, measured: Optional[float], conditions: Optional[str],
         why: Optional[str], instead: str = NOT_MEASURED) -> Dict[str, Optional[str]]:
  return {'what': figure.what, 'published': figure.published,
          'published_conditions': figure.conditions or None,
          'measured': instead if measured is None else figure.text.format(measured),
          'conditions': conditions, 'ratio': _ratio(figure, measured), 'why': why or None}


def _ratio(figure: Figure, measured: Optional[float]) -> Optional[str]:
  """Returns measured over published; of a range, to its nearer end, or 1 within it."""
  if measured is None or figure.value is None:
    return None
  low, high = figure.value
  return '{:.3g}'.format(measured / min(max(measured, low), high))


def _conditions(ran: Ran) -> str:
  told = ran['throughput']
  return '{} replica{} on {}, {} per replica, step {:,}'.format(
      told['num_replicas'], '' if told['num_replicas'] == 1 else 's', ', '.join(told['devices']),
      told['per_replica_batch_size'], told['global_step'])


def _why(figure: Figure, part: Part, ran: Ran) -> str:
  reasons = []
  devices = ran['throughput']['devices']
  if figure.of_speed and (len(devices) != part.gpus or 'gpu' not in devices[0]):
    reasons.append('{} GPU{} there, {} here'.format(
        part.gpus, '' if part.gpus == 1 else 's',
        '{} GPU(s)'.format(len(devices)) if 'gpu' in devices[0] else 'CPU cores'))
  elif figure.of_speed:
    reasons.append('other GPUs')
  if figure.note:
    reasons.append(figure.note)
  return '; '.join(reasons)


def _markdown(name: str, machine: str, rows: List[Dict[str, Optional[str]]]) -> Iterator[str]:
  yield '`{}` on {}'.format(name, machine)
  yield ''
  yield _line(title for _, title in _COLUMNS)
  yield _line('---' for _ in _COLUMNS)
  for row in rows:
    yield _line((row[key] or '').replace('|', '\\|') for key, _ in _COLUMNS)


def _line(cells: Any) -> str:
  return '| ' + ' | '.join(cells) + ' |'
