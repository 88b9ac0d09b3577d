"""From the times of the steps to `throughput.json`."""

import logging
import os
from typing import Any, Dict, Optional, Sequence

import numpy as np

from estimator_train import whole_files
from estimator_train.settings import Settings
from estimator_train.timing import Timing

_LOG = logging.getLogger('estimator_train')
FILE = 'throughput.json'


def write(settings: Settings, conditions: Dict[str, Any], timing: Timing) -> Dict[str, Any]:
  """Writes `throughput.json`, unless no step was run, and returns the run's headline figures."""
  result = {'mode': settings.mode, 'model_dir': settings.model_dir,
            'global_step': timing.global_step, 'steps_run': len(timing.ended),
            'train_loss': timing.loss}
  if not timing.ended:
    return result
  figures = summarize(timing.began, timing.ended, settings.throughput_warmup_steps,
                      settings.batch_size, conditions['num_replicas'])
  figures['time_to_first_step_secs'] = timing.time_to_first_step_secs
  figures['global_step'] = timing.global_step
  figures.update(conditions)
  assert settings.model_dir is not None
  whole_files.write_json(os.path.join(settings.model_dir, FILE), figures)
  _LOG.info('%s', _in_words(figures))
  result.update((name, figures[name]) for name in (
      'examples_per_sec', 'time_to_first_step_secs', 'steady_state'))
  return result


def summarize(began: Sequence[float], ended: Sequence[float], warmup_steps: int,
              global_batch_size: int, num_replicas: int) -> Dict[str, Any]:
  """Works out the rate and the spread of a run's steps.

  The rate is examples over the wall time from the end of the last warm-up step to the end of the
  last step, so it counts what happens between steps too; it is never a mean of rates. A run that
  is over before its warm-up has no steady state: all its steps are taken, from the beginning of
  the first, and `steady_state` is false.

  Args:
    began: seconds at the beginning of each step's session.run, at least one.
    ended: seconds at its end.
    warmup_steps: the first steps that are left out.
    global_batch_size: examples a step.
    num_replicas: over how many replicas.

  Returns:
    The figures by their names in `throughput.json`; seconds, and examples a second.
  """
  steady = len(ended) > warmup_steps
  skipped = warmup_steps if steady else 0
  edges = np.concatenate([began[:1], ended])[skipped:]
  step_secs = np.diff(edges)
  session_run_secs = np.subtract(ended, began)[skipped:]
  wall_secs = float(edges[-1] - edges[0])
  examples_per_sec = len(step_secs) * global_batch_size / wall_secs
  return {
      'examples_per_sec': examples_per_sec,
      'examples_per_sec_per_replica': examples_per_sec / num_replicas,
      'step_secs': _spread(step_secs),
      'session_run_secs': _spread(session_run_secs),
      'wall_secs': wall_secs,
      'steps_timed': len(step_secs),
      'warmup_steps': skipped,
      'steady_state': steady,
  }


def _in_words(figures: Dict[str, Any]) -> str:
  """Returns a line for people."""
  text = '{:,.0f} examples/sec over {} steps, p50 {:.1f} ms a step'.format(
      figures['examples_per_sec'], figures['steps_timed'], 1e3 * figures['step_secs']['p50'])
  if not figures['steady_state']:
    text += '; no steady state: the run is shorter than its warm-up'
  return text


def _spread(secs: np.ndarray) -> Dict[str, Optional[float]]:
  p50, p90, p99 = np.percentile(secs, [50, 90, 99])
  return {'mean': float(np.mean(secs)), 'p50': float(p50), 'p90': float(p90), 'p99': float(p99),
          'max': float(np.max(secs))}
