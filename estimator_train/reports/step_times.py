"""Defines Timing and Pause. The hooks of a training run report the step times in these types."""

from typing import Dict, FrozenSet, NamedTuple, Optional, Sequence


class Pause(NamedTuple):
  """A time between two steps that is not spent on training, but for example on a checkpoint.

  Attributes:
    kind: what it is spent on: `checkpoint`, `evaluation`, `trace` or `recovery`.
    start_time: start time in seconds, on the clock of the times in Timing.
    secs: duration in seconds.
  """
  kind: str
  start_time: float
  secs: float


class Timing(NamedTuple):
  """The times of the steps of one run. Of a long run, only the last steps are kept.

  Attributes:
    start_times: for each step, `time.perf_counter` just before session.run.
    end_times: for each step, `time.perf_counter` just after session.run.
    input_wait_secs: for each step, the seconds from the start of the step until its batch was
      available on all replicas; nan if the wait was not observed.
    start_up_secs: the seconds of each phase of the start-up, which lasts from the start of the
      process to the end of its first step, or, in a TimeHistory of a later training run, from the
      complete graph on; empty if no step was run.
    global_step: global step of the last checkpoint of the run.
    loss: the last finite training loss, a mean over the global batch; None if there is none.
    pauses: pauses between the steps.
    traced_steps: global steps that were traced. Tracing makes a step slower.
    discarded_steps: number of steps at the start of the run whose times were not kept.
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

  @property
  def time_to_first_step_secs(self) -> Optional[float]:
    """The time until the first step ends, the sum of `start_up_secs`; None if not observed."""
    return sum(self.start_up_secs.values()) if self.start_up_secs else None

  @property
  def steps_run(self) -> int:
    """The number of steps of the run."""
    return self.discarded_steps + len(self.end_times)
