"""Compares training runs, based on the files that this package or any Estimator has written."""

import os
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from estimator_train.errors import UserError
from estimator_train.reports import learning_curves, page_data
from estimator_train.reports.number_format import (
  MISSING,
  format_number,
  format_percent,
  format_quantity,
  format_ratio,
  format_secs,
)
from estimator_train.reports.page_data import PageData


class Run(NamedTuple):
  """A training run and the contents of its files.

  Attributes:
    name: the end of the path of the folder, long enough to distinguish the runs.
    folder: the model_dir.
    data: the contents of the files. If throughput.json or evaluation.json is missing, `data` has
      the figures in the event files instead.
  """
  name: str
  folder: str
  data: PageData

  @property
  def examples_per_sec(self) -> Optional[float]:
    """The rate in throughput.json; None if unknown."""
    return self.data.throughput.get('examples_per_sec')

  @property
  def steps_per_sec(self) -> Optional[float]:
    """The rate in throughput.json, else the rate of the logged steps; None if unknown."""
    return self.data.throughput.get('steps_per_sec')


def read_runs(folders: Sequence[str]) -> List[Run]:
  """Reads the runs in several folders.

  Raises:
    UserError: a folder does not exist, or has no run.
  """
  return [_read_run(name, folder) for name, folder in zip(_short_names(folders), folders)]


def _read_run(name: str, folder: str) -> Run:
  if not os.path.isdir(folder):
    raise UserError('--runs must be existing folders', folder,
                    'give the model_dir of a run, or the report_dir of a TimeHistory')
  data = page_data.read_page_data(folder)
  if learning_curves.has_event_files(folder):
    data = data._replace(curves=learning_curves.read_learning_curves(folder))
  if not (data.throughput or data.evaluation or any(data.curves.values())):
    raise UserError('--runs must be folders of training runs',
                    folder + ' has neither throughput.json nor event files with a loss',
                    'give the model_dir of a run, or the report_dir of a TimeHistory')
  if not data.evaluation:
    data = data._replace(evaluation=learning_curves.read_last_evaluation(folder))
  if not data.throughput:
    data = data._replace(throughput=_logged_throughput(folder))
  return Run(name, folder, data)


def _logged_throughput(folder: str) -> Dict[str, Any]:
  """Returns the rate of the logged steps, by its key in throughput.json; empty if unknown."""
  rate = learning_curves.read_steps_per_sec(folder)
  return {} if rate is None else {'steps_per_sec': rate}


def _short_names(folders: Sequence[str]) -> List[str]:
  """Returns the ends of the paths, which are just long enough to distinguish the folders."""
  paths = [os.path.abspath(folder).split(os.sep) for folder in folders]
  for count in range(1, max(map(len, paths)) + 1):
    names = [os.sep.join(parts[-count:]) for parts in paths]
    if len(set(names)) == len({os.sep.join(parts) for parts in paths}):
      break
  return names


def table(runs: Sequence[Run]) -> Tuple[List[str], List[List[str]]]:
  """Returns the header and the rows of the comparison, one row per run.

  Columns that are unknown for all runs are left out. A ratio compares the rate of a
  run with the rate of the first run.
  """
  columns = [
      ('run', [run.name for run in runs]),
      ('model', [str(run.data.throughput.get('model') or MISSING) for run in runs]),
      ('strategy', [str(run.data.throughput.get('distribution_strategy') or MISSING)
                    for run in runs]),
      ('replicas', [format_number(run.data.throughput.get('num_replicas')) for run in runs]),
      ('devices', [', '.join(run.data.throughput.get('devices') or [MISSING]) for run in runs]),
      ('global batch', [format_number(run.data.throughput.get('global_batch_size'))
                        for run in runs]),
      ('examples/sec', [format_number(run.examples_per_sec) for run in runs]),
      ('ratio', _ratios([run.examples_per_sec for run in runs])),
      ('steps/sec', [format_number(run.steps_per_sec) for run in runs]),
      ('ratio', _ratios([run.steps_per_sec for run in runs])),
      ('step, median', [format_secs((run.data.throughput.get('step_secs') or {}).get('p50'))
                        for run in runs]),
      ('waiting for input', [format_percent((run.data.throughput.get('shares') or {}).get('input'))
                             for run in runs]),
      ('last step', [format_number(_last_step(run)) for run in runs]),
      ('training loss', [format_number(_last_value(run, 'train_loss')) for run in runs]),
      ('accuracy', [format_percent(run.data.evaluation.get('accuracy')) for run in runs]),
      ('average loss', [format_number(run.data.evaluation.get('average_loss')) for run in runs]),
      ('TensorFlow', [str(run.data.throughput.get('tensorflow_version') or MISSING)
                      for run in runs]),
  ]
  known = [(title, cells) for title, cells in columns if set(cells) != {MISSING}]
  return [title for title, _ in known], [list(row) for row in zip(*(cells for _, cells in known))]


def _ratios(rates: Sequence[Optional[float]]) -> List[str]:
  first = rates[0]
  return [format_ratio(rate / first) if rate and first else MISSING for rate in rates]


def _last_step(run: Run) -> Optional[int]:
  step = run.data.throughput.get('global_step')
  curve = run.data.curves.get('train_loss')
  return step if step is not None else curve[-1][0] if curve else None


def _last_value(run: Run, name: str) -> Optional[float]:
  curve = run.data.curves.get(name)
  return curve[-1][1] if curve else None


def describe_rate(run: Run) -> str:
  """Returns the rate of a run with its unit."""
  if run.examples_per_sec is not None:
    return format_quantity(run.examples_per_sec, 'examples/sec')
  return format_quantity(run.steps_per_sec, 'steps/sec')
