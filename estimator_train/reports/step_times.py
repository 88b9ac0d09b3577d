"""The types of the step times that the hooks of a training run measure and the reports read."""

from typing import Dict, FrozenSet, NamedTuple, Optional, Sequence


class Pause(NamedTuple):
  """Time between two steps spent on a checkpoint, an evaluation or a trace.

  Attributes:
    kind: `checkpoint`, `evaluation` or `trace`.
    start_time: start time in seconds, by the same clock as the step times.
    secs: duration in seconds.
  """
  kind: str
  start_time: float
  secs: float


class Timing(NamedTuple):
  """The times of the steps of one run; for a long run, only those of its last steps.

  Attributes:
    start_times: for each step, the time just before its session.run, in seconds.
    end_times: for each step, the time just after its session.run, in seconds.
    input_wait_secs: for each step, the seconds from its start until its batch was available on all
      replicas; nan if that was not observed.
    start_up_secs: seconds by phase, from the start of the process to the end of its first step;
      empty if no step was run.
    global_step: global step of the last checkpoint of the run.
    loss: last finite loss, the mean over the global batch of its step; None if there is none.
    pauses: pauses between the steps.
    traced_steps: global steps that were traced, which are slower than others.
    discarded_steps: number of earlier steps of the run whose times were not kept.
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
  def steps_run(self) -> int:
    """The number of steps of the run."""
    return self.discarded_steps + len(self.end_times)
