"""What a training run measured of itself, on its way from the hook to the reports."""

from typing import NamedTuple, Optional, Sequence


class Timing(NamedTuple):
  """When the steps of one run began and ended.

  Attributes:
    began: seconds, the clock just before each step's session.run.
    ended: seconds, the clock just after it.
    time_to_first_step_secs: from the start of the process to the end of its first step.
    global_step: the step of the checkpoint that the run left.
    loss: of the last step, the mean over its global batch; None without a step.
  """
  began: Sequence[float]
  ended: Sequence[float]
  time_to_first_step_secs: Optional[float]
  global_step: int
  loss: Optional[float]
