"""Writes the throughput report: computes the figures of `throughput.json` from the step times."""

import logging
from types import MappingProxyType
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from estimator_train.files import atomic
from estimator_train.reports import step_curve
from estimator_train.reports.step_times import Pause, Timing
from estimator_train.run_dir.run_files import RunDir
from estimator_train.settings import Settings, groups

_LOG = logging.getLogger('estimator_train')
THROUGHPUT_FILE = 'throughput.json'
_MAX_OUTLIERS = 20
# The input or the time between steps is a bottleneck if it takes this share of the step time.
_BOTTLENECK_SHARE = 0.1
_VERDICTS = {'input': 'input-bound', 'compute': 'compute-bound', 'between': 'overhead-bound'}


class TimedSteps(NamedTuple):
  """The timed steps of a run. All arrays have shape [num_steps].

  Attributes:
    global_step: global step of each step, int.
    wall_secs: seconds from the end of the previous step to the end of this step.
    session_run_secs: the part of `wall_secs` inside session.run.
    input_wait_secs: the part of `session_run_secs` until the step's batch was available; nan if
      the wait was not observed.
    secs_without_pauses: `wall_secs` without the pauses.
    is_untraced: whether the step was not traced, bool.
    pauses: `count` and total `secs` of the pauses, by kind.
  """
  global_step: np.ndarray
  wall_secs: np.ndarray
  session_run_secs: np.ndarray
  input_wait_secs: np.ndarray
  secs_without_pauses: np.ndarray
  is_untraced: np.ndarray
  pauses: Dict[str, Dict[str, Any]]

  @property
  def steady(self) -> 'TimedSteps':
    """The steady steps: those that were not traced, or all steps if all were traced."""
    selected = self.is_untraced if self.is_untraced.any() else ~self.is_untraced
    return self._replace(**{name: getattr(self, name)[selected]
                            for name in self._fields if name != 'pauses'})


def write_throughput_report(
    settings: Settings, conditions: Dict[str, Any], timing: Timing,
    workers: Mapping[str, Dict[str, Any]] = MappingProxyType({})) -> Dict[str, Any]:
  """Writes `throughput.json` and `report/steps.json`, unless no step was run.

  Args:
    settings: settings of the run.
    conditions: settings and devices that affect the figures, by their keys in `throughput.json`.
    timing: times of the steps.
    workers: by task name, the figures that `worker_figures` returned on each other worker.

  Returns:
    The entries of the result of the mode.
  """
  result = training_result(settings[groups.Run], timing)
  run_dir = RunDir(settings.model_dir)
  result['examples_seen'] = run_dir.examples_seen(
      timing.global_step, conditions['examples_per_step'])
  if not timing.end_times:
    return result
  steps = select_timed_steps(timing, settings.throughput_warmup_steps)
  figures = summarize(steps, conditions['examples_per_step'], conditions['num_replicas'])
  if workers:
    figures.update(_cluster_figures(settings[groups.Devices], figures, workers,
                                    conditions['num_replicas']))
  has_steady_state = timing.steps_run > settings.throughput_warmup_steps
  figures['warmup_steps'] = settings.throughput_warmup_steps if has_steady_state else 0
  figures['steady_state'] = has_steady_state
  figures['time_to_first_step_secs'] = sum(timing.start_up_secs.values())
  figures['first_step_parts_secs'] = timing.start_up_secs
  figures['global_step'] = timing.global_step
  figures['examples_seen'] = result['examples_seen']
  figures.update(conditions)
  atomic.write_json(run_dir.path_to(THROUGHPUT_FILE), figures)
  step_curve.write_step_curve(run_dir.path, steps.steady.global_step,
                              steps.steady.secs_without_pauses)
  _LOG.info('%s', _format_log_line(figures))
  result.update((name, figures[name]) for name in (
      'examples_per_sec', 'time_to_first_step_secs', 'steady_state', 'verdict'))
  return result


def training_result(settings: groups.Run, timing: Timing) -> Dict[str, Any]:
  """Returns the entries of the result of a training task, except those about the throughput."""
  return {'mode': settings.mode, 'model_dir': settings.model_dir,
          'global_step': timing.global_step, 'steps_run': timing.steps_run,
          'train_loss': timing.loss}


def worker_figures(settings: groups.Reporting, conditions: Dict[str, Any],
                   timing: Timing) -> Dict[str, Any]:
  """Returns the figures of a worker for the chief's report; empty if no step was run."""
  if not timing.end_times:
    return {}
  steps = select_timed_steps(timing, settings.throughput_warmup_steps)
  figures = summarize(steps, conditions['examples_per_step'], conditions['num_replicas'])
  return _select_worker_figures(figures)


def _select_worker_figures(figures: Dict[str, Any]) -> Dict[str, Any]:
  """Returns the figures that may differ between the workers of a cluster."""
  selected = {name: figures[name] for name in ('steps_timed', 'wall_secs', 'examples', 'shares')}
  selected.update((name + '_p50', figures[name] and figures[name]['p50']) for name in (
      'step_secs', 'session_run_secs', 'input_wait_secs', 'between_secs'))
  return selected


def _cluster_figures(settings: groups.Devices, figures: Dict[str, Any],
                     workers: Mapping[str, Dict[str, Any]], num_replicas: int) -> Dict[str, Any]:
  """Returns the figures per worker, the slowest worker and, with parameter servers, total rates.

  In synchronous training, each worker counts the examples of all workers. The slowest worker has
  the largest sum of the median wait for input and the median time between steps. With parameter
  servers, each worker counts its own examples, so the total rate is the sum of these examples ÷ the
  chief's wall time. The slowest worker then has the longest median step.
  """
  all_workers = {'chief': _select_worker_figures(figures), **workers}
  is_synchronous = settings.distribution_strategy != 'parameter_server'
  parts = ('input_wait_secs_p50', 'between_secs_p50') if is_synchronous else ('step_secs_p50',)
  slowest = max(all_workers,
                key=lambda name: sum(all_workers[name].get(part) or 0 for part in parts))
  result: Dict[str, Any] = {'workers': all_workers, 'slowest_worker': slowest}
  if not is_synchronous:
    examples = sum(worker.get('examples', 0) for worker in all_workers.values())
    rate = examples / figures['wall_secs']
    result.update(examples_per_sec=rate, examples_per_sec_per_replica=rate / num_replicas)
  return result


def select_timed_steps(timing: Timing, warmup_steps: int) -> TimedSteps:
  """Returns the steps after the warm-up, or all steps if the run is not longer than the warm-up.

  Args:
    timing: times of the run, with at least one step.
    warmup_steps: number of steps at the beginning of the run that are not timed.
  """
  first = max(warmup_steps - timing.discarded_steps, 0) if timing.steps_run > warmup_steps else 0
  edges = np.concatenate([timing.start_times[:1], timing.end_times])[first:]
  wall_secs = np.diff(edges)
  secs_without_pauses, pauses = _subtract_pauses(edges, timing.pauses)
  global_step = np.arange(len(wall_secs)) + timing.global_step - len(wall_secs) + 1
  session_run_secs = np.subtract(timing.end_times, timing.start_times)[first:]
  # Clipped because waits are measured by the system clock, which may be adjusted during a step.
  input_wait_secs = np.clip(timing.input_wait_secs[first:], 0, session_run_secs)
  return TimedSteps(global_step, wall_secs, session_run_secs, input_wait_secs, secs_without_pauses,
                    ~np.isin(global_step, list(timing.traced_steps)), pauses)


def summarize(steps: TimedSteps, examples_per_step: int, num_replicas: int) -> Dict[str, Any]:
  """Computes the rates and the distributions of the step times.

  The rate is examples ÷ wall time, never a mean of rates. The wall time lasts from the end of the
  last warm-up step to the end of the last step, including the time between steps. The steady rate
  excludes pauses and traced steps.

  Args:
    steps: timed steps, at least one.
    examples_per_step: examples per step.
    num_replicas: number of replicas.

  Returns:
    The figures by their keys in `throughput.json`, in seconds and examples/sec.
  """
  steady = steps.steady
  wall_secs = float(steps.wall_secs.sum())
  examples = len(steps.wall_secs) * examples_per_step
  figures: Dict[str, Any] = {
      'examples_per_sec': examples / wall_secs,
      'examples_per_sec_per_replica': examples / wall_secs / num_replicas,
      'steady_examples_per_sec': examples_per_step / float(steady.secs_without_pauses.mean()),
      'step_secs': _distribution(steps.wall_secs),
      'session_run_secs': _distribution(steps.session_run_secs),
      'between_secs': _distribution(steps.wall_secs - steps.session_run_secs),
      'input_wait_secs': _distribution(steps.input_wait_secs),
      'steady_step_secs': _distribution(steady.secs_without_pauses),
      'standard_error_secs': _standard_error(steady.secs_without_pauses),
      'drift': _drift(steady.secs_without_pauses),
      'outliers': _find_outliers(steady),
      'pauses': steps.pauses,
      'traced_steps': int((~steps.is_untraced).sum()),
      'wall_secs': wall_secs,
      'examples': examples,
      'steps_timed': len(steps.wall_secs),
      'shares': _time_shares(steady),
  }
  figures['verdict'] = _find_bottleneck(figures['shares'])
  return figures


def _time_shares(steady: TimedSteps) -> Dict[str, Optional[float]]:
  """Returns the parts of the steady step time as fractions; a part that is unknown is None."""
  total = float(steady.secs_without_pauses.sum())
  run, wait = float(steady.session_run_secs.sum()), float(steady.input_wait_secs.sum())
  if np.isnan(wait):
    return {'input': None, 'compute': None, 'between': 1 - run / total}
  return {'input': wait / total, 'compute': (run - wait) / total, 'between': 1 - run / total}


def _find_bottleneck(shares: Dict[str, Optional[float]]) -> Optional[str]:
  """Returns the bottleneck of training: the input, computation, or the time between steps.

  Batches are prefetched, so a step waits only if the input is slower than the model. If the wait
  was not observed, the result is None unless the time between steps is the bottleneck.
  """
  largest = max(('input', 'between'), key=lambda part: shares[part] or 0.)
  if (shares[largest] or 0.) >= _BOTTLENECK_SHARE:
    return _VERDICTS[largest]
  return None if shares['input'] is None else _VERDICTS['compute']


def _subtract_pauses(edges: np.ndarray,
                     pauses: Sequence[Pause]) -> Tuple[np.ndarray, Dict[str, Dict[str, Any]]]:
  """Subtracts each pause from the time of the step that contains it.

  Args:
    edges: start of the first step, then the end of each step, in seconds.
    pauses: pauses; a pause before the first step or after the last step is ignored.

  Returns:
    The seconds of each step without pauses, and, by kind, `count` and total `secs` of the pauses.
  """
  secs = np.diff(edges)
  totals: Dict[str, Dict[str, Any]] = {}
  for pause in pauses:
    index = int(np.searchsorted(edges, pause.start_time, side='right')) - 1
    if 0 <= index < len(secs):
      secs[index] -= pause.secs
      total = totals.setdefault(pause.kind, {'count': 0, 'secs': 0.})
      total['count'] += 1
      total['secs'] += pause.secs
  return secs, totals


def _standard_error(secs: np.ndarray) -> Optional[float]:
  """Returns the standard error of the mean; None for a single step."""
  return float(np.std(secs, ddof=1) / np.sqrt(len(secs))) if len(secs) > 1 else None


def _drift(secs: np.ndarray) -> Optional[float]:
  """Returns the relative increase of the mean step time from the first to the last quarter.

  Returns None for fewer than four steps.
  """
  quarter = len(secs) // 4
  return float(np.mean(secs[-quarter:]) / np.mean(secs[:quarter]) - 1) if quarter else None


def _find_outliers(steady: TimedSteps) -> List[Dict[str, Any]]:
  """Returns the slowest outliers, at most _MAX_OUTLIERS, in the order of their global steps.

  Outliers take longer than the third quartile plus three times the interquartile range (Tukey 1977,
  "far out").
  """
  secs = steady.secs_without_pauses
  low, high = np.percentile(secs, [25, 75])
  outliers = np.flatnonzero(secs > high + 3 * (high - low))
  slowest = sorted(outliers[np.argsort(-secs[outliers], kind='stable')][:_MAX_OUTLIERS])
  return [{'global_step': int(steady.global_step[index]), 'secs': float(secs[index])}
          for index in slowest]


def _format_log_line(figures: Dict[str, Any]) -> str:
  text = '{:,.0f} examples/sec over {} steps, p50 {:.1f} ms per step'.format(
      figures['examples_per_sec'], figures['steps_timed'], 1e3 * figures['step_secs']['p50'])
  shares = figures['shares']
  if shares['input'] is None:
    text += '; {:.0%} of the time between steps; the wait for input was not observed'.format(
        shares['between'])
  else:
    text += '; {} ({:.0%} of the time for input, {:.0%} between steps)'.format(
        figures['verdict'], shares['input'], shares['between'])
  if figures['pauses']:
    text += '; {:,.0f} examples/sec without {}'.format(
        figures['steady_examples_per_sec'], ' and '.join(
            '{count} {}(s) of {secs:.1f} s in total'.format(kind, **total)
            for kind, total in sorted(figures['pauses'].items())))
  if not figures['steady_state']:
    text += '; no steady state: the run is not longer than its warm-up'
  return text


def _distribution(secs: np.ndarray) -> Optional[Dict[str, float]]:
  """Returns the distribution of a time over the steps; None if the time was not observed."""
  if np.isnan(secs).any():
    return None
  p50, p90, p99 = np.percentile(secs, [50, 90, 99])
  return {'mean': float(np.mean(secs)), 'p50': float(p50), 'p90': float(p90), 'p99': float(p99),
          'max': float(np.max(secs))}
