"""`TimeHistory`: the hook that measures every training step."""

import time
from array import array
from typing import Any, Callable, Optional

import tensorflow.compat.v1 as tf

from estimator_train.process_age import process_age_secs


class TimeHistory(tf.train.SessionRunHook):
  """Keeps when each step began and ended.

  Two clock readings and two appends a step; everything else is worked out after the run.
  Estimator calls its hooks in order, so this one is to be given first: what the others do after a
  step (saving a checkpoint, say) is then in the wall time between steps, not in the run's.

  Attributes:
    began: seconds, the clock just before each step's session.run.
    ended: seconds, the clock just after it.
    time_to_first_step_secs: from the start of the process to the end of its first step; None
      before that.
  """

  def __init__(self,
               clock: Callable[[], float] = time.perf_counter,
               process_age: Callable[[], float] = process_age_secs) -> None:
    self.began = array('d')
    self.ended = array('d')
    self.time_to_first_step_secs: Optional[float] = None
    self._clock = clock
    self._process_age = process_age

  def before_run(self, run_context: Any) -> None:
    self.began.append(self._clock())

  def after_run(self, run_context: Any, run_values: Any) -> None:
    self.ended.append(self._clock())
    if self.time_to_first_step_secs is None:
      self.time_to_first_step_secs = self._process_age()
