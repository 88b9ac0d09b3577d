"""From the times of the steps to `throughput.json`."""

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
FILE = 'throughput.json'
_MAX_OUTLIERS = 20
# A share of the time that is worth removing.
_WORTH_IT = 0.1
_BOUND = {'input': 'input-bound', 'compute': 'compute-bound', 'between': 'overhead-bound'}


class Steps(NamedTuple):
  """The timed steps of a run, each array a figure a step.

  Attributes:
    global_step: their numbers.
    wall_secs: from the end of the step before to the end of this one.
    run_secs: of that, inside the session's run.
    wait_secs: of that, until the step's batch was there; nan where that was not observed.
    steady_secs: the wall time without the pauses in it.
    is_steady: whether it was left alone, not traced.
    pauses: by kind how many there were, and their seconds.
  """
  global_step: np.ndarray
  wall_secs: np.ndarray
  run_secs: np.ndarray
  wait_secs: np.ndarray
  steady_secs: np.ndarray
  is_steady: np.ndarray
  pauses: Dict[str, Dict[str, Any]]

  @property
  def steady(self) -> 'Steps':
    """Those that were left alone; all, if none was."""
    chosen = self.is_steady if self.is_steady.any() else ~self.is_steady
    return self._replace(**{name: getattr(self, name)[chosen]
                            for name in self._fields if name != 'pauses'})


def write(settings: Settings, conditions: Dict[str, Any], timing: Timing,
          workers: Mapping[str, Dict[str, Any]] = MappingProxyType({})) -> Dict[str, Any]:
  """Writes `throughput.json` and `report/steps.json`, unless no step was run.

  Args:
    settings: of the run.
    conditions: what the figures depend on, by their names in the file.
    timing: of the steps.
    workers: the figures of the other workers, by their names, as of_worker tells them.

  Returns:
    The run's headline figures.
  """
  result = result_of(settings[groups.Run], timing)
  run_dir = RunDir(settings.model_dir)
  result['examples_seen'] = run_dir.examples_seen(
      timing.global_step, conditions['examples_per_step'])
  if not timing.ended:
    return result
  steps = timed_steps(timing, settings.throughput_warmup_steps)
  figures = summarize(steps, conditions['examples_per_step'], conditions['num_replicas'])
  if workers:
    figures.update(_of_all(settings[groups.Devices], figures, workers, conditions['num_replicas']))
  is_steady = timing.steps_run > settings.throughput_warmup_steps
  figures['warmup_steps'] = settings.throughput_warmup_steps if is_steady else 0
  figures['steady_state'] = is_steady
  figures['time_to_first_step_secs'] = sum(timing.start_up_secs.values())
  figures['first_step_parts_secs'] = timing.start_up_secs
  figures['global_step'] = timing.global_step
  figures['examples_seen'] = result['examples_seen']
  figures.update(conditions)
  atomic.write_json(run_dir.file(FILE), figures)
  step_curve.write(run_dir.path, steps.steady.global_step, steps.steady.steady_secs)
  _LOG.info('%s', _in_words(figures))
  result.update((name, figures[name]) for name in (
      'examples_per_sec', 'time_to_first_step_secs', 'steady_state', 'verdict'))
  return result


def result_of(settings: groups.Run, timing: Timing) -> Dict[str, Any]:
  """Returns what a task tells of its training, apart from its speed."""
  return {'mode': settings.mode, 'model_dir': settings.model_dir,
          'global_step': timing.global_step, 'steps_run': timing.steps_run,
          'train_loss': timing.loss}


def of_worker(settings: groups.Reporting, conditions: Dict[str, Any],
              timing: Timing) -> Dict[str, Any]:
  """Returns the figures of a worker that the chief's report is to have; none without a step."""
  if not timing.ended:
    return {}
  steps = timed_steps(timing, settings.throughput_warmup_steps)
  figures = summarize(steps, conditions['examples_per_step'], conditions['num_replicas'])
  return _as_one_of_several(figures)


def _as_one_of_several(figures: Dict[str, Any]) -> Dict[str, Any]:
  """Returns of a worker's figures those that tell it from the others."""
  told = {name: figures[name] for name in ('steps_timed', 'wall_secs', 'examples', 'shares')}
  told.update((name + '_p50', figures[name] and figures[name]['p50']) for name in (
      'step_secs', 'session_run_secs', 'input_wait_secs', 'between_secs'))
  return told


def _of_all(settings: groups.Devices, figures: Dict[str, Any],
            workers: Mapping[str, Dict[str, Any]], num_replicas: int) -> Dict[str, Any]:
  """Returns the figures of all workers, the chief's among them.

  In step, each has counted the examples of all; else theirs are added up, over the same wall time.
  The slowest is the one that the others wait for: it takes longest for its input and between its
  steps. Where nobody waits it is the one with the longest steps.
  """
  told = {'chief': _as_one_of_several(figures), **workers}
  in_step = settings.distribution_strategy != 'parameter_server'
  parts = ('input_wait_secs_p50', 'between_secs_p50') if in_step else ('step_secs_p50',)
  slowest = max(told, key=lambda name: sum(told[name].get(part) or 0 for part in parts))
  of_all: Dict[str, Any] = {'workers': told, 'slowest_worker': slowest}
  if not in_step:
    rate = sum(worker.get('examples', 0) for worker in told.values()) / figures['wall_secs']
    of_all.update(examples_per_sec=rate, examples_per_sec_per_replica=rate / num_replicas)
  return of_all


def timed_steps(timing: Timing, warmup_steps: int) -> Steps:
  """Returns the steps after the warm-up; a run that is over before has no other than all.

  Args:
    timing: of the run, at least one step.
    warmup_steps: the first steps that are left out.
  """
  skipped = max(warmup_steps - timing.forgotten, 0) if timing.steps_run > warmup_steps else 0
  edges = np.concatenate([timing.began[:1], timing.ended])[skipped:]
  wall_secs = np.diff(edges)
  steady_secs, pauses = _without_pauses(edges, timing.pauses)
  global_step = np.arange(len(wall_secs)) + timing.global_step - len(wall_secs) + 1
  run_secs = np.subtract(timing.ended, timing.began)[skipped:]
  # The clock of the waits is the system's, which can be set while a step runs.
  wait_secs = np.clip(timing.waited[skipped:], 0, run_secs)
  return Steps(global_step, wall_secs, run_secs, wait_secs, steady_secs,
               ~np.isin(global_step, list(timing.traced)), pauses)


def summarize(steps: Steps, global_batch_size: int, num_replicas: int) -> Dict[str, Any]:
  """Works out the rate and the spread of a run's steps.

  The rate is examples over the wall time from the end of the last warm-up step to the end of the
  last step, so it counts what happens between steps too; it is never a mean of rates. In the
  steady rate neither checkpoints and evaluations in between count nor traced steps.

  Args:
    steps: at least one.
    global_batch_size: examples a step.
    num_replicas: over how many replicas.

  Returns:
    The figures by their names in `throughput.json`; seconds, and examples a second.
  """
  steady = steps.steady
  wall_secs = float(steps.wall_secs.sum())
  examples = len(steps.wall_secs) * global_batch_size
  figures: Dict[str, Any] = {
      'examples_per_sec': examples / wall_secs,
      'examples_per_sec_per_replica': examples / wall_secs / num_replicas,
      'steady_examples_per_sec': global_batch_size / float(steady.steady_secs.mean()),
      'step_secs': _spread(steps.wall_secs),
      'session_run_secs': _spread(steps.run_secs),
      'between_secs': _spread(steps.wall_secs - steps.run_secs),
      'input_wait_secs': _spread(steps.wait_secs),
      'steady_step_secs': _spread(steady.steady_secs),
      'standard_error_secs': _standard_error(steady.steady_secs),
      'drift': _drift(steady.steady_secs),
      'outliers': _outliers(steady),
      'pauses': steps.pauses,
      'traced_steps': int((~steps.is_steady).sum()),
      'wall_secs': wall_secs,
      'examples': examples,
      'steps_timed': len(steps.wall_secs),
      'shares': _shares(steady),
  }
  figures['verdict'] = _verdict(figures['shares'])
  return figures


def _shares(steady: Steps) -> Dict[str, Optional[float]]:
  """Returns what the steady steps' time goes into, as shares of it; None: not observed."""
  total = float(steady.steady_secs.sum())
  run, wait = float(steady.run_secs.sum()), float(steady.wait_secs.sum())
  if np.isnan(wait):
    return {'input': None, 'compute': None, 'between': 1 - run / total}
  return {'input': wait / total, 'compute': (run - wait) / total, 'between': 1 - run / total}


def _verdict(shares: Dict[str, Optional[float]]) -> Optional[str]:
  """Returns which of input, computing and the time between steps holds the training back.

  An input that is prepared ahead and keeps up is not waited for, however long it takes by itself;
  so a wait that would be worth removing says that the input is the slower of the two. Where it was
  not observed, only much time between the steps can be told: None otherwise.
  """
  most = max(('input', 'between'), key=lambda part: shares[part] or 0.)
  if (shares[most] or 0.) >= _WORTH_IT:
    return _BOUND[most]
  return None if shares['input'] is None else _BOUND['compute']


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


def _outliers(steady: Steps) -> List[Dict[str, Any]]:
  """Returns the slowest steps among those far outside of the rest, by their global step.

  Far is more than three times the middle half's width above it (Tukey 1977, "far out").
  """
  secs = steady.steady_secs
  low, high = np.percentile(secs, [25, 75])
  far = np.flatnonzero(secs > high + 3 * (high - low))
  slowest = sorted(far[np.argsort(-secs[far], kind='stable')][:_MAX_OUTLIERS])
  return [{'global_step': int(steady.global_step[index]), 'secs': float(secs[index])}
          for index in slowest]


def _in_words(figures: Dict[str, Any]) -> str:
  """Returns a line for people."""
  text = '{:,.0f} examples/sec over {} steps, p50 {:.1f} ms a step'.format(
      figures['examples_per_sec'], figures['steps_timed'], 1e3 * figures['step_secs']['p50'])
  shares = figures['shares']
  if shares['input'] is None:
    text += '; {:.0%} of the time between steps, the wait for input was not observed'.format(
        shares['between'])
  else:
    text += '; {} ({:.0%} of the time for input, {:.0%} between steps)'.format(
        figures['verdict'], shares['input'], shares['between'])
  if figures['pauses']:
    text += '; {:,.0f} without {}'.format(figures['steady_examples_per_sec'], ' and '.join(
        '{count} {}(s) of {secs:.1f} s'.format(what, **of_kind)
        for what, of_kind in sorted(figures['pauses'].items())))
  if not figures['steady_state']:
    text += '; no steady state: the run is shorter than its warm-up'
  return text


def _spread(secs: np.ndarray) -> Optional[Dict[str, float]]:
  """Returns the spread of a figure over the steps; None where it was not observed."""
  if np.isnan(secs).any():
    return None
  p50, p90, p99 = np.percentile(secs, [50, 90, 99])
  return {'mean': float(np.mean(secs)), 'p50': float(p50), 'p90': float(p90), 'p99': float(p99),
          'max': float(np.max(secs))}
