"""The hook that counts the steps, for all others."""

from typing import Any

import tensorflow.compat.v1 as tf


class StepCounter(tf.train.SessionRunHook):
  """Counts the steps from that of the checkpoint; to be given before the hooks that read it.

  Args:
    counts_own_steps: whether each global step is one of this process. Where other workers take
      steps in between, `global_step` is refreshed now and then.

  Attributes:
    first_step: the global step at which the session began.
    step: that plus the steps of this process since, the running one not counted.
    global_step: the global step that is known to be reached, at least `step`.
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
    """Reads the global step where others take steps, too."""
    if not self._counts_own_steps:
      self.global_step = max(read_global_step(session), self.global_step)


def read_global_step(session: tf.Session) -> int:
  """Returns the value of the global step's variable."""
  return int(session.run(tf.train.get_global_step(session.graph)))
