"""What an evaluation counts, in the graph: each example once, whatever the batch size."""

from typing import Any, Callable, Dict, Tuple

import tensorflow.compat.v1 as tf

from estimator_train.training import losses
from estimator_train.training.evaluation import sample_predictions

Metrics = Dict[str, Tuple[tf.Tensor, tf.Operation]]


def make_metric_fn(loss: losses.Loss, num_classes: int) -> Callable[..., Metrics]:
  """Makes the `metric_fn` for `tf.estimator.add_metrics`.

  An Estimator made from a Keras model reports the mean of the batches' mean losses, which depends
  on the batch size when the last batch is short. `average_loss` is per example, and is summed in
  float64, so that neither the batch size nor the order shows in the seventh digit.

  Args:
    loss: the model's, as Keras takes it.
    num_classes: the width of the predictions.

  Returns:
    A function of (features: images [B, height, width, C], labels: one-hot [B, num_classes] or class
    numbers [B], as the loss takes them, predictions: {name: [B, num_classes]}) that returns
    metrics: `accuracy`, `average_loss` (both float), `examples` (int64) and `confusion_matrix`
    (int64 [num_classes, num_classes], a row a true class, a column a predicted).
  """
  def metric_fn(features: tf.Tensor, labels: tf.Tensor,
                predictions: Dict[str, tf.Tensor]) -> Metrics:
    (outputs,) = predictions.values()
    true = tf.reshape(labels, [-1]) if losses.takes_class_numbers(loss) else tf.argmax(labels, -1)
    sample_predictions.offer(features, true, outputs)
    counts = tf.math.confusion_matrix(true, tf.argmax(outputs, -1), num_classes, dtype=tf.int64)
    matrix, add_matrix = _running_sum(counts, 'confusion_matrix')
    loss_sum, add_loss = _running_sum(
        tf.reduce_sum(tf.cast(losses.per_example(loss)(labels, outputs), tf.float64)), 'loss_sum')
    examples = tf.reduce_sum(matrix)
    return {
        'confusion_matrix': (matrix, add_matrix),
        'examples': (examples, tf.no_op()),
        'accuracy': (tf.trace(matrix) / examples, tf.no_op()),
        'average_loss': (loss_sum / tf.cast(examples, tf.float64), add_loss),
    }

  return metric_fn


def _running_sum(value: tf.Tensor, name: str) -> Tuple[Any, tf.Operation]:
  """Returns a variable that is zero when a session starts, and the op that adds the value to it."""
  total = tf.Variable(
      tf.zeros(value.shape, value.dtype), trainable=False, use_resource=True, name=name,
      collections=[tf.GraphKeys.LOCAL_VARIABLES, tf.GraphKeys.METRIC_VARIABLES])
  return total.read_value(), total.assign_add(value, read_value=False)
