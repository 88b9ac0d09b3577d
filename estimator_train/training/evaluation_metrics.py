"""Metrics that count each example of an evaluation once, and samples of its predictions."""

from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.data import images
from estimator_train.tf_patches import (
  estimator as estimator_patches,
  keras as keras_patches,
  sessions,
)
from estimator_train.training import losses
from estimator_train.training.hooks.step_measurements import find_ancestors

# For each metric, a tensor with its value, and the operation that adds a batch.
Metrics = Dict[str, Tuple[tf.Tensor, tf.Operation]]
# The graph collection of the names of losses and metrics that are means over batches.
_BATCH_MEANS_KEY = 'estimator_train/batch_means'
# The graph collection of SampledTensors.
_SAMPLES_KEY = 'estimator_train/samples'
_NUM_IMAGES, _NUM_OUTPUTS = 12, 1000
_NUM_CALIBRATION_BINS = 15
_MIN_CLASSES_OF_TOP_5 = 10  # With fewer classes, even a bad model has most classes among its top 5.


class SampledTensors(NamedTuple):
  """Tensors of a batch of which an evaluation collects some values, see sampled_tensors.

  Attributes:
    output_name: the name of an output that predicts numbers; None: images that are classified.
    num_examples: the number of examples to collect.
    tensors: the targets and the output, both [B, ...]; or the images [B, height, width, C], the
      true class indices [B] and the outputs of the model [B, num_classes].
    are_mistakes: whether B counts only the first examples whose predicted classes are wrong.
  """
  output_name: Optional[str]
  num_examples: int
  tensors: Sequence[tf.Tensor]
  are_mistakes: bool = False


def classifier_metrics(features: Any, labels: tf.Tensor, weights: Optional[tf.Tensor],
                       model: tf.keras.Model, loss: losses.Loss, num_classes: int) -> Metrics:
  """Returns the metrics of a classifier for an EstimatorSpec.

  TensorFlow's model_to_estimator reports the mean of the mean losses of the batches, which depends
  on the batch size when the last batch is short. `average_loss` is the mean over the examples. The
  losses are summed in float64, so that the first seven digits of the mean depend on neither the
  batch size nor the order of the examples.

  Args:
    features: images [B, height, width, C] or any other features.
    labels: one-hot [B, num_classes] or class indices [B], whichever the loss takes.
    weights: the sample weights, float [B]; None: all weights are 1.
    model: the compiled model, with outputs [B, num_classes].
    loss: the loss of the model, in any form that Keras accepts.
    num_classes: the number of classes.

  Returns:
    The metrics in classifier_metric_names (float), `examples` (int64) and `confusion_matrix` (int64
    [num_classes, num_classes], one row per true class, one column per predicted class). As in
    Keras, average_loss is the sum of the weighted losses, divided by the number of examples. The
    other metrics do not depend on sample weights.
  """
  outputs = model.outputs[0]
  class_indices = (tf.cast(tf.reshape(labels, [-1]), tf.int64) if losses.takes_class_indices(loss)
                   else tf.argmax(labels, -1))
  predicted = tf.argmax(outputs, -1)
  if images.is_image_batch(features):
    tensors = (features, class_indices, outputs)
    mistakes = [tf.boolean_mask(tensor, tf.not_equal(predicted, class_indices))[:_NUM_IMAGES]
                for tensor in tensors]
    tf.add_to_collection(_SAMPLES_KEY, SampledTensors(None, _NUM_IMAGES, tensors))
    tf.add_to_collection(_SAMPLES_KEY, SampledTensors(None, _NUM_IMAGES, mistakes, True))
  batch_matrix = tf.math.confusion_matrix(class_indices, predicted, num_classes, dtype=tf.int64)
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
      'calibration_error': _calibration_error(
          losses.class_probabilities(model, outputs),
          tf.reshape(tf.equal(predicted, class_indices), [-1])),  # The rank may be unknown.
      **_macro_averages(matrix),
      **({'top_5_accuracy': _running_mean(
          tf.math.count_nonzero(tf.equal(tf.cast(tf.nn.top_k(outputs, 5).indices, tf.int64),
                                         class_indices[:, tf.newaxis])),
          tf.size(class_indices), 'top_5')} if num_classes >= _MIN_CLASSES_OF_TOP_5 else {}),
  }


def classifier_metric_names(num_classes: int) -> List[str]:
  """Returns the names of the metrics of classifier_metrics that can select a checkpoint."""
  return ['accuracy', 'average_loss', 'calibration_error', 'macro_f1', 'macro_precision',
          'macro_recall', *['top_5_accuracy'] * (num_classes >= _MIN_CLASSES_OF_TOP_5)]


def _macro_averages(matrix: tf.Tensor) -> Metrics:
  """Returns the means of precision, recall and F1 over the classes in a confusion matrix.

  A class that is neither the true nor the predicted class of any example is left out. As in
  scikit-learn, the precision of a class that is never predicted and the recall of a class without
  examples are 0.
  """
  correct, true, predicted = (tf.cast(counts, tf.float64) for counts in (
      tf.diag_part(matrix), tf.reduce_sum(matrix, 1), tf.reduce_sum(matrix, 0)))
  num_occurring = tf.math.count_nonzero(true + predicted, dtype=tf.float64)
  return {'macro_' + name: (
      tf.reduce_sum(tf.div_no_nan(correct, count)) / num_occurring, tf.no_op())
          for name, count in (('precision', predicted), ('recall', true),
                              ('f1', (true + predicted) / 2))}


def _calibration_error(probabilities: tf.Tensor,
                       is_correct: tf.Tensor) -> Tuple[tf.Tensor, tf.Operation]:
  """Returns the expected calibration error, and the operation that adds a batch.

  The error is the sum over bins of |number of correct predictions − sum of the probabilities of the
  predicted classes|, divided by the number of examples. Source: Guo et al., On Calibration of
  Modern Neural Networks (2017), equation 3, with bins of equal width that include their upper ends.
  """
  confidences = tf.cast(tf.reduce_max(probabilities, -1), tf.float64)
  bins = tf.clip_by_value(tf.cast(tf.ceil(confidences * _NUM_CALIBRATION_BINS), tf.int32) - 1,
                          0, _NUM_CALIBRATION_BINS - 1)
  gaps, update = _running_mean(
      tf.math.unsorted_segment_sum(tf.cast(is_correct, tf.float64) - confidences, bins,
                                   _NUM_CALIBRATION_BINS), tf.size(is_correct), 'calibration')
  return tf.reduce_sum(tf.abs(gaps)), update


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
    if _predicts_numbers(loss):
      tf.add_to_collection(_SAMPLES_KEY, SampledTensors(
          loss.output_name, _NUM_OUTPUTS, (loss.targets, loss.outputs)))
  metrics['average_loss'] = total, tf.group(*updates)
  regularization = keras_patches.regularization_losses(model)
  if regularization:
    # Losses of activities depend on the batch; those of weights are the same for all batches.
    metrics['regularization_loss'] = _mean_over_batches(
        tf.add_n(regularization), batch_size, 'regularization_loss')
  return metrics


def _predicts_numbers(loss: keras_patches.OutputLoss) -> bool:
  """Returns whether an output predicts numbers.

  Outputs of a softmax or sigmoid, and outputs of another shape than their targets, predict classes.
  """
  targets, outputs = loss.targets, loss.outputs
  return (targets.shape.ndims == outputs.shape.ndims and outputs.dtype.is_floating
          and outputs.op.type not in ('Softmax', 'Sigmoid')
          and targets.shape.is_compatible_with(outputs.shape))


def make_updates_wait_for(inputs: Any, metrics: Mapping[str, Any]) -> None:
  """Makes the updates of metrics wait for the inputs of the model.

  Otherwise, the last session.run, which gets no batch, would add constants of the graph, such as
  the size of a batch with a static shape.
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
  """Returns the sum ÷ the count over all batches, and the operation that adds a batch."""
  total, add_sum = _running_sum(tf.cast(batch_sum, tf.float64), name + '_sum')
  count, add_count = _running_sum(tf.cast(batch_count, tf.float64), name + '_count')
  return total / count, tf.group(add_sum, add_count)


def _running_sum(value: tf.Tensor, name: str) -> Tuple[Any, tf.Operation]:
  """Returns the sum of `value` over all batches, and the operation that adds a batch to the sum."""
  total = tf.Variable(
      tf.zeros(value.shape, value.dtype), trainable=False, use_resource=True, name=name,
      collections=[tf.GraphKeys.LOCAL_VARIABLES, tf.GraphKeys.METRIC_VARIABLES])
  return total.read_value(), total.assign_add(value, read_value=False)


def sampled_tensors() -> List[SampledTensors]:
  """Returns the tensors in the default graph of which an evaluation collects some values."""
  return list(tf.get_collection(_SAMPLES_KEY))


class Sample(NamedTuple):
  """One image of an evaluation.

  Attributes:
    image: the image as the input pipeline yields it, [height, width, C].
    class_index: the index of the true class.
    outputs: float32 [num_classes], the outputs of the model.
  """
  image: np.ndarray
  class_index: int
  outputs: np.ndarray


class OutputSample(NamedTuple):
  """The true and the predicted values of an output of the model, for some of the examples.

  Attributes:
    output_name: the name of the output.
    targets: the true values, [N, ...].
    outputs: the predicted values, of the same shape.
  """
  output_name: str
  targets: np.ndarray
  outputs: np.ndarray


class EvaluationSamples(NamedTuple):
  """Some of the examples of an evaluation.

  Attributes:
    images: a few images; empty unless the model classifies images.
    mistakes: a few images whose predicted classes are wrong.
    outputs: the samples of the outputs that predict numbers instead of classes.
  """
  images: List[Sample]
  mistakes: List[Sample]
  outputs: List[OutputSample]


class SampleCollector:
  """Collects examples that are evenly spaced over an evaluation, with the outputs of the model.

  The first examples would be less useful, because an image folder yields one class after another.

  Args:
    sampled: the tensors of which to collect values.
    num_examples: the number of examples of the evaluation, or None if the number is unknown. In
      that case the first examples are collected.
    batch_size: the batch size of the evaluation.
  """

  def __init__(self, sampled: Sequence[SampledTensors],
               num_examples: Optional[int], batch_size: int) -> None:
    self._sampled, self._num_examples = sampled, num_examples
    self._indices = [np.arange(group.num_examples) if num_examples is None else np.unique(
        np.linspace(0, num_examples - 1, group.num_examples).astype(int)) for group in sampled]
    self._rows: List[List[Any]] = [[] for _ in sampled]
    self._batch_start, self._batch_size = 0, batch_size

  def tensors(self) -> List[Sequence[tf.Tensor]]:
    """Returns the tensors to fetch with the next batch."""
    return [group.tensors if (self._num_missing_mistakes(rows) if group.are_mistakes
                              else len(self._positions(indices))) else []
            for group, indices, rows in zip(self._sampled, self._indices, self._rows)]

  def add_batch(self, values: Sequence[Sequence[np.ndarray]]) -> None:
    """Adds examples of a batch, given the values of the tensors."""
    for group, rows, arrays, indices in zip(self._sampled, self._rows, values, self._indices):
      if group.are_mistakes:
        rows.extend(list(zip(*arrays))[:self._num_missing_mistakes(rows)])
      elif arrays:
        rows += [[array[position] for array in arrays] for position in self._positions(indices)
                 if position < len(arrays[0])]
    self._batch_start += self._batch_size

  def _positions(self, indices: np.ndarray) -> np.ndarray:
    """Returns the positions in the next batch of the selected examples."""
    positions = indices - self._batch_start
    return positions[(positions >= 0) & (positions < self._batch_size)]

  def _num_missing_mistakes(self, rows: Sequence[Any]) -> int:
    """Returns how many mistakes to add with the next batch, so that they are evenly spaced."""
    end = self._batch_start + self._batch_size
    expected = -(-_NUM_IMAGES * end // (self._num_examples or end))
    return min(expected, _NUM_IMAGES) - len(rows)

  @property
  def samples(self) -> EvaluationSamples:
    """The collected examples."""
    samples = EvaluationSamples([], [], [])
    for group, rows in zip(self._sampled, self._rows):
      if group.output_name is None:
        (samples.mistakes if group.are_mistakes else samples.images).extend(
            Sample(image, int(class_index), outputs) for image, class_index, outputs in rows)
      elif rows:
        samples.outputs.append(OutputSample(group.output_name, *map(np.stack, zip(*rows))))
    return samples
