"""The hook that counts the steps for all other hooks."""

from typing import Any

import tensorflow.compat.v1 as tf


class StepCounter(tf.train.SessionRunHook):
  """Counts the steps, starting at the step of the checkpoint.

  It must come before the hooks that read it.

  Args:
    counts_own_steps: whether each global step is a step of this process. If other workers increment
      the global step too, `refresh` updates `global_step` from time to time.

  Attributes:
    first_step: the global step at which the session began.
    step: `first_step` plus the number of steps that this process has completed since.
    global_step: the last known value of the global step, at least `step`.
  """

  def __init__(self, counts_own_steps: bool = True) -> None:
    self._counts_own_steps = counts_own_steps
    self.first_step = self.step = self.global_step = 0

  def after_create_session(self, session: tf.Session, coord: Any) -> None:
    self.first_step = self.step = self.global_step = read_global_step(session)

  def after_run(self, run_context: Any, run_values: Any) -> None:
    self.step += 1
    self.global_step += 1

  def refresh(self, session: tf.Session) -> None:
    """Reads the global step from the session if other workers increment it too."""
    if not self._counts_own_steps:
      self.global_step = max(read_global_step(session), self.global_step)


def read_global_step(session: tf.Session) -> int:
  """Returns the value of the global step variable."""
  return int(session.run(tf.train.get_global_step(session.graph)))
