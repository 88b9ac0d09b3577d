"""The hook that collects a few examples of an evaluation, with the outputs of the model."""

from typing import Any, Dict, List, NamedTuple, Optional

import numpy as np
import tensorflow.compat.v1 as tf

_IMAGES_KEY = 'estimator_train/sample_predictions'
_OUTPUTS_KEY = 'estimator_train/sample_outputs'
_NUM_IMAGES = 12
_NUM_OUTPUTS = 1000


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
    outputs: the samples of the outputs that predict numbers instead of classes.
  """
  images: List[Sample]
  outputs: List[OutputSample]


def register_batch(images: Any, class_indices: tf.Tensor, outputs: tf.Tensor) -> None:
  """Registers the tensors of a batch for SamplePredictionsHook, in a graph collection.

  Args:
    images: the images, [B, height, width, C].
    class_indices: the true class indices, [B].
    outputs: the outputs of the model, [B, num_classes].
  """
  tf.get_default_graph().get_collection_ref(_IMAGES_KEY)[:] = [images, class_indices, outputs]


def register_output(name: str, targets: tf.Tensor, outputs: tf.Tensor) -> None:
  """Registers an output of the model for SamplePredictionsHook, if the output predicts numbers.

  Outputs of a softmax or sigmoid, and outputs of another shape than their targets, predict classes.
  """
  if (targets.shape.ndims == outputs.shape.ndims and outputs.dtype.is_floating
      and outputs.op.type not in ('Softmax', 'Sigmoid')
      and targets.shape.is_compatible_with(outputs.shape)):
    tf.add_to_collection(_OUTPUTS_KEY, (name, targets, outputs))


class SamplePredictionsHook(tf.train.SessionRunHook):
  """Collects a dozen images and 1,000 values of outputs, evenly spaced over the evaluation.

  The first examples would be less useful, because an image folder yields one class after another.

  Args:
    num_examples: the number of examples of the evaluation, or None if the number is unknown. In
      that case the first examples are collected.
    batch_size: the batch size of the evaluation.
  """

  def __init__(self, num_examples: Optional[int], batch_size: int) -> None:
    self._images: List[Sample] = []
    self._batch_size = batch_size
    self._batch_index = 0
    self._image_indices = _spaced_indices(num_examples, _NUM_IMAGES)
    self._output_indices = _spaced_indices(num_examples, _NUM_OUTPUTS)

  def begin(self) -> None:
    self._image_tensors = tf.get_collection(_IMAGES_KEY)
    outputs = tf.get_collection(_OUTPUTS_KEY)
    self._output_tensors = {name: tensors for name, *tensors in outputs}
    self._output_values: Dict[str, List[Any]] = {name: [] for name in self._output_tensors}

  @property
  def samples(self) -> EvaluationSamples:
    """The collected examples."""
    return EvaluationSamples(self._images, [
        OutputSample(name, *(np.stack(column) for column in zip(*values)))
        for name, values in self._output_values.items() if values])

  def before_run(self, run_context: Any) -> Optional[tf.train.SessionRunArgs]:
    tensors: Dict[str, Any] = {}
    if self._image_tensors and len(self._positions(self._image_indices)):
      tensors['images'] = self._image_tensors
    if self._output_tensors and len(self._positions(self._output_indices)):
      tensors['outputs'] = self._output_tensors
    return tf.train.SessionRunArgs(tensors) if tensors else None

  def after_run(self, run_context: Any, run_values: Any) -> None:
    results = run_values.results or {}
    if 'images' in results:
      images, class_indices, outputs = results['images']
      for position in self._positions(self._image_indices):
        if position < len(images):
          self._images.append(Sample(images[position], int(class_indices[position]),
                                     outputs[position]))
    for name, (targets, outputs) in results.get('outputs', {}).items():
      for position in self._positions(self._output_indices):
        if position < len(outputs):
          self._output_values[name].append((targets[position], outputs[position]))
    self._batch_index += 1

  def _positions(self, indices: np.ndarray) -> np.ndarray:
    """Returns the positions in the current batch of the selected examples."""
    positions = indices - self._batch_index * self._batch_size
    return positions[(positions >= 0) & (positions < self._batch_size)]


def _spaced_indices(num_examples: Optional[int], count: int) -> np.ndarray:
  if num_examples is None:
    return np.arange(count)
  return np.unique(np.linspace(0, num_examples - 1, count).astype(int))
