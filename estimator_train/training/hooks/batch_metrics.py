"""The loss and the accuracy of each training step, for the hooks that show progress."""

from typing import Tuple

import tensorflow.compat.v1 as tf

_CORRECT = 'estimator_train/correct_of_replica'


def observe(labels: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
  """Adds the accuracy of a replica's batch to the graph; to be called when its model is built.

  Args:
    labels: one-hot [B, num_classes] or class indices [B].
    outputs: of the model, [B, num_classes].

  Returns:
    The accuracy, a float32 scalar.
  """
  correct = tf.equal(tf.cast(class_indices(labels), tf.int64), tf.argmax(outputs, -1))
  accuracy = tf.reduce_mean(tf.cast(correct, tf.float32))
  tf.add_to_collection(_CORRECT, accuracy)
  return accuracy


def class_indices(labels: tf.Tensor) -> tf.Tensor:
  """Returns labels that are one-hot [B, num_classes] or class indices [B] as class indices."""
  return labels if labels.shape.ndims == 1 else tf.argmax(labels, -1)


def training_loss() -> tf.Tensor:
  """Returns the tensor of the training loss, the mean over the global batch."""
  return tf.get_collection(tf.GraphKeys.LOSSES)[-1]


def fetches() -> Tuple[tf.Tensor, tf.Tensor]:
  """Returns the loss of the step, and its accuracy over the replicas of this process.

  The accuracy over all workers would be a collective operation, which every worker would have to
  run in every step. It is nan where the model was not observed.
  """
  replicas = tf.get_collection(_CORRECT)
  if not replicas:
    return training_loss(), tf.constant(float('nan'))
  return training_loss(), tf.add_n(replicas) / len(replicas) if replicas[1:] else replicas[0]
