"""Evaluation metrics that count each example once, whatever the batch size."""

from typing import Any, Callable, Dict, Tuple

import tensorflow.compat.v1 as tf

from estimator_train.training import losses
from estimator_train.training.evaluation import sample_predictions

Metrics = Dict[str, Tuple[tf.Tensor, tf.Operation]]


def make_metric_fn(loss: losses.Loss, num_classes: int) -> Callable[..., Metrics]:
  """Makes the `metric_fn` for `tf.estimator.add_metrics`.

  An Estimator made from a Keras model reports the mean of the batches' mean losses, which depends
  on the batch size when the last batch is short. `average_loss` is per example, and is summed in
  float64, so that its first seven digits depend on neither the batch size nor the example order.

  Args:
    loss: the loss of the model, in any form that Keras accepts.
    num_classes: the number of classes.

  Returns:
    A function of (features: images [B, height, width, C], labels: one-hot [B, num_classes] or class
    indices [B], whichever the loss takes, predictions: {name: [B, num_classes]}) that returns the
    metrics `accuracy`, `average_loss` (both float), `examples` (int64) and `confusion_matrix`
    (int64 [num_classes, num_classes], one row per true class, one column per predicted class).
  """
  def metric_fn(features: tf.Tensor, labels: tf.Tensor,
                predictions: Dict[str, tf.Tensor]) -> Metrics:
    (outputs,) = predictions.values()
    class_indices = (tf.reshape(labels, [-1]) if losses.takes_class_indices(loss)
                     else tf.argmax(labels, -1))
    sample_predictions.register_batch(features, class_indices, outputs)
    counts = tf.math.confusion_matrix(class_indices, tf.argmax(outputs, -1), num_classes,
                                      dtype=tf.int64)
    matrix, add_matrix = _running_sum(counts, 'confusion_matrix')
    example_losses = losses.make_per_example_loss(loss)(labels, outputs)
    loss_sum, add_loss = _running_sum(
        tf.reduce_sum(tf.cast(example_losses, tf.float64)), 'loss_sum')
    examples = tf.reduce_sum(matrix)
    return {
        'confusion_matrix': (matrix, add_matrix),
        'examples': (examples, tf.no_op()),
        'accuracy': (tf.trace(matrix) / examples, tf.no_op()),
        'average_loss': (loss_sum / tf.cast(examples, tf.float64), add_loss),
    }

  return metric_fn


def _running_sum(value: tf.Tensor, name: str) -> Tuple[Any, tf.Operation]:
  """Returns the value of a local variable, initially zero, and the op that adds to it."""
  total = tf.Variable(
      tf.zeros(value.shape, value.dtype), trainable=False, use_resource=True, name=name,
      collections=[tf.GraphKeys.LOCAL_VARIABLES, tf.GraphKeys.METRIC_VARIABLES])
  return total.read_value(), total.assign_add(value, read_value=False)
