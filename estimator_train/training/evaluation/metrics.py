"""Computes evaluation metrics that count each example once, whatever the batch size."""

from typing import Any, Dict, List, Mapping, Optional, Tuple

import tensorflow.compat.v1 as tf

from estimator_train.data import images
from estimator_train.tf_patches import (
  estimator as estimator_patches,
  keras as keras_patches,
  sessions,
)
from estimator_train.training import losses
from estimator_train.training.evaluation import sample_predictions
from estimator_train.training.hooks.step_timer import find_ancestors

# For each metric, a tensor with its value, and the operation that adds a batch.
Metrics = Dict[str, Tuple[tf.Tensor, tf.Operation]]
# The graph collection of the names of losses and metrics that are means over batches.
_BATCH_MEANS_KEY = 'estimator_train/batch_means'


def classifier_metrics(features: Any, labels: tf.Tensor, weights: Optional[tf.Tensor],
                       outputs: tf.Tensor, loss: losses.Loss, num_classes: int) -> Metrics:
  """Returns the metrics of a classifier for an EstimatorSpec.

  TensorFlow's model_to_estimator reports the mean of the mean losses of the batches, which depends
  on the batch size when the last batch is short. `average_loss` is the mean over the examples. The
  losses are summed in float64, so that the first seven digits of the mean depend on neither the
  batch size nor the order of the examples.

  Args:
    features: images [B, height, width, C] or any other features.
    labels: one-hot [B, num_classes] or class indices [B], whichever the loss takes.
    weights: the sample weights, float [B]; None: all weights are 1.
    outputs: the outputs of the model, [B, num_classes].
    loss: the loss of the model, in any form that Keras accepts.
    num_classes: the number of classes.

  Returns:
    `accuracy` and `average_loss` (float), `examples` (int64) and `confusion_matrix` (int64
    [num_classes, num_classes], one row per true class, one column per predicted class). As in
    Keras, average_loss is the sum of the weighted losses, divided by the number of examples. The
    other metrics do not depend on sample weights.
  """
  class_indices = (tf.reshape(labels, [-1]) if losses.takes_class_indices(loss)
                   else tf.argmax(labels, -1))
  if images.is_image_batch(features):
    sample_predictions.register_batch(features, class_indices, outputs)
  batch_matrix = tf.math.confusion_matrix(class_indices, tf.argmax(outputs, -1), num_classes,
                                          dtype=tf.int64)
  matrix, add_matrix = _running_sum(batch_matrix, 'confusion_matrix')
  example_losses = tf.cast(losses.make_per_example_loss(loss)(labels, outputs), tf.float64)
  if weights is not None:
    example_losses *= tf.cast(weights, tf.float64)
  loss_sum, add_loss = _running_sum(tf.reduce_sum(example_losses), 'loss_sum')
  examples = tf.reduce_sum(matrix)
  return {
      'confusion_matrix': (matrix, add_matrix),
      'examples': (examples, tf.no_op()),
      'accuracy': (tf.trace(matrix) / examples, tf.no_op()),
      'average_loss': (loss_sum / tf.cast(examples, tf.float64), add_loss),
  }


def model_metrics(model: tf.keras.Model) -> Metrics:
  """Returns the metrics of a compiled model from build_model, by the names of Keras.

  The value of a metric whose function returns only one number per batch is the mean of these
  numbers, weighted by the sizes of the batches. This is exact if the number is a mean over
  examples. The names of these metrics are in `batch_means`.
  """
  metrics: Metrics = estimator_patches.make_metrics(model)
  batch_values = keras_patches.batch_metric_values(model)
  for name in batch_values.keys() & metrics.keys():
    tf.add_to_collection(_BATCH_MEANS_KEY, name)
    metrics[name] = _mean_over_batches(batch_values[name], tf.shape(model.outputs[0])[0], name)
  return metrics


def loss_metrics(model: tf.keras.Model) -> Metrics:
  """Returns the metrics of the losses of a compiled model, whatever its outputs are.

  Returns:
    `examples` (int64); `average_loss` (float), the loss that Keras would compute for one batch with
    all examples, without regularization; if there are several outputs, the loss of each output,
    by Keras's name `OUTPUT_loss`; and if the layers add losses, `regularization_loss`. A loss that
    is a sum over the examples is divided by their number.
  """
  batch_size = tf.shape(model.outputs[0], out_type=tf.int64)[0]
  examples, add_examples = _running_sum(batch_size, 'examples')
  metrics: Metrics = {'examples': (examples, add_examples)}
  total, updates = tf.constant(0., tf.float64), []
  output_losses = keras_patches.output_losses(model)
  for loss in output_losses:
    values = tf.cast(loss.values, tf.float64)
    count = tf.cast(batch_size if loss.is_sum else tf.size(values), tf.float64)
    if values.shape.ndims == 0:  # The loss function returns the mean over the batch.
      tf.add_to_collection(_BATCH_MEANS_KEY, loss.output_name + '_loss')
      count = tf.cast(batch_size, tf.float64)
      values *= count
    mean, update = _running_mean(tf.reduce_sum(values), count, loss.output_name + '_loss')
    total += loss.weight * mean
    updates.append(update)
    if len(output_losses) > 1:
      metrics[loss.output_name + '_loss'] = mean, update
    sample_predictions.register_output(loss.output_name, loss.targets, loss.outputs)
  metrics['average_loss'] = total, tf.group(*updates)
  regularization = keras_patches.regularization_losses(model)
  if regularization:
    # Losses of activities depend on the batch; those of weights are the same for all batches.
    metrics['regularization_loss'] = _mean_over_batches(
        tf.add_n(regularization), batch_size, 'regularization_loss')
  return metrics


def update_after(inputs: Any, metrics: Mapping[str, Any]) -> None:
  """Makes the updates of metrics wait for the inputs of the model.

  Otherwise, the session.run that reaches the end of the data would still add values that are
  constants of the graph, such as the size of a batch with a static shape.
  """
  updates = [update for metric in metrics.values()
             for update in (metric[1:] if isinstance(metric, tuple) else metric.updates)]
  assignments = [operation for operation in find_ancestors(tf.group(*updates).control_inputs)
                 if 'Assign' in operation.type or 'Scatter' in operation.type]
  sessions.run_before(tf.group(*tf.nest.flatten(inputs)), assignments)


def batch_means() -> List[str]:
  """Returns the names of the losses and metrics in the default graph that are means over batches.

  They are exact only if their functions return the mean over the examples of the batch.
  """
  return list(tf.get_collection(_BATCH_MEANS_KEY))


def _mean_over_batches(value: tf.Tensor, batch_size: tf.Tensor,
                       name: str) -> Tuple[tf.Tensor, tf.Operation]:
  """Returns the mean of a scalar over the batches, weighted by their sizes; see _running_mean."""
  weight = tf.cast(batch_size, tf.float64)
  return _running_mean(tf.cast(value, tf.float64) * weight, weight, name)


def _running_mean(batch_sum: tf.Tensor, batch_count: tf.Tensor,
                  name: str) -> Tuple[tf.Tensor, tf.Operation]:
  """Returns the sum over all batches ÷ the count over all batches, and the operation to update it.
  """
  total, add_sum = _running_sum(tf.cast(batch_sum, tf.float64), name + '_sum')
  count, add_count = _running_sum(tf.cast(batch_count, tf.float64), name + '_count')
  return total / count, tf.group(add_sum, add_count)


def _running_sum(value: tf.Tensor, name: str) -> Tuple[Any, tf.Operation]:
  """Returns the sum of `value` over all batches, and the operation that adds a batch to the sum."""
  total = tf.Variable(
      tf.zeros(value.shape, value.dtype), trainable=False, use_resource=True, name=name,
      collections=[tf.GraphKeys.LOCAL_VARIABLES, tf.GraphKeys.METRIC_VARIABLES])
  return total.read_value(), total.assign_add(value, read_value=False)
