"""`TimeHistory`: the hook that measures every training step."""

import math
import time
from array import array
from typing import Any, Callable, Optional

import tensorflow.compat.v1 as tf

from estimator_train.process.start_up import StartUp
from estimator_train.training.hooks import input_wait

# At 24 bytes a step, all steps of a week would fill the memory.
_MOST_STEPS = 100000


class TimeHistory(tf.train.SessionRunHook):
  """Keeps when each of the last steps began and ended, and how long it waited for its batch.

  Two clock readings, three appends and one more number to fetch a step; everything else is worked
  out after the run. Estimator calls its hooks in order, so this one is to be given first: what the
  others do after a step (saving a checkpoint, say) is then in the wall time between steps, not in
  the run's.

  Args:
    start_up: gets the parts `graph`, `session`, `first_batch` and `first_step`.
    clock: in seconds.

  Attributes:
    began: seconds, the clock just before each step's session.run.
    ended: seconds, the clock just after it.
    waited: seconds of it until the batch was there, on all replicas; nan where that was not
      observed.
    forgotten: steps before these; of a long run the last hundred thousand, at least, are kept.
  """

  def __init__(self, start_up: StartUp, clock: Callable[[], float] = time.perf_counter) -> None:
    self.began = array('d')
    self.ended = array('d')
    self.waited = array('d')
    self.forgotten = 0
    self._start_up = start_up
    self._clock = clock
    self._before = 0.
    self._fetch: Optional[tf.train.SessionRunArgs] = None

  def begin(self) -> None:
    self._start_up.end('graph')
    probe = input_wait.install(tf.get_default_graph())
    self._fetch = None if probe is None else tf.train.SessionRunArgs(probe)

  def before_run(self, run_context: Any) -> Optional[tf.train.SessionRunArgs]:
    if not self.began:
      self._start_up.end('session')
    self._before = self._clock()
    return self._fetch

  def after_run(self, run_context: Any, run_values: Any) -> None:
    self.ended.append(self._clock())
    # Only now, as a run that failed is not a step.
    self.began.append(self._before)
    self.waited.append(math.nan if self._fetch is None else run_values.results)
    if len(self.ended) == 1:
      self._start_up.end_first_step(self.waited[0])
    if len(self.ended) == 2 * _MOST_STEPS:
      self.forgotten += _MOST_STEPS
      for times in (self.began, self.ended, self.waited):
        del times[:_MOST_STEPS]
