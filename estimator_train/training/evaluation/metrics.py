"""Computes evaluation metrics that count each example once, whatever the batch size."""

from typing import Any, Dict, Tuple

import tensorflow.compat.v1 as tf

from estimator_train.training import losses
from estimator_train.training.evaluation import sample_predictions

# For each metric, a tensor with its value, and the operation that adds a batch.
Metrics = Dict[str, Tuple[tf.Tensor, tf.Operation]]


def classifier_metrics(features: Any, labels: Any, outputs: tf.Tensor, loss: losses.Loss,
                       num_classes: int) -> Metrics:
  """Returns the metrics of a classifier for an EstimatorSpec.

  TensorFlow's model_to_estimator reports the mean of the mean losses of the batches, which depends
  on the batch size when the last batch is short. `average_loss` is the mean over the examples. The
  losses are summed in float64, so that the first seven digits of the mean depend on neither the
  batch size nor the order of the examples.

  Args:
    features: images [B, height, width, C] or any other features. If there are sample weights,
      `{'features': ..., 'sample_weights': float [B]}`.
    labels: one-hot [B, num_classes] or class indices [B], whichever the loss takes; or a list or
      dict with one such tensor.
    outputs: the outputs of the model, [B, num_classes].
    loss: the loss of the model, in any form that Keras accepts.
    num_classes: the number of classes.

  Returns:
    `accuracy` and `average_loss` (float), `examples` (int64) and `confusion_matrix` (int64
    [num_classes, num_classes], one row per true class, one column per predicted class). As in
    Keras, average_loss is the sum of the weighted losses, divided by the number of examples. The
    other metrics do not depend on sample weights.
  """
  labels, weights = _only_tensor(labels), None
  if isinstance(features, dict) and set(features) == {'features', 'sample_weights'}:
    features, weights = features['features'], _only_tensor(features['sample_weights'])
  class_indices = (tf.reshape(labels, [-1]) if losses.takes_class_indices(loss)
                   else tf.argmax(labels, -1))
  sample_predictions.register_batch(features, class_indices, outputs)
  batch_matrix = tf.math.confusion_matrix(class_indices, tf.argmax(outputs, -1), num_classes,
                                          dtype=tf.int64)
  matrix, add_matrix = _running_sum(batch_matrix, 'confusion_matrix')
  example_losses = tf.cast(losses.make_per_example_loss(loss)(labels, outputs), tf.float64)
  if weights is not None:
    example_losses *= tf.reshape(tf.cast(weights, tf.float64), [-1])
  loss_sum, add_loss = _running_sum(tf.reduce_sum(example_losses), 'loss_sum')
  examples = tf.reduce_sum(matrix)
  return {
      'confusion_matrix': (matrix, add_matrix),
      'examples': (examples, tf.no_op()),
      'accuracy': (tf.trace(matrix) / examples, tf.no_op()),
      'average_loss': (loss_sum / tf.cast(examples, tf.float64), add_loss),
  }


def _only_tensor(value: Any) -> tf.Tensor:
  """Converts a value, or the only element of a list or dict, to a tensor."""
  if isinstance(value, dict):
    (value,) = value.values()
  elif isinstance(value, (list, tuple)):
    (value,) = value
  return tf.convert_to_tensor(value)


def _running_sum(value: tf.Tensor, name: str) -> Tuple[Any, tf.Operation]:
  """Returns the sum of `value` over all batches, and the operation that adds a batch to the sum."""
  total = tf.Variable(
      tf.zeros(value.shape, value.dtype), trainable=False, use_resource=True, name=name,
      collections=[tf.GraphKeys.LOCAL_VARIABLES, tf.GraphKeys.METRIC_VARIABLES])
  return total.read_value(), total.assign_add(value, read_value=False)
