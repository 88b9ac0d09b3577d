"""Measured times of a training run: written by the hooks, read by the reports."""

from typing import Dict, FrozenSet, NamedTuple, Optional, Sequence


class Pause(NamedTuple):
  """Time between two steps spent on a checkpoint, an evaluation or a trace.

  Attributes:
    kind: `checkpoint`, `evaluation` or `trace`.
    began: start time in seconds, by the clock of the steps.
    secs: duration in seconds.
  """
  kind: str
  began: float
  secs: float


class Timing(NamedTuple):
  """The times of the steps of one run. For a long run, only the times of its last steps are kept.

  Attributes:
    began: time just before each step's session.run, in seconds.
    ended: time just after it, in seconds.
    waited: seconds of each session.run until the step's batch was available on all replicas; nan
      if that was not observed.
    start_up_secs: seconds by part, from the start of the process to the end of its first step;
      empty if no step was run.
    global_step: global step of the last checkpoint of the run.
    loss: loss of the last step, the mean over its global batch; None if no step was run.
    pauses: pauses between the steps.
    traced: global steps that were traced, which slows them down.
    discarded_steps: number of earlier steps of the run whose times were not kept.
  """
  began: Sequence[float]
  ended: Sequence[float]
  waited: Sequence[float]
  start_up_secs: Dict[str, float]
  global_step: int
  loss: Optional[float]
  pauses: Sequence[Pause] = ()
  traced: FrozenSet[int] = frozenset()
  discarded_steps: int = 0

  @property
  def steps_run(self) -> int:
    """The number of steps of the run."""
    return self.discarded_steps + len(self.ended)
