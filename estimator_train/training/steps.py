"""Counts the steps, and fetches the loss and the accuracy of each step."""

import math
from typing import Any

import tensorflow.compat.v1 as tf

from estimator_train.model import observation
from estimator_train.tf_patches import sessions

_NUM_BEFORE_THINNING = 10000  # The first 10,000 multiples are all logged, see is_logged.


class StepMonitor(tf.train.SessionRunHook):
  """Counts the steps, and fetches the loss and the accuracy of each step, for the later hooks.

  The counts start at the step of the checkpoint. The accuracy covers the replicas of this process
  only. An accuracy over all workers would take a collective operation, which every worker would
  have to run in every step.

  Args:
    is_synchronous: whether this process takes part in every global step. Otherwise other workers
      also increment the global step, and `global_step` is exact only after `update_global_step`.

  Attributes:
    start_step: the global step at which the session began.
    local_step: `start_step` plus the number of steps that this process has completed since
      then. In synchronous training, it is the global step.
    global_step: the last known value of the global step, at least `local_step`.
    loss: the loss of the last step, the mean over the global batch.
    accuracy: the accuracy of the last step; nan if the data has no classes.
  """

  def __init__(self, is_synchronous: bool = True) -> None:
    self._is_synchronous = is_synchronous
    self.start_step = self.local_step = self.global_step = 0
    self.loss = self.accuracy = math.nan

  def begin(self) -> None:
    # Every step fetches the same tensors: TensorFlow prunes the graph again for each new set of
    # fetches.
    self._run_args = tf.train.SessionRunArgs([
        observation.training_loss(), observation.accuracy()])

  def after_create_session(self, session: tf.Session, coord: Any) -> None:
    self.start_step = self.local_step = self.global_step = sessions.read_global_step(session)

  def before_run(self, run_context: Any) -> tf.train.SessionRunArgs:
    return self._run_args

  def after_run(self, run_context: Any, run_values: Any) -> None:
    self.local_step += 1
    self.global_step += 1
    self.loss, self.accuracy = run_values.results

  def update_global_step(self, session: tf.Session) -> None:
    """Reads `global_step` from the session if other workers increment the global step too."""
    if not self._is_synchronous:
      self.global_step = max(sessions.read_global_step(session), self.global_step)


class MeanOfSteps:
  """The mean loss and accuracy of steps, without the steps whose loss is not finite."""

  def __init__(self) -> None:
    self._num_steps = 0
    self._loss_sum = self._accuracy_sum = 0.

  def add(self, monitor: StepMonitor) -> None:
    """Adds the last step."""
    if math.isfinite(monitor.loss):
      self._num_steps += 1
      self._loss_sum += monitor.loss
      self._accuracy_sum += monitor.accuracy

  @property
  def loss(self) -> float:
    """The mean loss; nan if no loss was finite."""
    return self._loss_sum / self._num_steps if self._num_steps else math.nan

  @property
  def accuracy(self) -> float:
    """The mean accuracy; nan if it is unknown."""
    return self._accuracy_sum / self._num_steps if self._num_steps else math.nan


def is_logged(step: int, every: int = 1, num_before_thinning: int = _NUM_BEFORE_THINNING) -> bool:
  """Returns whether a step is logged.

  The first `num_before_thinning` multiples of `every` are all logged, and then every second one.
  The interval doubles each time their number does: of a million, 43,000 are logged by default. All
  workers and a resumed run log the same steps, because earlier calls do not matter.

  Args:
    step: the global step, or the number of an epoch.
    every: for steps, `--log_every_steps`; for epochs, 1.
    num_before_thinning: the number of first candidates that are all logged.
  """
  candidate, remainder = divmod(step, every)
  return not remainder and candidate % (1 << (candidate // num_before_thinning).bit_length()) == 0
