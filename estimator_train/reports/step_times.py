"""Computes the rates and the bottleneck of a training run from the times of its steps."""

from typing import Any, Dict, FrozenSet, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from estimator_train.reports import verdicts

_MAX_OUTLIERS = 20
# Waits for input that take a smaller share of the step time may be those of single batches.
_INPUT_BOUND_SHARE = 0.25


class Pause(NamedTuple):
  """A period between two steps that is not spent on training, but for example on a checkpoint.

  Attributes:
    kind: `checkpoint`, `evaluation`, `trace` or `recovery`.
    start_time: `time.perf_counter` at the start of the pause.
  """
  kind: str
  start_time: float
  secs: float


class RunTimes(NamedTuple):
  """The times of the steps of one run, in seconds. In a long run, only the last steps are stored.

  Attributes:
    start_times, end_times: for each step, `time.perf_counter` just before and just after
      session.run.
    input_wait_secs: for each step, the time from its start until its batch was available on all
      replicas; nan if the wait was not observed.
    start_up_secs: the duration of each phase of the start-up. The start-up lasts from the start of
      the process to the end of its first step. In a TimeHistory of a later training run, it starts
      when the graph is complete. Empty if no step was run.
    global_step: the global step of the last checkpoint of the run.
    loss: the last finite training loss, a mean over the global batch; None if there is none.
    traced_steps: values of StepMonitor.local_step.
    discarded_steps: the number of steps at the start of the run whose times are no longer stored.
    local_step: StepMonitor.local_step after the last step; None if it is `global_step`, as in
      synchronous training.
  """
  start_times: Sequence[float]
  end_times: Sequence[float]
  input_wait_secs: Sequence[float]
  start_up_secs: Dict[str, float]
  global_step: int
  loss: Optional[float]
  pauses: Sequence[Pause] = ()
  traced_steps: FrozenSet[int] = frozenset()
  discarded_steps: int = 0
  local_step: Optional[int] = None

  @property
  def time_to_first_step_secs(self) -> Optional[float]:
    """The time until the first step ends, the sum of `start_up_secs`; None if not observed."""
    return sum(self.start_up_secs.values()) if self.start_up_secs else None

  @property
  def steps_run(self) -> int:
    return self.discarded_steps + len(self.end_times)


class TimedSteps(NamedTuple):
  """The steps of a run after its warm-up. All arrays have shape [num_steps].

  Attributes:
    wall_secs: the seconds from the end of the previous step to the end of this step.
    session_run_secs: the part of `wall_secs` inside session.run.
    input_wait_secs: the part of `session_run_secs` until the step's batch was available; nan if
      the wait was not observed.
    pauses: `count` and total `secs` of the pauses, by kind.
  """
  global_step: np.ndarray
  wall_secs: np.ndarray
  session_run_secs: np.ndarray
  input_wait_secs: np.ndarray
  secs_without_pauses: np.ndarray
  is_traced: np.ndarray
  pauses: Dict[str, Dict[str, Any]]

  @property
  def steady(self) -> 'TimedSteps':
    """The steps that were not traced, or all steps if all were traced."""
    selected = ~self.is_traced | self.is_traced.all()
    return self._replace(**{name: getattr(self, name)[selected]
                            for name in self._fields if name != 'pauses'})


def select_timed_steps(times: RunTimes, warmup_steps: int) -> TimedSteps:
  """Returns the steps after the warm-up, or all steps if the run is not longer than the warm-up.

  There must be at least one step.
  """
  first = max(warmup_steps - times.discarded_steps, 0) if times.steps_run > warmup_steps else 0
  # The start of the first step, then the end of each step.
  boundaries = np.concatenate([times.start_times[:1], times.end_times])[first:]
  wall_secs = np.diff(boundaries)
  secs_without_pauses, pauses = _subtract_pauses(boundaries, times.pauses)
  offsets = np.arange(1 - len(wall_secs), 1)  # From the last step.
  local_step = times.global_step if times.local_step is None else times.local_step
  session_run_secs = np.subtract(times.end_times, times.start_times)[first:]
  # Clipped because waits are measured by the system clock, which may be adjusted during a step.
  input_wait_secs = np.clip(times.input_wait_secs[first:], 0, session_run_secs)
  return TimedSteps(offsets + times.global_step, wall_secs, session_run_secs, input_wait_secs,
                    secs_without_pauses, np.isin(offsets + local_step, list(times.traced_steps)),
                    pauses)


def compute_figures(steps: TimedSteps, conditions: Mapping[str, Any]) -> Dict[str, Any]:
  """Computes the rates and the distributions of the step times, by their keys in `throughput.json`.

  The rate is examples ÷ wall time, never a mean of rates. The wall time lasts from the end of the
  last warm-up step to the end of the last step, including the time between steps. The steady rate
  excludes pauses and traced steps.

  Args:
    steps: the timed steps, at least one.
    conditions: includes `examples_per_step`, the global batch size, and `num_replicas` of all
      workers. If `examples_per_step` is None, all rates in examples/sec are None.
  """
  examples_per_step, num_replicas = conditions['examples_per_step'], conditions['num_replicas']
  steady, num_steps = steps.steady, len(steps.wall_secs)
  steady_secs, quarter = steady.secs_without_pauses, len(steady.wall_secs) // 4
  wall_secs = float(steps.wall_secs.sum())
  steps_per_sec, steady_steps_per_sec = num_steps / wall_secs, 1 / float(steady_secs.mean())
  shares = _compute_shares(steady)

  def to_examples(steps_or_rate: float) -> Optional[float]:
    """Converts steps to examples, or steps/sec to examples/sec."""
    return None if examples_per_step is None else steps_or_rate * examples_per_step

  return {
      'examples_per_sec': to_examples(steps_per_sec),
      'examples_per_sec_per_replica': to_examples(steps_per_sec / num_replicas),
      'steady_examples_per_sec': to_examples(steady_steps_per_sec),
      'steps_per_sec': steps_per_sec,
      'steady_steps_per_sec': steady_steps_per_sec,
      'step_secs': _compute_distribution(steps.wall_secs),
      'session_run_secs': _compute_distribution(steps.session_run_secs),
      'between_secs': _compute_distribution(steps.wall_secs - steps.session_run_secs),
      'input_wait_secs': _compute_distribution(steps.input_wait_secs),
      'steady_step_secs': _compute_distribution(steady_secs),
      'standard_error_secs': float(np.std(steady_secs, ddof=1) / np.sqrt(len(steady_secs)))
                             if len(steady_secs) > 1 else None,
      # The relative increase of the mean step time from the first to the last quarter.
      'drift': float(np.mean(steady_secs[-quarter:]) / np.mean(steady_secs[:quarter]) - 1)
               if quarter else None,
      'outliers': _find_outliers(steady),
      'pauses': steps.pauses,
      'traced_steps': int(steps.is_traced.sum()),
      'wall_secs': wall_secs,
      'examples': to_examples(num_steps),
      'steps_timed': num_steps,
      'shares': shares,
      'verdict': _find_bottleneck(shares),
  }


def _compute_shares(steady: TimedSteps) -> Dict[str, Optional[float]]:
  """Returns the fractions of the time spent on input, on computation and between steps.

  An unknown fraction is None.
  """
  total_secs = float(steady.secs_without_pauses.sum())
  run_secs, wait_secs = steady.session_run_secs.sum(), steady.input_wait_secs.sum()
  overhead = 1 - float(run_secs) / total_secs
  if np.isnan(wait_secs):
    return {'input': None, 'compute': None, 'between': overhead}
  return {'input': float(wait_secs) / total_secs,
          'compute': float(run_secs - wait_secs) / total_secs, 'between': overhead}


def _find_bottleneck(shares: Dict[str, Optional[float]]) -> Optional[str]:
  """Returns the verdict, one of verdicts.TEXTS; None if unknown.

  Batches are prefetched while the model computes, so a step waits only if the input is slower than
  the model. In contrast, the time between steps is added to the computation, so the larger one of
  the two limits the speed.
  """
  between = shares['between'] or 0.
  if shares['input'] is None or shares['compute'] is None:
    return verdicts.OVERHEAD_BOUND if between > .5 else None
  if shares['input'] >= max(_INPUT_BOUND_SHARE, between):
    return verdicts.INPUT_BOUND
  return verdicts.OVERHEAD_BOUND if between > shares['compute'] else verdicts.COMPUTE_BOUND


def _subtract_pauses(boundaries: np.ndarray,
                     pauses: Sequence[Pause]) -> Tuple[np.ndarray, Dict[str, Dict[str, Any]]]:
  """Subtracts each pause from the time of the step that contains it.

  Args:
    boundaries: the start of the first step, then the end of each step, in seconds. A pause before
      the first step or after the last step is ignored.

  Returns:
    The seconds of each step without pauses, and, by kind, `count` and total `secs` of the pauses.
  """

  secs = np.diff(boundaries)
  totals: Dict[str, Dict[str, Any]] = {}
  for pause in pauses:
    step = int(np.searchsorted(boundaries, pause.start_time, side='right')) - 1
    if 0 <= step < len(secs):
      secs[step] -= pause.secs
      total = totals.setdefault(pause.kind, {'count': 0, 'secs': 0.})
      total['count'] += 1
      total['secs'] += pause.secs
  return secs, totals


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


def _compute_distribution(secs: np.ndarray) -> Optional[Dict[str, float]]:
  """Returns the distribution of a time over the steps; None if the time was not observed."""
  if np.isnan(secs).any():
    return None
  p50, p90, p99 = np.percentile(secs, [50, 90, 99])
  return {'mean': float(np.mean(secs)), 'p50': float(p50), 'p90': float(p90), 'p99': float(p99),
          'max': float(np.max(secs))}
