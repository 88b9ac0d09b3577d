"""`RecordSteps`: the hook that measures every training step."""

import math
import time
from array import array
from typing import Any, Callable, Optional

import tensorflow.compat.v1 as tf

from estimator_train.system.start_up import StartUpTimer
from estimator_train.training.hooks import input_wait

# At least the last 100,000 steps are kept. A step takes 24 bytes, so the times of all steps of a
# week-long run could fill the memory.
_NUM_STEPS_KEPT = 100000


class RecordSteps(tf.train.SessionRunHook):
  """Records when each recent step began and ended, and how long it waited for its batch.

  The cost per step is two clock readings, three appends and one more fetched scalar; everything
  else is computed after the run. This hook must be the first one in the list of hooks. Estimator
  calls the hooks in order, so the time that later hooks take after a step, for example to save a
  checkpoint, counts as time between steps, not as time of session.run.

  Args:
    start_up: the timer of the phases `graph`, `session`, `first_batch` and `first_step`.
    clock: a function that returns the time in seconds.

  Attributes:
    start_up: see the argument.
    run_args: the wait for input that the current step fetches, or a list of waits of several
      replicas; None: nothing. A single tensor takes less time than a list with one tensor.
    began: for each step, the time on `clock` just before session.run, in seconds.
    ended: for each step, the time on `clock` just after session.run, in seconds.
    waited: for each step, the seconds from `began` until the batch had arrived on all replicas; nan
      if this time was not measured.
    discarded_steps: the number of earlier steps whose times were discarded to save memory. The
      times of at least the last 100,000 steps are kept.
  """

  def __init__(self, start_up: StartUpTimer,
               clock: Callable[[], float] = time.perf_counter) -> None:
    self.began = array('d')
    self.ended = array('d')
    self.waited = array('d')
    self.discarded_steps = 0
    self.start_up = start_up
    self._clock = clock
    self._step_began = 0.
    self.run_args: Optional[tf.train.SessionRunArgs] = None

  def begin(self) -> None:
    self.start_up.end_phase('graph')
    self.add_probe()

  def add_probe(self) -> None:
    """Adds the operations that measure the wait for input."""
    probe = input_wait.add_probe(tf.get_default_graph())
    self.run_args = None if probe is None else tf.train.SessionRunArgs(probe)

  def before_run(self, run_context: Any) -> Optional[tf.train.SessionRunArgs]:
    if not self.began:
      self.start_up.end_phase('session')
    self._step_began = self._clock()
    return self.run_args

  def after_run(self, run_context: Any, run_values: Any) -> None:
    self.ended.append(self._clock())
    # before_run does not append this time, because a session.run that fails is not a step.
    self.began.append(self._step_began)
    waits = math.nan if self.run_args is None else run_values.results
    self.waited.append(max(waits) if isinstance(waits, list) else waits)
    if len(self.ended) == 1:
      self.start_up.end_first_step(self.waited[0])
    if len(self.ended) == 2 * _NUM_STEPS_KEPT:
      self.discarded_steps += _NUM_STEPS_KEPT
      for times in (self.began, self.ended, self.waited):
        del times[:_NUM_STEPS_KEPT]

  def remove_last_steps(self, count: int) -> None:
    """Removes the last steps, as if they had not been taken."""
    num_kept = max(0, len(self.ended) - count)
    self.discarded_steps -= count - (len(self.ended) - num_kept)
    for times in (self.began, self.ended, self.waited):
      del times[num_kept:]
