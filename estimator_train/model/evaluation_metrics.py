"""Makes the metrics of an evaluation, in which each example counts once."""

from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from estimator_train.checkpoints import best_checkpoint
from estimator_train.data import decoding
from estimator_train.model import (
  confusion_matrix,
  evaluation_samples,
  losses,
  score_histogram,
)
from estimator_train.model.own_graph import Fetches
from estimator_train.model.running_means import mean_over_batches, running_mean, running_sum
from estimator_train.system import names
from estimator_train.tf_patches import graphs
from estimator_train.tf_patches.compiled_models import Metric, OutputLoss

# For each metric, the tensor of its value and the operation that adds a batch.
Metrics = Dict[str, Tuple[tf.Tensor, tf.Operation]]
# The graph collection of the keys that batch_mean_names returns.
_BATCH_MEANS_KEY = 'estimator_train/batch_means'
_NUM_CALIBRATION_BINS = 15
# The prefixes of the types of operations that change variables.
_VARIABLE_CHANGING_TYPES = ('Assign', 'ResourceScatter', 'ScatterAdd', 'ScatterUpdate')
# Keys that the program itself writes to the result of an evaluation, and to evaluation.json,
# metrics.jsonl and best.json. No loss or metric of a model may have these keys.
_RESERVED_KEYS = best_checkpoint.RECORD_KEYS.union((
    'average_loss', 'batch_means', 'best', 'calibration_bins', 'class_counts', 'confusion_matrix',
    'confusions', 'differs_from_run', 'evaluation_dir', 'examples', 'kind', 'loss', 'mode',
    'model_dir', 'per_class', 'regularization_loss', 'score_counts', 'skipped_images',
    'threshold_curve', 'time'))
# With fewer classes, even a bad model has a high top-5 accuracy.
_MIN_CLASSES_OF_TOP_5 = 10


class MetricKeys(NamedTuple):
  """The distinct keys of the losses and metrics of a model in the result of an evaluation.

  Attributes:
    losses: the keys of the losses, by output name; {} if only one output has a loss.
    metrics: the keys of the metrics, by name.
  """
  losses: Dict[str, str]
  metrics: Dict[str, str]


def make_metric_keys(outputs: Sequence[str], metrics: Iterable[str],
                     num_classes: Optional[int]) -> MetricKeys:
  """Chooses the keys of the losses and metrics: `OUTPUT_loss`, and the names of the metrics.

  If such a key is reserved, a loss gets the prefix `output_`, and a metric gets the prefix
  `metric_`. In an Estimator of `convert`, the metrics keep the names that Keras's
  model_to_estimator gives them.

  Args:
    outputs: the names of the outputs that have a loss.
    metrics: the names of the metrics.
    num_classes: see make_metrics.
  """
  metrics, outputs = list(metrics), outputs if len(outputs) > 1 else ()
  reserved = _RESERVED_KEYS.union(classifier_metric_names(num_classes) if num_classes else ())
  loss_names = [output + '_loss' for output in outputs]
  if num_classes is None:
    # tf.estimator.Estimator itself uses the keys `loss` and `global_step`.
    metric_keys = names.make_distinct(metrics, ('loss', tf.GraphKeys.GLOBAL_STEP), 'metric_')
    loss_keys = names.make_distinct(loss_names, reserved.union(metric_keys), 'output_')
  else:
    loss_keys = names.make_distinct(loss_names, reserved, 'output_')
    metric_keys = names.make_distinct(metrics, reserved.union(loss_keys), 'metric_')
  return MetricKeys(dict(zip(outputs, loss_keys)), dict(zip(metrics, metric_keys)))


def make_metrics(fetches: Fetches, features: Any, batch_size: tf.Tensor, model: tf.keras.Model,
                 num_classes: Optional[int]) -> Metrics:
  """Returns the metrics of the model, and the metrics that the program adds to each evaluation.

  Args:
    features: images [B, height, width, C] or any other features.
    batch_size: int64.
    num_classes: 0 if the model is not a classifier. `convert` gives None. In this case, a model
      with one output [B, N] and a categorical cross-entropy is a classifier of N classes, and a
      metric of the model replaces a metric of the program that has the same name.
  """
  num_predicted_classes = num_classes
  if num_classes is None and len(model.outputs) == 1 and model.outputs[0].shape.ndims == 2 and (
      losses.is_keras_crossentropy(losses.get_loss(model))):
    num_predicted_classes = model.outputs[0].shape.as_list()[-1]
  keys = make_metric_keys([loss.output_name for loss in fetches.output_losses], fetches.metrics,
                          num_classes)
  metrics_of_model = model_metrics(fetches.metrics, batch_size, keys.metrics)
  program_metrics = example_and_loss_metrics(fetches, batch_size, keys.losses)
  if num_predicted_classes:
    program_metrics.pop('regularization_loss', None)
    program_metrics.update(classifier_metrics(features, fetches.output_losses[0], model,
                                              num_predicted_classes))
  return {**program_metrics, **metrics_of_model}


def classifier_metrics(features: Any, loss: OutputLoss, model: tf.keras.Model,
                       num_classes: int) -> Metrics:
  """Returns the metrics of a classifier. They ignore masked examples and sample weights.

  The function also records `class_counts`, which are the ClassCounts of all batches,
  `calibration_bins` and, with two classes, `score_counts`; see confusion_matrix.record_counts,
  _calibration_error and score_histogram.area_metrics.

  Args:
    features: images [B, height, width, C] or any other features.
    loss: the loss of the only output [B, num_classes] of the model.

  Returns:
    The float metrics of classifier_metric_names except `average_loss`, and the metrics of
    confusion_matrix.confusion_metrics.
  """
  labels, outputs = loss.targets, loss.outputs
  class_indices = tf.reshape(  # The rank of the labels may be unknown.
      tf.cast(labels, tf.int64) if losses.model_takes_class_indices(model)
      else tf.argmax(labels, -1), [-1])
  predicted, probabilities = tf.argmax(outputs, -1), losses.class_probabilities(model, outputs)
  if decoding.is_image_batch(features):
    evaluation_samples.add_image_samples(features, class_indices, probabilities, predicted)
  if loss.mask is not None:
    class_indices, predicted, outputs, probabilities = (
        tf.boolean_mask(tensor, tf.reshape(loss.mask, [-1]) > 0)
        for tensor in (class_indices, predicted, outputs, probabilities))
  count_sums, add_counts = running_sum(
      confusion_matrix.count_per_class(class_indices, predicted, num_classes), 'class_counts')
  confusion_matrix.record_counts('class_counts', count_sums)
  counts = confusion_matrix.ClassCounts(*tf.unstack(count_sums))
  return {
      'accuracy': (tf.reduce_sum(counts.correct) / tf.reduce_sum(counts.true), add_counts),
      'calibration_error': _calibration_error(probabilities, tf.equal(predicted, class_indices)),
      **(score_histogram.area_metrics(class_indices, probabilities) if num_classes == 2 else {}),
      **confusion_matrix.macro_averages(counts),
      **confusion_matrix.confusion_metrics(class_indices, predicted, num_classes),
      **({'top_5_accuracy': running_mean(
          tf.math.count_nonzero(tf.equal(tf.cast(tf.nn.top_k(outputs, 5).indices, tf.int64),
                                         class_indices[:, tf.newaxis])),
          tf.size(class_indices), 'top_5')} if num_classes >= _MIN_CLASSES_OF_TOP_5 else {}),
  }


def classifier_metric_names(num_classes: int) -> List[str]:
  """Returns the names of the metrics of a classifier that can select the best checkpoint."""
  return ['accuracy', 'average_loss', 'calibration_error', 'macro_f1', 'macro_precision',
          'macro_recall', *['top_5_accuracy'] * (num_classes >= _MIN_CLASSES_OF_TOP_5),
          *['roc_auc', 'average_precision'] * (num_classes == 2)]


def _calibration_error(probabilities: tf.Tensor,
                       is_correct: tf.Tensor) -> Tuple[tf.Tensor, tf.Operation]:
  """Returns the expected calibration error as a metric.

  The probability of the predicted class is the confidence of a prediction, and selects its bin. The
  bins have equal widths, and include their upper ends. The error is the sum over the bins of
  |number of correct predictions − sum of confidences|, divided by the number of examples (Guo et
  al. 2017, arXiv:1706.04599, equation 3).

  The function also records `calibration_bins`, float64 [3, _NUM_CALIBRATION_BINS]. The rows are the
  number of examples, the sum of confidences and the number of correct predictions of each bin.
  """
  confidences = tf.cast(tf.reduce_max(probabilities, -1), tf.float64)
  bins = tf.clip_by_value(tf.cast(tf.ceil(confidences * _NUM_CALIBRATION_BINS), tf.int32) - 1,
                          0, _NUM_CALIBRATION_BINS - 1)
  sums, update = running_sum(tf.stack([
      tf.math.unsorted_segment_sum(values, bins, _NUM_CALIBRATION_BINS) for values in (
          tf.ones_like(confidences), confidences, tf.cast(is_correct, tf.float64))]), 'calibration')
  confusion_matrix.record_counts('calibration_bins', sums)
  examples, confidence_sums, correct = tf.unstack(sums)
  return tf.reduce_sum(tf.abs(correct - confidence_sums)) / tf.reduce_sum(examples), update


def model_metrics(metrics: Mapping[str, Metric], batch_size: tf.Tensor,
                  keys: Mapping[str, str]) -> Metrics:
  """Returns the metrics of a compiled model, by their keys.

  The function of a metric may return only one number per batch. The value of such a metric is the
  mean of these numbers, weighted by the batch sizes. batch_mean_names then returns its key.
  """
  metrics_by_key: Metrics = {}
  for name, metric in metrics.items():
    key = keys[name]
    metrics_by_key[key] = metric.result, metric.update
    if metric.batch_value is not None:
      tf.add_to_collection(_BATCH_MEANS_KEY, key)
      metrics_by_key[key] = mean_over_batches(metric.batch_value, batch_size, name)
  return metrics_by_key


def example_and_loss_metrics(fetches: Fetches, batch_size: tf.Tensor,
                             keys: Mapping[str, str]) -> Metrics:
  """Returns the number of examples and the losses of any compiled model, as metrics.

  TensorFlow's model_to_estimator reports the mean of the batches' mean losses, which depends on the
  batch size if the last batch is short. This function sums the losses of the examples in float64.
  The first seven digits of their mean therefore depend on neither the batch size nor the order of
  the examples. A loss that is a sum over the examples is divided by the number of examples.

  Returns:
    `examples`, int64, and the following floats. `average_loss` is the loss that Keras would compute
    for one batch with all examples, without regularization. If several outputs have a loss, the
    loss of each output has the key in `keys`. `regularization_loss` exists if layers add losses.
  """
  examples, add_examples = running_sum(batch_size, 'examples')
  metrics: Metrics = {'examples': (examples, add_examples)}
  total, updates = tf.constant(0., tf.float64), []
  for loss in fetches.output_losses:
    values = tf.cast(loss.values, tf.float64)
    count = tf.cast(batch_size if loss.is_sum else tf.size(values), tf.float64)
    # Either the loss function or the model returns only one number for the whole batch.
    if values.shape.ndims == 0 or (
        loss.outputs.shape.ndims and loss.outputs.shape.as_list()[0] == 1):
      tf.add_to_collection(_BATCH_MEANS_KEY,
                           keys.get(loss.output_name, loss.output_name + '_loss'))
      values = tf.reduce_mean(values) * tf.cast(batch_size, tf.float64)
      count = tf.cast(batch_size, tf.float64)
    mean, update = running_mean(tf.reduce_sum(values), count, loss.output_name + '_loss')
    total += loss.weight * mean
    updates.append(update)
    if loss.output_name in keys:
      metrics[keys[loss.output_name]] = mean, update
    if _predicts_numbers(loss):
      evaluation_samples.add_output_samples(loss.output_name, loss.targets, loss.outputs)
  metrics['average_loss'] = total, tf.group(*updates)
  if fetches.regularization_losses:
    # Activity regularizers depend on the batch, so the sum of the losses is averaged over batches.
    metrics['regularization_loss'] = mean_over_batches(
        tf.add_n(list(fetches.regularization_losses)), batch_size, 'regularization_loss')
  return metrics


def _predicts_numbers(loss: OutputLoss) -> bool:
  """Returns whether an output predicts numbers instead of classes.

  The output predicts classes if it is a softmax or sigmoid, or if its shape differs from that of
  the targets.
  """
  targets, outputs = loss.targets, loss.outputs
  return (targets.shape.ndims == outputs.shape.ndims and outputs.dtype.is_floating
          and outputs.op.type not in ('Softmax', 'Sigmoid')
          and targets.shape.is_compatible_with(outputs.shape))


def make_updates_depend_on(inputs: Any, metrics: Mapping[str, Any]) -> None:
  """Makes the updates of metrics wait for the inputs of the model.

  The last session.run of an evaluation gets no batch, and must fail before it updates a metric.
  Without this function, an update by a constant of the graph, such as a static batch size, would
  not need the inputs, and would be applied once too often.
  """
  updates = [update for _, update in metrics.values()]
  assignments = [operation for operation in graphs.find_ancestors(tf.group(*updates).control_inputs)
                 if operation.type.startswith(_VARIABLE_CHANGING_TYPES)]
  graphs.run_before(tf.group(*tf.nest.flatten(inputs)), assignments)


def batch_mean_names() -> List[str]:
  """Returns the keys of the losses and metrics in the default graph that are means over batches.

  Such a mean is exact only if the function of the loss or metric returns the mean over the examples
  of a batch.
  """
  return list(tf.get_collection(_BATCH_MEANS_KEY))
