"""The hook that fetches the loss and the accuracy of each training step, for other hooks."""

import math
from typing import Any

import tensorflow.compat.v1 as tf

# Key of the graph collection of accuracies, one per replica of this process.
_REPLICA_ACCURACIES_KEY = 'estimator_train/replica_accuracies'


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
