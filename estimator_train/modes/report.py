"""`--mode=report`: writes the report page of an existing run, or a comparison of several runs.

This package or any other Estimator program may have written the runs.
"""

import os
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

from estimator_train.errors import UserError
from estimator_train.reports import learning_curves, page
from estimator_train.reports.page_content import format_percent, format_secs
from estimator_train.run_dir import RunDir
from estimator_train.settings import Settings, data_folder
from estimator_train.settings.flags import OUTPUT_FLAGS
from estimator_train.system.formatting import MISSING, format_count, format_number, format_ratio
from estimator_train.system.summary import log_summary, make_browser_command

# In runs of earlier versions, these flags show with which examples they were evaluated.
_FLAGS_OF_TEST_EXAMPLES = ('dataset', 'eval_pattern', 'validation_fraction')


def run(settings: Settings, run_dir: RunDir) -> Dict[str, Any]:
  """Returns the result of the mode: the path of the page, and the main figures of each run."""
  model_dir, folders = run_dir.path, settings.reporting.runs
  if len(folders) > 1 and any(os.path.realpath(model_dir) == os.path.realpath(folder)
                              for folder in folders):
    raise UserError('--model_dir must not be one of the compared runs, since its page would be '
                    'lost', '--model_dir=' + model_dir, 'give another folder')
  runs = [_read_run(name, folder) for name, folder in zip(_make_short_names(folders), folders)]
  run_dir.make()
  if len(runs) == 1:
    path = page.write_page(runs[0].folder, runs[0].data, model_dir)
  else:
    path = page.write_comparison(runs, _make_table(runs), model_dir)
  log_summary('wrote the page of {}'.format(
      runs[0].folder if len(runs) == 1 else format_count(len(runs), 'run')),
              [('report', path)], make_browser_command(path))
  return {'mode': settings.run.mode, 'model_dir': model_dir, 'page': path, 'runs': [{
      'folder': compared_run.folder,
      'examples_per_sec': compared_run.rates['examples/sec'],
      'steps_per_sec': compared_run.rates['steps/sec'],
      'accuracy': compared_run.data.evaluation.get('accuracy'),
      'average_loss': compared_run.data.evaluation.get('average_loss'),
  } for compared_run in runs]}


def _read_run(name: str, folder: str) -> page.ComparedRun:
  """Reads the figures of a run from its JSON files or, if one is missing, from the event files."""
  if not os.path.isdir(folder):
    raise UserError('--runs must be existing folders', folder,
                    'give the model_dir of a run, or the report_dir of a TimeHistory')
  data = page.read_page_data(folder)
  if learning_curves.has_event_files(folder):
    data = data._replace(curves=learning_curves.read_learning_curves(folder))
  if not (data.throughput or data.evaluation or any(data.curves.values())):
    raise UserError('--runs must be folders of training runs',
                    folder + ' has neither throughput.json nor event files with a loss',
                    'give the model_dir of a run, or the report_dir of a TimeHistory')
  if not data.evaluation:
    data = data._replace(evaluation=learning_curves.read_last_evaluation(folder))
  steps_per_sec = None if data.throughput else learning_curves.read_steps_per_sec(folder)
  if steps_per_sec is not None:
    data = data._replace(throughput={'steps_per_sec': steps_per_sec})
  return page.ComparedRun(name, folder, data)


def _make_short_names(folders: Sequence[str]) -> List[str]:
  """Returns the ends of the paths, with as few components as are necessary to distinguish them."""
  paths = [os.path.abspath(folder).split(os.sep) for folder in folders]
  for count in range(1, max(map(len, paths)) + 1):
    names = [os.sep.join(components[-count:]) for components in paths]
    if len(set(names)) == len({os.sep.join(components) for components in paths}):
      break
  return names


def _make_table(runs: Sequence[page.ComparedRun]) -> List[page.ComparisonRow]:
  """Returns the rows whose value is known for at least one run."""
  recorded_flags = [run.data.flags for run in runs if run.data.flags]
  differing_flags = [
      name for name in (recorded_flags or [{}])[0]
      if name not in ('model_dir', *OUTPUT_FLAGS)
      and len({flags.get(name) for flags in recorded_flags}) > 1
      and not all(flags.get(name) is None or name in data_folder.list_found_patterns(flags)
                  for flags in recorded_flags)]
  are_comparable = _have_same_test_examples(runs)
  columns = [_make_column(run, runs[0], differing_flags, are_comparable) for run in runs]
  rows = [page.ComparisonRow(cells[0].title, [cell.text for cell in cells],
                             _find_best([cell.value for cell in cells], cells[0].larger_is_better))
          for cells in zip(*columns)]
  return [row for row in rows if any(cell != MISSING for cell in row.cells)]


def _have_same_test_examples(runs: Sequence[page.ComparedRun]) -> bool:
  """Returns False only if some of the runs were evaluated with other examples."""
  evaluated = [run.data for run in runs if run.data.evaluation]
  digests = {data.evaluation.get('examples_digest') for data in evaluated}
  if None in digests:
    return len({tuple(data.flags.get(name) for name in _FLAGS_OF_TEST_EXAMPLES)
                for data in evaluated if data.flags}) < 2
  return len(digests) < 2


def _find_best(values: Sequence[Optional[float]], larger_is_better: Optional[bool]) -> List[bool]:
  """Returns which of the values are the best; none if all known values are equal.

  Args:
    larger_is_better: None if no value is better than another one.
  """
  known_values = {value for value in values if value is not None}
  if larger_is_better is None or len(known_values) < 2:
    return [False] * len(values)
  best = max(known_values) if larger_is_better else min(known_values)
  return [value == best for value in values]


class _Cell(NamedTuple):
  """A cell of the table, with the title of its row.

  Attributes:
    value: the number that is compared with those of other runs; None if it is unknown.
    larger_is_better: None if no value is better than another one.
  """
  title: str
  text: str
  value: Optional[float] = None
  larger_is_better: Optional[bool] = None


def _make_column(run: page.ComparedRun, first_run: page.ComparedRun,
                 differing_flags: Sequence[str], are_comparable: bool) -> List[_Cell]:
  """Returns the cells of a run, with the ratios of its rates to those of the first run.

  A condition that is the value of a flag is omitted if the flag has a row.

  Args:
    are_comparable: whether a higher accuracy or a lower loss than that of another run is better.
  """
  throughput, evaluation = run.data.throughput, run.data.evaluation
  last_step, last_loss = (run.data.curves.get('train_loss') or [(None, None)])[-1]
  cells = [_Cell(title, format_value(value), value, larger_is_better if are_comparable else None)
           for title, format_value, value, larger_is_better in (
               ('accuracy', format_percent, evaluation.get('accuracy'), True),
               ('ROC AUC', format_number, evaluation.get('roc_auc'), True),
               ('average loss', format_number, evaluation.get('average_loss'), False),
               ('training loss', format_number, last_loss, False))]
  cells += [_Cell('--' + name, run.data.flags.get(name) or MISSING) for name in differing_flags]
  for unit, rate in run.rates.items():
    base_rate = first_run.rates[unit]
    ratio = format_ratio(rate / base_rate) if rate and base_rate else ''
    cells.append(_Cell(unit, '{} ({})'.format(format_number(rate), ratio)
                       if ratio and run is not first_run else format_number(rate), rate, True))
  step_secs = (throughput.get('step_secs') or {}).get('p50')
  cells += [
      _Cell('step, median', format_secs(step_secs), step_secs, False),
      _Cell('waiting for input', format_percent((throughput.get('shares') or {}).get('input'))),
      _Cell('last step', format_number(throughput.get('global_step', last_step)))]
  conditions = (
      ('model', 'model', str(throughput.get('model') or MISSING)),
      ('distribution_strategy', 'strategy',
       str(throughput.get('distribution_strategy') or MISSING)),
      ('', 'replicas', format_number(throughput.get('num_replicas'))),
      ('', 'devices', ', '.join(throughput.get('devices') or [MISSING])),
      ('batch_size', 'global batch', format_number(throughput.get('global_batch_size'))),
      ('', 'machine', str(throughput.get('machine') or MISSING)),
      ('', 'TensorFlow', str(throughput.get('tensorflow_version') or MISSING)))
  return cells + [_Cell(title, text) for flag, title, text in conditions
                  if flag not in differing_flags]
