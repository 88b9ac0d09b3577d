"""The hooks that others read: the count of the steps, and the loss and accuracy of each step."""

import math
from typing import Any

import tensorflow.compat.v1 as tf

from estimator_train.tf_patches.sessions import read_global_step

# Key of the graph collection of accuracies, one per replica of this process.
_REPLICA_ACCURACIES_KEY = 'estimator_train/replica_accuracies'
_NUM_ALL_LOGGED = 10000  # The first 10,000 candidates are all logged, see is_logged.


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


def add_accuracy(class_indices: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
  """Adds the accuracy on a replica's batch to the graph, for BatchMetrics to fetch.

  Must be called after the model of the replica is built, see summaries.register_batch.

  Args:
    class_indices: the true class indices, [B].
    outputs: the outputs of the model, [B, num_classes].

  Returns:
    The accuracy, a float32 scalar.
  """
  correct = tf.equal(tf.cast(class_indices, tf.int64), tf.argmax(outputs, -1))
  accuracy = tf.reduce_mean(tf.cast(correct, tf.float32))
  tf.add_to_collection(_REPLICA_ACCURACIES_KEY, accuracy)
  return accuracy


def training_loss() -> tf.Tensor:
  """Returns the tensor of the training loss, the mean over the global batch."""
  # Estimator adds the loss of the EstimatorSpec to the collection after all other losses.
  return tf.get_collection(tf.GraphKeys.LOSSES)[-1]


class BatchMetrics(tf.train.SessionRunHook):
  """Fetches the loss and the accuracy of each step, so that later hooks need not fetch them again.

  The accuracy covers the replicas of this process only. An accuracy over all workers would take a
  collective operation, which every worker would have to run in every step.

  Attributes:
    loss: the loss of the last step, the mean over the global batch.
    accuracy: the accuracy of the last step; nan if `add_accuracy` was not called.
  """

  def __init__(self) -> None:
    self.loss = self.accuracy = math.nan

  def begin(self) -> None:
    accuracies = tf.get_collection(_REPLICA_ACCURACIES_KEY)
    accuracy = tf.add_n(accuracies) / len(accuracies) if len(accuracies) > 1 else (
        accuracies or [tf.constant(math.nan)])[0]
    # Every step fetches the same tensors: TensorFlow prunes the graph again for each new set of
    # fetches.
    self._run_args = tf.train.SessionRunArgs([training_loss(), accuracy])

  def before_run(self, run_context: Any) -> tf.train.SessionRunArgs:
    return self._run_args

  def after_run(self, run_context: Any, run_values: Any) -> None:
    self.loss, self.accuracy = run_values.results


def is_logged(step: int, every: int = 1) -> bool:
  """Returns whether a step is logged.

  The multiples of `every` are candidates. Of the first 10,000 candidates all are logged, of the
  next 10,000 every second one, of the next 20,000 every fourth one, and so on. Of a million
  candidates, 43,000 are logged. The result does not depend on earlier calls, so all workers and a
  resumed run log the same steps.

  Args:
    step: the global step, or the number of an epoch.
    every: for steps, `--log_every_steps`; for epochs, 1.
  """
  candidate, remainder = divmod(step, every)
  return not remainder and candidate % (1 << (candidate // _NUM_ALL_LOGGED).bit_length()) == 0
