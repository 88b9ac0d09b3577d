"""Writes the report of a scaling sweep: `scaling.json`, `scaling.csv`, and a printed table."""

import csv
import io
import os
import statistics
from typing import Any, Dict, Iterator, List, Optional, Sequence

from estimator_train.modes.scaling import points, prediction
from estimator_train.modes.scaling.points import PointResult
from estimator_train.run_dir.run_files import RunDir
from estimator_train.settings import Settings
from estimator_train.system import atomic

JSON_FILE, CSV_FILE = 'scaling.json', 'scaling.csv'
_CPU_REPLICAS_NOTE = ('CPU replicas share the same cores, so no speed-up is expected: the '
                      'figures show the overhead of replicas, not the benefit of more devices')
_PINNED_WORKERS_NOTE = ('each worker is pinned to {} core(s), regardless of the number of workers, '
                        'so a single worker is slower than it would be on all cores')
_SHARED_CORE_NOTE = ('the workers share a single core, so no speed-up is expected: the figures '
                     'show the overhead of workers')


def write_scaling_report(settings: Settings, results: Sequence[PointResult]) -> Dict[str, Any]:
  """Prints the table, writes the JSON and CSV files, and returns the contents of `scaling.json`."""
  run_dir = RunDir(settings.run.model_dir)
  result = summarize(settings, results)
  for line in _format_table(result):
    print(line)
  atomic.write_text(run_dir.path_to(CSV_FILE), _format_csv(result['table']))
  atomic.write_json(run_dir.path_to(JSON_FILE), result)
  return result


def summarize(settings: Settings, results: Sequence[PointResult]) -> Dict[str, Any]:
  """Returns the contents of `scaling.json`. A figure that could not be measured is None.

  Args:
    settings: settings of the sweep.
    results: results of all points.
  """
  # The point with the most units uses all devices that the other points use.
  largest = max((result for result in results if result.figures is not None),
                key=lambda result: result.point.count, default=None)
  largest_figures: Dict[str, Any] = (largest and largest.figures) or {}
  return {
      'mode': settings.run.mode, 'model_dir': settings.run.model_dir,
      'scale_over': settings.experiments.scale_over,
      **_describe_devices(settings, results[0].point.unit),
      'table': _make_rows(settings, results),
      'predictions': prediction.predict(settings, results),
      'failures': [
          {'point': result.point.name, 'repeat': result.point.repeat, 'code': result.exit_code,
           'error': result.error,
           'log': os.path.join(result.point.folder(settings.run.folder), points.LOG_FILE)}
          for result in results if result.error is not None],
      'dataset': settings.data.dataset, 'model': settings.model.model,
      'distribution_strategy': settings.devices.distribution_strategy,
      'devices': largest_figures.get('devices'),
      'tensorflow_version': largest_figures.get('tensorflow_version'),
      'batch_size': settings.optimizer.batch_size, 'repeats': settings.experiments.repeats,
      'steps': points.steps_per_point(settings),
      'warmup_steps': settings.reporting.throughput_warmup_steps,
  }


def _describe_devices(settings: Settings, unit: str) -> Dict[str, Any]:
  """Returns the kind of the devices of all replicas, and a note on figures of CPU devices."""
  cores_per_worker, note = None, None
  if unit == points.GPU or (unit == points.WORKER and settings.devices.num_gpus > 0):
    kind = 'gpu'
  elif unit == points.CPU:
    kind, note = 'cpu (logical)', _CPU_REPLICAS_NOTE
  else:
    kind, cores_per_worker = 'cpu', points.plan_cpu_workers()[1]
    note = _PINNED_WORKERS_NOTE.format(cores_per_worker) if cores_per_worker else _SHARED_CORE_NOTE
  return {'device_kind': kind, 'note': note, 'cores_per_worker': cores_per_worker}


def _make_rows(settings: Settings, results: Sequence[PointResult]) -> List[Dict[str, Any]]:
  """Returns the table, with one row for each combination of scaling, input and number of units."""
  rows = []
  for scaling in (points.WEAK, points.STRONG):
    for input_name in (points.REAL, points.SYNTHETIC):
      series = [result for result in results if result.point.input == input_name
                and result.point.scaling in (scaling, points.BOTH)]
      rate_of_one_unit: Optional[float] = None
      for count in sorted({result.point.count for result in series}):
        repeats = [result for result in series if result.point.count == count]
        figures = _summarize_repeats(repeats)
        rate = figures['examples_per_sec']
        if count == 1:
          rate_of_one_unit = rate
        speed_up = rate / rate_of_one_unit if rate and rate_of_one_unit else None
        rows.append({
            'scaling': scaling, 'input': input_name, settings.experiments.scale_over: count,
            'global_batch_size': repeats[0].point.global_batch_size(settings.optimizer.batch_size),
            **figures, 'speed_up': speed_up, 'efficiency': speed_up and speed_up / count,
            'input_share': _input_share(repeats),
            'error': next((result.error for result in repeats if result.error is not None), None)})
  return rows


def _summarize_repeats(repeats: Sequence[PointResult]) -> Dict[str, Any]:
  """Returns the number of completed and failed repeats, and the median and range of their rates."""
  rates = [result.figures['steady_examples_per_sec'] for result in repeats
           if result.figures is not None]
  median = statistics.median(rates) if rates else None
  return {'runs': len(rates), 'failed': len(repeats) - len(rates), 'examples_per_sec': median,
          'min': min(rates, default=None), 'max': max(rates, default=None),
          # A single rate has no spread.
          'spread': (max(rates) - min(rates)) / median if median and len(rates) > 1 else None}


def _input_share(repeats: Sequence[PointResult]) -> Optional[float]:
  """Returns the median fraction of the time that steps wait for input; None if not observed."""
  shares = [(result.figures.get('shares') or {}).get('input') for result in repeats
            if result.figures is not None]
  observed = [share for share in shares if share is not None]
  return statistics.median(observed) if observed else None


def _format_csv(rows: Sequence[Dict[str, Any]]) -> str:
  text = io.StringIO()
  writer = csv.DictWriter(text, list(rows[0]), lineterminator='\n')
  writer.writeheader()
  writer.writerows({key: atomic.csv_cell(value) for key, value in row.items()} for row in rows)
  return text.getvalue()


def _format_table(result: Dict[str, Any]) -> Iterator[str]:
  unit_key = result['scale_over']
  yield '{} on {}: {}, {} steps per run, {} of them warm-up; {} on {}{}'.format(
      result['model'], result['dataset'], result['distribution_strategy'], result['steps'],
      result['warmup_steps'], unit_key, ', '.join(result['devices'] or [result['device_kind']]),
      ' each' if unit_key == 'workers' else '')
  yield _format_row('scaling', 'input', unit_key, 'batch', 'runs', 'examples/sec',
                    'slowest to fastest', 'spread', 'speed-up', 'efficiency', 'waits for input')
  for row in result['table']:
    yield _format_row(
        row['scaling'], row['input'], row[unit_key], row['global_batch_size'], row['runs'],
        _format_figures('{:,.0f}', row['examples_per_sec']),
        _format_figures('{:,.0f} to {:,.0f}', row['min'], row['max']),
        _format_figures('{:.1%}', row['spread']), _format_figures('{:.2f}', row['speed_up']),
        _format_figures('{:.0%}', row['efficiency']),
        _format_figures('{:.1%}', row['input_share']))
  for failure in result['failures']:
    yield '{point} failed: {error}'.format(**failure)
  if result['predictions']:
    yield from _format_predictions(result['predictions'], unit_key)
  if result['note']:
    yield result['note']


def _format_predictions(predictions: Dict[str, Any], unit_key: str) -> Iterator[str]:
  yield 'predictions, with an interval of {:.0%}:'.format(predictions['interval'])
  yield _format_row('scaling', 'input', unit_key, 'batch', '', 'examples/sec', 'interval', '', '',
                    'efficiency', '')
  for row in predictions['table']:
    yield _format_row(
        row['scaling'], row['input'], row[unit_key], row['global_batch_size'], '',
        '{examples_per_sec:,.0f}'.format(**row), '{low:,.0f} to {high:,.0f}'.format(**row), '',
        '', '{efficiency:.0%}'.format(**row), '')
  for row in predictions['validation']:
    yield ('predicted from fewer {}: {} scaling, {} input, {} {}: {:,.0f} examples/sec instead of '
           '{:,.0f}, {:+.1%}').format(unit_key, row['scaling'], row['input'], row[unit_key],
                                      unit_key, row['predicted'], row['measured'], row['error'])


def _format_row(*cells: Any) -> str:
  return '{:8}{:10}{:>9}{:>8}{:>6}{:>14}{:>22}{:>9}{:>10}{:>12}{:>17}'.format(*cells).rstrip()


def _format_figures(template: str, *figures: Optional[float]) -> str:
  """Fills in the template; returns `-` if one of the figures could not be measured."""
  return '-' if None in figures else template.format(*figures)
