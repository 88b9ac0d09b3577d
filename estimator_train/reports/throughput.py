"""Writes the throughput report of a training run, `throughput.json`, and logs its summary."""

import datetime
import logging
import os
import platform
import sys
from typing import Any, Dict, Iterator, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from estimator_train.reports import report_files, verdicts
from estimator_train.reports.step_times import (
  RunTimes,
  TimedSteps,
  compute_figures,
  select_timed_steps,
)
from estimator_train.settings import Settings
from estimator_train.settings.flags import ReportingFlags, RunFlags
from estimator_train.system import machine
from estimator_train.system.formatting import (
  format_count,
  format_metric,
  format_percent,
  format_quantity,
  format_secs,
)
from estimator_train.system.start_up import StartUpTimer
from estimator_train.system.summary import log_summary, make_command_of_build
from estimator_train.version import __version__

_LOG = logging.getLogger('estimator_train')
# How many times as fast the oneDNN build trains a model on two cores with AVX-512, by the rows
# `fashion_torch`, `resnet50_torch` and `vgg16_torch` of docs/performance.md.
_ONEDNN_GAINS = {'fashion_cnn': 2.49, 'resnet50': 2.13, 'vgg16': 1.48}
_HINT_FILE = 'onednn-hint-shown'
_MAX_POINTS, _MAX_BINS = 500, 60  # Of the curve and the histogram of the step times.


def write_throughput_report(
    settings: Settings, conditions: Dict[str, Any], times: RunTimes,
    worker_figures: Optional[Mapping[str, Dict[str, Any]]] = None) -> Dict[str, Any]:
  """Writes the throughput report of this run if it ran at least one step.

  Returns:
    The result of the training, with `examples_seen` and, if a step was run, the main rates.
  """
  result = dict(make_training_result(settings.run, times),
                examples_seen=conditions['examples_seen'])
  if times.end_times:
    report = make_throughput_report(times, conditions, settings.reporting.throughput_warmup_steps,
                                    worker_figures)
    report.write(settings.run.required_model_dir)
    result.update((name, report.figures[name]) for name in (
        'examples_per_sec', 'time_to_first_step_secs', 'steady_state', 'verdict'))
  return result


class ThroughputReport(NamedTuple):
  """The figures of `throughput.json`, and the timed steps for the charts."""
  figures: Dict[str, Any]
  steps: TimedSteps

  def write(self, folder: str) -> None:
    """Writes `throughput.json` and `report/steps.json`, and logs the main figures."""
    report_files.write(folder, 'throughput', self.figures)
    write_step_curve(folder, self.steps.steady.global_step,
                     self.steps.steady.secs_without_pauses)
    _LOG.info('%s', _format_log_line(self.figures))


def make_throughput_report(
    times: RunTimes, conditions: Mapping[str, Any], warmup_steps: int,
    worker_figures: Optional[Mapping[str, Dict[str, Any]]] = None) -> ThroughputReport:
  """Computes the throughput report of a training run.

  `steady_state` is whether the run is longer than its warm-up. `verdict` is `input-bound`,
  `compute-bound`, `overhead-bound`, or None if unknown.

  Args:
    times: must have at least one step.
    conditions: settings and devices that affect the figures, by their keys in `throughput.json`.
      They include `examples_per_step` (None if unknown), `num_replicas` and
      `distribution_strategy`.
    warmup_steps: the number of steps at the beginning of the run that are not timed.
    worker_figures: the result of `compute_worker_figures` of each worker except the chief, by task
      name.
  """
  steps = select_timed_steps(times, warmup_steps)
  figures, has_steady_state = compute_figures(steps, conditions), times.steps_run > warmup_steps
  if worker_figures:
    figures.update(_compute_cluster_figures(conditions, figures, worker_figures))
  figures.update(
      warmup_steps=warmup_steps if has_steady_state else 0, steady_state=has_steady_state,
      time_to_first_step_secs=times.time_to_first_step_secs,
      # The phases whose sum is time_to_first_step_secs.
      first_step_parts_secs=times.start_up_secs, global_step=times.global_step)
  figures.update(conditions, machine=machine.describe_processor(), package_version=__version__,
                 python_version=platform.python_version())
  return ThroughputReport(figures, steps)


def read_end_time_and_duration(start_up: StartUpTimer) -> Dict[str, Any]:
  """Returns the current time, and the duration of the run, by their keys in the report."""
  return {'run_secs': start_up.secs_since_start(),
          'finished_at': datetime.datetime.now().astimezone().isoformat(timespec='seconds')}


def compute_total_secs(model_dir: str, start_step: int, run_secs: float) -> Optional[float]:
  """Returns the duration of all runs in a folder up to now; None if it is unknown.

  It is unknown if the previous run was killed after `start_step` was saved, because only a run that
  ends writes its duration. Must be called before this run writes `throughput.json`.

  Args:
    start_step: the global step at which this run started.
    run_secs: the duration of this run.
  """
  if not start_step:
    return run_secs
  previous = report_files.read_or_warn(model_dir, 'throughput', 'the total duration is unknown')
  previous_secs: Optional[float] = previous.get('total_run_secs')
  if previous_secs is None or previous.get('global_step') != start_step:
    return None
  return previous_secs + run_secs


def make_training_result(flags: RunFlags, times: RunTimes) -> Dict[str, Any]:
  """Returns the result of a training task, without the throughput."""
  return {'mode': flags.mode, 'model_dir': flags.model_dir,
          'global_step': times.global_step, 'steps_run': times.steps_run,
          'train_loss': times.loss}


def compute_worker_figures(flags: ReportingFlags, conditions: Dict[str, Any],
                           times: RunTimes) -> Dict[str, Any]:
  """Returns the figures of a worker for the chief's report; empty if no step was run."""
  return _select_worker_figures(compute_figures(select_timed_steps(
      times, flags.throughput_warmup_steps), conditions)) if times.end_times else {}


def _select_worker_figures(figures: Dict[str, Any]) -> Dict[str, Any]:
  """Returns the figures that may differ between the workers of a cluster."""
  selected = {name: figures[name] for name in ('steps_timed', 'wall_secs', 'examples', 'shares')}
  selected.update((name + '_p50', figures[name] and figures[name]['p50']) for name in (
      'step_secs', 'session_run_secs', 'input_wait_secs', 'between_secs'))
  return selected


def _compute_cluster_figures(conditions: Mapping[str, Any], chief_figures: Dict[str, Any],
                             worker_figures: Mapping[str, Dict[str, Any]]) -> Dict[str, Any]:
  """Returns the figures per worker, the slowest worker and, with parameter servers, total rates.

  In synchronous training, each worker counts the examples of all workers. All workers have the same
  step time, because each waits for the slowest in every step. The slowest worker is therefore the
  worker with the largest sum of the median wait for input and the median time between steps.

  With parameter servers, each worker counts only its own examples. The total rate is therefore the
  examples of all workers ÷ the chief's wall time. The slowest worker is the worker with the longest
  median step.
  """
  figures_by_worker = {'chief': _select_worker_figures(chief_figures), **worker_figures}
  is_synchronous = conditions['distribution_strategy'] != 'parameter_server'
  keys = ('input_wait_secs_p50', 'between_secs_p50') if is_synchronous else ('step_secs_p50',)
  slowest_worker = max(figures_by_worker, key=lambda name: sum(
      figures_by_worker[name].get(key) or 0 for key in keys))
  result: Dict[str, Any] = {'workers': figures_by_worker, 'slowest_worker': slowest_worker}
  if not is_synchronous:
    num_examples = sum(figures.get('examples', 0) for figures in figures_by_worker.values())
    rate = num_examples / chief_figures['wall_secs']
    result.update(examples_per_sec=rate,
                  examples_per_sec_per_replica=rate / conditions['num_replicas'])
  return result


def _format_log_line(figures: Dict[str, Any]) -> str:
  unit = 'steps/sec' if figures['examples_per_sec'] is None else 'examples/sec'
  text = '{} over {} steps, median step {}'.format(
      format_quantity(figures[unit.replace('/', '_per_')], unit), figures['steps_timed'],
      format_secs(figures['step_secs']['p50']))
  shares = figures['shares']
  if shares['input'] is None:
    text += '; {} of the time is between steps; the wait for input was not observed'.format(
        format_percent(shares['between']))
  else:
    text += '; {} ({} of the time for input, {} between steps)'.format(
        figures['verdict'], format_percent(shares['input']), format_percent(shares['between']))
  if figures['pauses'] and figures['examples_per_sec'] is not None:
    text += '; {} without {}'.format(
        format_quantity(figures['steady_examples_per_sec'], unit), ' and '.join(
            '{} {}{} of {} in total'.format(
                total['count'], kind, '' if total['count'] == 1 else 's',
                format_secs(total['secs']))
            for kind, total in sorted(figures['pauses'].items())))
  if not figures['steady_state']:
    text += '; no steady state: the run is not longer than its warm-up'
  return text


def write_step_curve(model_dir: str, global_steps: np.ndarray, secs: np.ndarray) -> None:
  """Writes `report/steps.json`, the curve and the histogram of the step times.

  Args:
    global_steps: int [num_steps], at least one.
    secs: the duration of each step, float [num_steps].
  """
  # The indices of the consecutive steps that each point of the curve represents.
  step_indices_of_points = np.array_split(np.arange(len(secs)), min(_MAX_POINTS, len(secs)))
  # The bins end at the 99th percentile, and the last bin includes all slower steps. If the bins
  # ended at the slowest step, they could be so wide that one bin contains almost all steps.
  low, high = np.percentile(secs, [0, 99])
  bin_edges = np.linspace(low, max(high, low * 1.001), min(_MAX_BINS, len(secs)) + 1)
  report_files.write(model_dir, 'steps', {
      'global_step': [int(global_steps[indices[-1]]) for indices in step_indices_of_points],
      'mean_secs': [float(secs[indices].mean()) for indices in step_indices_of_points],
      'max_secs': [float(secs[indices].max()) for indices in step_indices_of_points],
      'histogram': {'edges_secs': bin_edges.tolist(),
                    'counts': np.histogram(np.minimum(secs, bin_edges[-1]), bin_edges)[0].tolist()},
  })


def log_training_summary(result: Dict[str, Any], best_metric: Optional[str],
                         paths: Mapping[str, Optional[str]], next_command: Optional[str]) -> None:
  """Logs the summary of a training run, one line per figure and file.

  Args:
    best_metric: the metric that selects the best checkpoint; None without an evaluation.
    paths: the paths of the files of the run by title; None for a file that was not written.
    next_command: None if a signal stopped the run.
  """
  title = '{} at step {}'.format('stopped' if next_command is None else 'finished',
                                 result['global_step'])
  log_summary(title, [*_format_figures(result, best_metric), *paths.items()], next_command)


def log_onednn_hint(result: Mapping[str, Any], model: str, devices: Sequence[str]) -> None:
  """Logs once per environment that the other build of TensorFlow is faster, where this applies.

  Args:
    result: the result of training a model with convolutions.
    devices: the names of the devices, such as `/cpu:0`.
  """
  command = make_command_of_build('onednn')
  if (command is not None and result.get('steady_state')
      and result['verdict'] == verdicts.COMPUTE_BOUND and devices[0].startswith('/cpu')
      and machine.would_gain_from_onednn() and _is_first_hint()):
    lowest, highest = min(_ONEDNN_GAINS.values()), max(_ONEDNN_GAINS.values())
    gain = _ONEDNN_GAINS.get(model)
    _LOG.info('the oneDNN build of TensorFlow is faster on processors with AVX-512, such as this '
              'one. Measured on two cores: %s times as fast with %s. To use it:',
              gain or '{} to {}'.format(lowest, highest),
              model if gain else 'other convolutional networks')
    _LOG.info('  %s', command, extra={'is_verbatim': True})


def _is_first_hint() -> bool:
  """Returns whether this is the first call in this environment of Python."""
  try:
    with open(os.path.join(sys.prefix, _HINT_FILE), 'x'):
      return True
  except OSError:  # Also if the environment is read-only, so that the hint would be repeated.
    return False


def _format_figures(result: Dict[str, Any],
                    best_metric: Optional[str]) -> Iterator[Tuple[str, str]]:
  """Yields (title, text) of the evaluations, the throughput and the skipped images, if known."""
  best = result.get('best')
  if best and best_metric:
    main_metric = 'accuracy' if 'accuracy' in result else 'loss'
    yield main_metric, format_metric(result[main_metric])
    value = best.get(best_metric)
    yield 'best', '{} {} at step {}{}'.format(
        best_metric.replace('_', ' '),
        'not a number' if value is None else format_metric(value), best['global_step'],
        ', the last step' if best['global_step'] == result['global_step'] else '')
  if 'examples_per_sec' in result:
    verdict = result['verdict']
    yield 'throughput', format_quantity(result['examples_per_sec'], 'examples/sec') + (
        verdict and '; {}: {}'.format(verdict, verdicts.TEXTS[verdict].log) or '')
  if result.get('skipped_images'):
    yield 'skipped', format_count(len(result['skipped_images']), 'bad image')
