"""From the runs of a sweep to a table, `scaling.json` and `scaling.csv`."""

import csv
import io
import os
import statistics
from typing import Any, Dict, Iterator, List, Optional, Sequence

from estimator_train.benchmarking import sweep
from estimator_train.benchmarking.sweep import Outcome
from estimator_train.files import atomic
from estimator_train.run_dir.run_files import RunDir
from estimator_train.settings import Settings, groups

FILE, CSV_FILE = 'scaling.json', 'scaling.csv'
_NOTE = ('CPU replicas share the same cores, so no speed-up is to be expected of them: the figures '
         'show what replicas cost, not what more devices bring')
_WORKERS_NOTE = ('each worker is on {} core(s) of its own, whatever their number, so one worker is '
                 'as fast as it is beside others, and slower than with all cores')
_SHARED_NOTE = ('the workers share a single core, so no speed-up is to be expected of them: the '
                'figures show what workers cost')


def write(settings: Settings, outcomes: Sequence[Outcome]) -> Dict[str, Any]:
  """Prints the table, writes both files, and returns the content of `scaling.json`."""
  run_dir = RunDir(settings.model_dir)
  result = summarize(settings, outcomes)
  for line in _in_words(result):
    print(line)
  atomic.write_text(run_dir.file(CSV_FILE), _csv(result['table']))
  atomic.write_json(run_dir.file(FILE), result)
  return result


def summarize(settings: Settings, outcomes: Sequence[Outcome]) -> Dict[str, Any]:
  """Works out the table; what cannot be told is None.

  Args:
    settings: of the sweep.
    outcomes: of all its points.
  """
  unit = outcomes[0].point.unit
  on_gpus = unit == sweep.GPU or (unit == sweep.WORKER and settings.num_gpus > 0)
  cores = None if unit != sweep.WORKER or on_gpus else sweep.cpu_workers()[1]
  # Of the most: the devices of the others are among them.
  widest = max((outcome for outcome in outcomes if outcome.figures is not None),
               key=lambda outcome: outcome.point.count, default=None)
  figures: Dict[str, Any] = (widest and widest.figures) or {}
  return {
      'mode': settings.mode, 'model_dir': settings.model_dir, 'scale_over': settings.scale_over,
      'device_kind': _device_kind(unit, on_gpus), 'note': _note(unit, cores),
      'cores_per_worker': cores,
      'table': _table(settings, outcomes), 'failures': _failures(settings[groups.Run], outcomes),
      'dataset': settings.dataset, 'model': settings.model,
      'distribution_strategy': settings.distribution_strategy, 'devices': figures.get('devices'),
      'tensorflow_version': figures.get('tensorflow_version'), 'batch_size': settings.batch_size,
      'repeats': settings.repeats, 'steps': sweep.train_steps(settings),
      'warmup_steps': settings.throughput_warmup_steps,
  }


def _device_kind(unit: str, on_gpus: bool) -> str:
  if on_gpus:
    return 'gpu'
  return 'cpu' if unit == sweep.WORKER else 'cpu (logical)'


def _note(unit: str, cores: Optional[int]) -> Optional[str]:
  if unit == sweep.CPU:
    return _NOTE
  if cores is None:
    return None
  return _WORKERS_NOTE.format(cores) if cores else _SHARED_NOTE


def _table(settings: Settings, outcomes: Sequence[Outcome]) -> List[Dict[str, Any]]:
  rows = []
  units = settings.scale_over
  for scaling in (sweep.WEAK, sweep.STRONG):
    for kind in (sweep.REAL, sweep.SYNTHETIC):
      of_this_kind = [outcome for outcome in outcomes if outcome.point.input == kind
                      and outcome.point.scaling in (scaling, sweep.BOTH)]
      alone: Optional[float] = None
      for count in sorted({outcome.point.count for outcome in of_this_kind}):
        of_this_row = [outcome for outcome in of_this_kind if outcome.point.count == count]
        row: Dict[str, Any] = {
            'scaling': scaling, 'input': kind, units: count,
            'global_batch_size': sweep.global_batch_size(of_this_row[0].point,
                                                         settings[groups.Optimizer])}
        row.update(_rates(of_this_row))
        if count == 1:
          alone = row['examples_per_sec']
        rate = row['examples_per_sec']
        speed_up = rate / alone if rate and alone else None
        row.update(speed_up=speed_up, efficiency=speed_up and speed_up / count)
        row.update(_others(of_this_row))
        rows.append(row)
  return rows


def _rates(outcomes: Sequence[Outcome]) -> Dict[str, Any]:
  """Returns the rates of runs of the same point, without the pauses of a run."""
  rates = [outcome.figures['steady_examples_per_sec'] for outcome in outcomes
           if outcome.figures is not None]
  median = statistics.median(rates) if rates else None
  return {'runs': len(rates), 'failed': len(outcomes) - len(rates), 'examples_per_sec': median,
          'min': min(rates, default=None), 'max': max(rates, default=None),
          # One run has none that is known.
          'spread': (max(rates) - min(rates)) / median if median and len(rates) > 1 else None}


def _others(outcomes: Sequence[Outcome]) -> Dict[str, Any]:
  shares = [(outcome.figures.get('shares') or {}).get('input') for outcome in outcomes
            if outcome.figures is not None]
  told = [share for share in shares if share is not None]
  errors = [outcome.error for outcome in outcomes if outcome.error is not None]
  return {'input_share': statistics.median(told) if told else None,
          'error': errors[0] if errors else None}


def _failures(settings: groups.Run, outcomes: Sequence[Outcome]) -> List[Dict[str, Any]]:
  return [{'point': outcome.point.name, 'repeat': outcome.point.repeat, 'code': outcome.code,
           'error': outcome.error,
           'log': os.path.join(sweep.folder(outcome.point, settings), sweep.LOG_FILE)}
          for outcome in outcomes if outcome.error is not None]


def _csv(rows: Sequence[Dict[str, Any]]) -> str:
  text = io.StringIO()
  writer = csv.DictWriter(text, list(rows[0]), lineterminator='\n')
  writer.writeheader()
  writer.writerows(rows)
  return text.getvalue()


def _in_words(result: Dict[str, Any]) -> Iterator[str]:
  units = result['scale_over']
  yield '{} on {}: {}, {} steps a run, {} of them warm-up; {} on {}{}'.format(
      result['model'], result['dataset'], result['distribution_strategy'], result['steps'],
      result['warmup_steps'], units, ', '.join(result['devices'] or [result['device_kind']]),
      ' each' if units == 'workers' else '')
  yield _line('scaling', 'input', units, 'batch', 'runs', 'examples/sec',
              'slowest to fastest', 'spread', 'speed-up', 'efficiency', 'waits for input')
  for row in result['table']:
    yield _line(
        row['scaling'], row['input'], row[units], row['global_batch_size'], row['runs'],
        _told('{:,.0f}', row['examples_per_sec']),
        _told('{:,.0f} to {:,.0f}', row['min'], row['max']), _told('{:.1%}', row['spread']),
        _told('{:.2f}', row['speed_up']), _told('{:.0%}', row['efficiency']),
        _told('{:.1%}', row['input_share']))
  for failure in result['failures']:
    yield '{point} failed: {error}'.format(**failure)
  if result['note']:
    yield result['note']


def _line(*cells: Any) -> str:
  return '{:8}{:10}{:>9}{:>8}{:>6}{:>14}{:>22}{:>9}{:>10}{:>12}{:>17}'.format(*cells)


def _told(form: str, *figures: Optional[float]) -> str:
  return '-' if None in figures else form.format(*figures)
