"""The hook that counts the steps for all other hooks."""

from typing import Any

import tensorflow.compat.v1 as tf

from estimator_train.tf_patches.sessions import read_global_step


class StepCounter(tf.train.SessionRunHook):
  """Counts the steps, starting at the step of the checkpoint.

  This hook must come before the hooks that use its counts.

  Args:
    is_synchronous: whether each global step is a step of this process, too. Otherwise other workers
      also increment the global step, and `global_step` is exact only after `update_global_step`.

  Attributes:
    start_step: the global step at which the session began.
    step_of_process: `start_step` plus the number of steps that this process has completed since
      then. In synchronous training, it is the global step.
    global_step: the last known value of the global step, at least `step_of_process`.
  """

  def __init__(self, is_synchronous: bool = True) -> None:
    self._is_synchronous = is_synchronous
    self.start_step = self.step_of_process = self.global_step = 0

  def after_create_session(self, session: tf.Session, coord: Any) -> None:
    self.start_step = self.step_of_process = self.global_step = read_global_step(session)

  def after_run(self, run_context: Any, run_values: Any) -> None:
    self.step_of_process += 1
    self.global_step += 1

  def update_global_step(self, session: tf.Session) -> None:
    """Reads `global_step` from the session if other workers increment the global step too."""
    if not self._is_synchronous:
      self.global_step = max(read_global_step(session), self.global_step)
