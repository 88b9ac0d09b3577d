"""From the times of the steps to `throughput.json`."""

import logging
import os
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from estimator_train import whole_files
from estimator_train.settings import Settings
from estimator_train.timing import Pause, Timing

_LOG = logging.getLogger('estimator_train')
FILE = 'throughput.json'
_MAX_OUTLIERS = 20


def write(settings: Settings, conditions: Dict[str, Any], timing: Timing) -> Dict[str, Any]:
  """Writes `throughput.json`, unless no step was run, and returns the run's headline figures."""
  result = {'mode': settings.mode, 'model_dir': settings.model_dir,
            'global_step': timing.global_step, 'steps_run': len(timing.ended),
            'train_loss': timing.loss}
  if not timing.ended:
    return result
  figures = summarize(timing, settings.throughput_warmup_steps, settings.batch_size,
                      conditions['num_replicas'])
  figures['time_to_first_step_secs'] = timing.time_to_first_step_secs
  figures['global_step'] = timing.global_step
  figures.update(conditions)
  assert settings.model_dir is not None
  whole_files.write_json(os.path.join(settings.model_dir, FILE), figures)
  _LOG.info('%s', _in_words(figures))
  result.update((name, figures[name]) for name in (
      'examples_per_sec', 'time_to_first_step_secs', 'steady_state'))
  return result


def summarize(timing: Timing, warmup_steps: int, global_batch_size: int,
              num_replicas: int) -> Dict[str, Any]:
  """Works out the rate and the spread of a run's steps.

  The rate is examples over the wall time from the end of the last warm-up step to the end of the
  last step, so it counts what happens between steps too; it is never a mean of rates. In the
  steady rate the checkpoints and evaluations in between do not count. A run that is over before
  its warm-up has no steady state: all its steps are taken, from the beginning of the first, and
  `steady_state` is false.

  Args:
    timing: of the run, at least one step.
    warmup_steps: the first steps that are left out.
    global_batch_size: examples a step.
    num_replicas: over how many replicas.

  Returns:
    The figures by their names in `throughput.json`; seconds, and examples a second.
  """
  steady = len(timing.ended) > warmup_steps
  skipped = warmup_steps if steady else 0
  edges = np.concatenate([timing.began[:1], timing.ended])[skipped:]
  step_secs = np.diff(edges)
  session_run_secs = np.subtract(timing.ended, timing.began)[skipped:]
  steady_secs, pauses = _without_pauses(edges, timing.pauses)
  wall_secs = float(edges[-1] - edges[0])
  examples = len(step_secs) * global_batch_size
  first = timing.global_step - len(step_secs) + 1
  return {
      'examples_per_sec': examples / wall_secs,
      'examples_per_sec_per_replica': examples / wall_secs / num_replicas,
      'steady_examples_per_sec': examples / float(steady_secs.sum()),
      'step_secs': _spread(step_secs),
      'session_run_secs': _spread(session_run_secs),
      'between_secs': _spread(step_secs - session_run_secs),
      'steady_step_secs': _spread(steady_secs),
      'standard_error_secs': _standard_error(steady_secs),
      'drift': _drift(steady_secs),
      'outliers': _outliers(steady_secs, first),
      'pauses': pauses,
      'wall_secs': wall_secs,
      'steps_timed': len(step_secs),
      'warmup_steps': skipped,
      'steady_state': steady,
  }


def _without_pauses(edges: np.ndarray,
                    pauses: Sequence[Pause]) -> Tuple[np.ndarray, Dict[str, Dict[str, Any]]]:
  """Takes the pauses out of the steps that they lie in.

  Args:
    edges: seconds, when the first step began and when each ended.
    pauses: some may lie before or after.

  Returns:
    The seconds of each step without them; and by kind how many there were, and their seconds.
  """
  secs = np.diff(edges)
  found: Dict[str, Dict[str, Any]] = {}
  for pause in pauses:
    step = int(np.searchsorted(edges, pause.at, side='right')) - 1
    if 0 <= step < len(secs):
      secs[step] -= pause.secs
      of_kind = found.setdefault(pause.what, {'count': 0, 'secs': 0.})
      of_kind['count'] += 1
      of_kind['secs'] += pause.secs
  return secs, found


def _standard_error(secs: np.ndarray) -> Optional[float]:
  """Returns the standard error of the mean; None where one step tells nothing of it."""
  return float(np.std(secs, ddof=1) / np.sqrt(len(secs))) if len(secs) > 1 else None


def _drift(secs: np.ndarray) -> Optional[float]:
  """Returns by what share the last quarter of the steps took longer than the first; or None."""
  quarter = len(secs) // 4
  return float(np.mean(secs[-quarter:]) / np.mean(secs[:quarter]) - 1) if quarter else None


def _outliers(secs: np.ndarray, first: int) -> List[Dict[str, Any]]:
  """Returns the slowest steps among those far outside of the rest, by their global step.

  Far is more than three times the middle half's width above it (Tukey 1977, "far out").
  """
  low, high = np.percentile(secs, [25, 75])
  far = np.flatnonzero(secs > high + 3 * (high - low))
  slowest = sorted(far[np.argsort(-secs[far], kind='stable')][:_MAX_OUTLIERS])
  return [{'global_step': first + int(index), 'secs': float(secs[index])} for index in slowest]


def _in_words(figures: Dict[str, Any]) -> str:
  """Returns a line for people."""
  text = '{:,.0f} examples/sec over {} steps, p50 {:.1f} ms a step'.format(
      figures['examples_per_sec'], figures['steps_timed'], 1e3 * figures['step_secs']['p50'])
  if figures['pauses']:
    text += '; {:,.0f} without {}'.format(figures['steady_examples_per_sec'], ' and '.join(
        '{count} {}(s) of {secs:.1f} s'.format(what, **of_kind)
        for what, of_kind in sorted(figures['pauses'].items())))
  if not figures['steady_state']:
    text += '; no steady state: the run is shorter than its warm-up'
  return text


def _spread(secs: np.ndarray) -> Dict[str, Optional[float]]:
  p50, p90, p99 = np.percentile(secs, [50, 90, 99])
  return {'mean': float(np.mean(secs)), 'p50': float(p50), 'p90': float(p90), 'p99': float(p99),
          'max': float(np.max(secs))}
