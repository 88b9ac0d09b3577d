"""What a training run measured of itself, on its way from the hooks to the reports."""

from typing import Dict, FrozenSet, NamedTuple, Optional, Sequence


class Pause(NamedTuple):
  """Time between two steps that went into something else.

  Attributes:
    what: `checkpoint`, `evaluation` or `trace`.
    at: seconds, the clock of the steps when it began.
    secs: how long it took.
  """
  what: str
  at: float
  secs: float


class Timing(NamedTuple):
  """When the steps of one run, or of a long one the last of them, began and ended.

  Attributes:
    began: seconds, the clock just before each step's session.run.
    ended: seconds, the clock just after it.
    waited: seconds of each session.run until the step's batch was there, on all replicas; nan where
      that was not observed.
    start_up_secs: by part, from the start of the process to the end of its first step; empty
      without a step.
    global_step: the step of the checkpoint that the run left.
    loss: of the last step, the mean over its global batch; None without a step.
    pauses: what the run did between its steps.
    traced: the global steps that were slowed down by tracing them.
    forgotten: the steps of the run before the first of these.
  """
  began: Sequence[float]
  ended: Sequence[float]
  waited: Sequence[float]
  start_up_secs: Dict[str, float]
  global_step: int
  loss: Optional[float]
  pauses: Sequence[Pause] = ()
  traced: FrozenSet[int] = frozenset()
  forgotten: int = 0

  @property
  def steps_run(self) -> int:
    return self.forgotten + len(self.ended)
