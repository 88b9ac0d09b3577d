"""What a training run measured of itself, on its way from the hook to the reports."""

from typing import NamedTuple, Optional, Sequence


class Pause(NamedTuple):
  """Time between two steps that went into something else.

  Attributes:
    what: `checkpoint` or `evaluation`.
    at: seconds, the clock of the steps when it began.
    secs: how long it took.
  """
  what: str
  at: float
  secs: float


class Timing(NamedTuple):
  """When the steps of one run began and ended.

  Attributes:
    began: seconds, the clock just before each step's session.run.
    ended: seconds, the clock just after it.
    time_to_first_step_secs: from the start of the process to the end of its first step.
    global_step: the step of the checkpoint that the run left.
    loss: of the last step, the mean over its global batch; None without a step.
    pauses: what the run did between its steps.
  """
  began: Sequence[float]
  ended: Sequence[float]
  time_to_first_step_secs: Optional[float]
  global_step: int
  loss: Optional[float]
  pauses: Sequence[Pause] = ()
