"""`--mode=scaling`: measures how throughput grows with the number of replicas or workers.

Each point of the sweep is a training run in new processes.
"""

import csv
import io
import itertools
import logging
import os
import statistics
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

from estimator_train.data import datasets
from estimator_train.errors import UserError
from estimator_train.modes.parts import PartResult, RunChild, run_parts
from estimator_train.modes.scaling import points
from estimator_train.modes.scaling.points import Point
from estimator_train.reports import page, report_files
from estimator_train.run_dir import RunDir, make_folder
from estimator_train.settings import Settings, to_training_arguments
from estimator_train.settings.flags import OUTPUT_FLAGS, DeviceFlags
from estimator_train.settings.proposals import make_command
from estimator_train.system import child_process, storage, tensorflow_probe
from estimator_train.system.formatting import (
  MISSING,
  format_count,
  format_metric,
  format_number,
  format_percent,
)
from estimator_train.system.machine import available_cores
from estimator_train.system.summary import log_summary

_LOG = logging.getLogger('estimator_train')
_CSV_FILE = 'scaling.csv'
_CPU_REPLICAS_NOTE = ('CPU replicas share the same cores, so no speed-up is expected: the '
                      'figures show the overhead of replicas, not the benefit of more devices')
_PINNED_WORKERS_NOTE = ('each worker is pinned to {} core(s), regardless of the number of workers, '
                        'so a single worker is slower than it would be on all cores')
_SHARED_CORE_NOTE = ('the workers share a single core, so no speed-up is expected: the figures '
                     'show the overhead of workers')
# When the mode runs again in the same model_dir, only these flags may have other values.
_CHANGEABLE_FLAGS = ('model_dir', 'repeats', *OUTPUT_FLAGS)


def run(settings: Settings, run_dir: RunDir,
        run_child: RunChild = child_process.run_program) -> Dict[str, Any]:
  """Returns the result of the mode: the rate, speed-up and efficiency for each number of units.

  The units are replicas or workers, as `--scale_over` specifies.

  Raises:
    UserError: every point failed; the error contains the result of the mode.
  """
  points_dir = run_dir.path_to(points.POINTS_FOLDER)
  run_dir.check_flags(settings, _CHANGEABLE_FLAGS)
  # Each point is a training run. Therefore, mode='train' requires training examples here, and does
  # not read the class names of image files from `model_dir`.
  dataset = datasets.describe_data_set(settings.evolve(mode='train'))
  dataset.spec.require_images('--mode=scaling')
  if settings.experiments.scale_over == 'workers':
    unit = points.WORKER
    max_count, unit_settings = _choose_max_workers(settings)
  else:
    unit, max_count = _choose_max_replicas(settings.devices)
    unit_settings = settings
  make_folder(points_dir)
  run_dir.record_flags(settings)
  planned_points = points.plan_points(settings, unit, max_count)
  results = run_parts(
      [points.make_part(point, unit_settings, dataset) for point in planned_points], 'point',
      lambda name: points.read_complete_reports(os.path.join(points_dir, name)),
      lambda part: points.run_in_empty_folder(part, run_child),
      lambda name: points.mark_as_complete(os.path.join(points_dir, name)))
  result = make_sweep_report(
      unit_settings, {point: results[point.name] for point in planned_points})
  for line in _format_table(result):
    print(line)
  storage.write_text(run_dir.path_to(_CSV_FILE), _format_csv(result['table']))
  report_files.write(run_dir.path, 'scaling', result)
  page_file = page.write_page_of_finished_run(run_dir.path, settings.reporting)
  if len(result['failures']) == len(results):
    raise UserError('all points of the sweep failed', result['failures'][0]['error'],
                    'see the logs in ' + points_dir, result)
  log_summary('measured {} of {}'.format(
      len(results) - len(result['failures']), format_count(len(results), 'point')), [
          ('report', page_file), ('table', run_dir.path_to(_CSV_FILE)),
          ('result', report_files.path_to(run_dir.path, 'scaling'))],
              make_command(*to_training_arguments(settings, model_dir=None)))
  return result


def _choose_max_workers(settings: Settings) -> Tuple[int, Settings]:
  """Returns the largest number of workers, and the settings of one worker."""
  if settings.devices.distribution_strategy != 'horovod':
    settings = settings.evolve(distribution_strategy='multi_worker_mirrored')
  # num_gpus=-1 means all GPUs.
  uses_gpus = settings.devices.num_gpus and not settings.devices.num_cpu_replicas
  num_gpus = tensorflow_probe.count_gpus() if uses_gpus else 0
  if num_gpus or (uses_gpus and settings.devices.num_gpus > 0):
    gpus_per_worker = max(settings.devices.num_gpus, 1)
    max_workers = max(num_gpus // gpus_per_worker, 1)
    _LOG.info('found %d GPU(s): measuring 1 to %d workers with %d GPU(s) each', num_gpus,
              max_workers, gpus_per_worker)
    return max_workers, settings.evolve(num_gpus=gpus_per_worker)
  max_workers, cores = points.plan_cpu_workers()
  _LOG.info('measuring 1 to %d workers, %s', max_workers,
            'each pinned to {} core(s)'.format(cores) if cores else 'which share the only core')
  return max_workers, settings.evolve(
      num_gpus=0, num_cpu_replicas=max(settings.devices.num_cpu_replicas, 1))


def _choose_max_replicas(flags: DeviceFlags) -> Tuple[str, int]:
  """Returns the device type of the replicas, GPU or CPU, and the largest number of replicas."""
  if flags.num_gpus > 0:
    return points.GPU, flags.num_gpus
  if flags.num_cpu_replicas:
    return points.CPU, flags.num_cpu_replicas
  # num_gpus=-1 means all GPUs.
  num_gpus = tensorflow_probe.count_gpus() if flags.num_gpus < 0 else 0
  if num_gpus:
    return points.GPU, num_gpus
  max_replicas, _ = points.plan_cpu_workers()
  _LOG.info('without GPUs: measuring 1 to %d replicas on logical CPU devices, on %d core(s)',
            max_replicas, available_cores())
  return points.CPU, max_replicas


def make_sweep_report(settings: Settings, results: Dict[Point, PartResult]) -> Dict[str, Any]:
  """Returns the contents of `scaling.json`. A figure that could not be measured is None."""
  # The point with the most units uses all devices that the other points use.
  descending = sorted(results, key=lambda point: -point.count)
  largest: Dict[str, Any] = next(
      iter(_list_throughput_reports(results[point] for point in descending)), {})
  return {
      'mode': settings.run.mode, 'model_dir': settings.run.model_dir,
      'scale_over': settings.experiments.scale_over,
      **_describe_devices(settings, next(iter(results)).unit),
      'table': _make_rows(settings, results),
      'failures': [
          {'point': point.name, 'repeat': point.repeat, 'code': result.exit_code,
           'error': result.error,
           'log': os.path.join(point.folder(settings.run.required_model_dir), points.LOG_FILE)}
          for point, result in results.items() if result.error is not None],
      'dataset': settings.data.dataset, 'model': settings.model.model,
      'distribution_strategy': settings.devices.distribution_strategy,
      'devices': largest.get('devices'), 'tensorflow_version': largest.get('tensorflow_version'),
      'batch_size': settings.optimizer.batch_size, 'repeats': settings.experiments.repeats,
      'steps': points.count_steps_per_point(settings),
      'warmup_steps': settings.reporting.throughput_warmup_steps,
  }


def _list_throughput_reports(results: Iterable[PartResult]) -> List[Dict[str, Any]]:
  return [result.reports['throughput'] for result in results if result.reports is not None]


def _describe_devices(settings: Settings, unit: str) -> Dict[str, Any]:
  """Returns the items of the result that describe the devices, with a note if they are CPUs."""
  cores_per_worker, note = None, None
  if unit == points.GPU or (unit == points.WORKER and settings.devices.num_gpus > 0):
    kind = 'gpu'
  elif unit == points.CPU:
    kind, note = 'cpu (logical)', _CPU_REPLICAS_NOTE
  else:
    kind, cores_per_worker = 'cpu', points.plan_cpu_workers()[1]
    note = _PINNED_WORKERS_NOTE.format(cores_per_worker) if cores_per_worker else _SHARED_CORE_NOTE
  return {'device_kind': kind, 'note': note, 'cores_per_worker': cores_per_worker}


def _make_rows(settings: Settings, results: Dict[Point, PartResult]) -> List[Dict[str, Any]]:
  """Returns a row of the table for each combination of scaling, input and number of units."""
  rows = []
  for scaling, input_name in itertools.product((points.WEAK, points.STRONG),
                                               (points.REAL, points.SYNTHETIC)):
    results_of_series = {point: result for point, result in results.items()
                         if point.input == input_name and point.scaling in (scaling, points.BOTH)}
    rate_of_one_unit: Optional[float] = None
    for count in sorted({point.count for point in results_of_series}):
      repeats = [result for point, result in results_of_series.items() if point.count == count]
      summary = _summarize_repeats(repeats)
      rate = summary['examples_per_sec']
      if count == 1:
        rate_of_one_unit = rate
      speed_up = rate / rate_of_one_unit if rate and rate_of_one_unit else None
      point = next(point for point in results_of_series if point.count == count)
      input_shares = [(report.get('shares') or {}).get('input')
                      for report in _list_throughput_reports(repeats)]
      known_shares = [share for share in input_shares if share is not None]
      rows.append({
          'scaling': scaling, 'input': input_name, settings.experiments.scale_over: count,
          'global_batch_size': point.global_batch_size(settings.optimizer.batch_size),
          **summary, 'speed_up': speed_up, 'efficiency': speed_up and speed_up / count,
          # The fraction of the time in which steps wait for input.
          'input_share': statistics.median(known_shares) if known_shares else None,
          'error': next((result.error for result in repeats if result.error is not None), None)})
  return rows


def _summarize_repeats(repeats: Sequence[PartResult]) -> Dict[str, Any]:
  rates = [report['examples_per_sec'] for report in _list_throughput_reports(repeats)]
  median = None
  if rates:
    # If the number of repeats is even, the median is the total rate of the two repeats in the
    # middle, which have the same number of examples.
    low, high = statistics.median_low(rates), statistics.median_high(rates)
    median = 2 * low * high / (low + high)
  return {'runs': len(rates), 'failed': len(repeats) - len(rates), 'examples_per_sec': median,
          'min': min(rates, default=None), 'max': max(rates, default=None),
          # A single rate has no spread.
          'spread': (max(rates) - min(rates)) / median if median and len(rates) > 1 else None}


def _format_csv(rows: Sequence[Dict[str, Any]]) -> str:
  text = io.StringIO()
  writer = csv.DictWriter(text, list(rows[0]), lineterminator='\n')
  writer.writeheader()
  writer.writerows({key: storage.csv_cell(value) for key, value in row.items()} for row in rows)
  return text.getvalue()


def _format_table(result: Dict[str, Any]) -> Iterator[str]:
  unit_key = result['scale_over']
  yield '{} on {}: {}, {} steps per run, {} of them warm-up; {} on {}{}'.format(
      result['model'], result['dataset'], result['distribution_strategy'], result['steps'],
      result['warmup_steps'], unit_key, ', '.join(result['devices'] or [result['device_kind']]),
      ' each' if unit_key == 'workers' else '')
  format_row = '{:8}{:10}{:>9}{:>8}{:>6}{:>14}{:>22}{:>9}{:>10}{:>12}{:>17}'.format
  yield format_row('scaling', 'input', unit_key, 'batch', 'runs', 'examples/sec',
                   'slowest to fastest', 'spread', 'speed-up', 'efficiency', 'waits for input')
  for row in result['table']:
    line = format_row(
        row['scaling'], row['input'], row[unit_key], row['global_batch_size'], row['runs'],
        format_number(row['examples_per_sec']),
        MISSING if row['min'] is None else '{} to {}'.format(
            format_number(row['min']), format_number(row['max'])),
        format_percent(row['spread']), format_metric(row['speed_up']),
        format_percent(row['efficiency']), format_percent(row['input_share']))
    yield line.replace(MISSING, '-')  # Standard output may not support other characters.
  for failure in result['failures']:
    yield '{point} failed: {error}'.format(**failure)
  if result['note']:
    yield result['note']
