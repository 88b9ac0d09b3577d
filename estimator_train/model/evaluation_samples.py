"""Collects samples of the images, labels and predictions of an evaluation, for its report."""

from typing import Any, List, NamedTuple, Optional, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

# The graph collection of SampledTensors.
_SAMPLES_KEY = 'estimator_train/samples'
_NUM_IMAGES, _NUM_OUTPUTS = 12, 1000


class SampledTensors(NamedTuple):
  """Tensors of a batch. Their rows are the examples of which an evaluation collects samples.

  Attributes:
    output_name: the name of an output that predicts numbers; None if the samples are classified
      images.
    num_examples: how many samples to collect.
    tensors: the targets and the output, both [B, ...]. Or the images [B, height, width, C], the
      true class indices [B] and the outputs of the model [B, num_classes].
    are_mistakes: whether the tensors contain only the first wrongly classified images of the batch.
  """
  output_name: Optional[str]
  num_examples: int
  tensors: Sequence[tf.Tensor]
  are_mistakes: bool = False


def add_image_samples(features: Any, class_indices: tf.Tensor, outputs: tf.Tensor,
                      predicted: tf.Tensor) -> None:
  """Adds images to the sampled tensors, and in a second group the wrongly classified images.

  Args:
    features: images [B, height, width, C].
    class_indices: the true classes, [B].
    outputs: [B, num_classes].
    predicted: the predicted classes, [B].
  """
  tensors = (features, class_indices, outputs)
  # Otherwise, TensorFlow copies all images to the GPU and back, since GatherV2 has no GPU kernel
  # for uint8.
  with tf.device('/cpu:0'):
    mistakes = [tf.boolean_mask(tensor, tf.not_equal(predicted, class_indices))[:_NUM_IMAGES]
                for tensor in tensors]
  tf.add_to_collection(_SAMPLES_KEY, SampledTensors(None, _NUM_IMAGES, tensors))
  tf.add_to_collection(_SAMPLES_KEY, SampledTensors(None, _NUM_IMAGES, mistakes, True))


def add_output_samples(output_name: str, targets: tf.Tensor, outputs: tf.Tensor) -> None:
  """Adds an output that predicts numbers, and its targets, [B, ...], to the sampled tensors."""
  tf.add_to_collection(_SAMPLES_KEY, SampledTensors(output_name, _NUM_OUTPUTS, (targets, outputs)))


def take_sampled_tensors() -> List[SampledTensors]:
  """Returns the sampled tensors, and removes them from the graph, which TensorFlow serializes."""
  sampled_tensors = tf.get_collection(_SAMPLES_KEY)
  tf.get_default_graph().clear_collection(_SAMPLES_KEY)
  return sampled_tensors  # A copy, which the removal does not change.


class ImageSample(NamedTuple):
  """One image of an evaluation.

  Attributes:
    image: the image as the input pipeline yields it, [height, width, C].
    class_index: the true class.
    outputs: float32 [num_classes].
  """
  image: np.ndarray
  class_index: int
  outputs: np.ndarray


class OutputSample(NamedTuple):
  """The true and the predicted numbers of an output of the model, for N of the examples.

  Attributes:
    targets: the true numbers, [N, ...].
    outputs: the predicted numbers, [N, ...].
  """
  output_name: str
  targets: np.ndarray
  outputs: np.ndarray


class EvaluationSamples(NamedTuple):
  """Some of the examples of an evaluation.

  Attributes:
    images: images from the whole evaluation; empty unless the model classifies images.
    mistakes: wrongly classified images.
    outputs: the samples of the outputs that predict numbers instead of classes.
  """
  images: List[ImageSample]
  mistakes: List[ImageSample]
  outputs: List[OutputSample]


class SampleCollector:
  """Collects examples that are evenly spaced over an evaluation, with the outputs of the model.

  The first examples would be less useful, because image folders yield one class after another.

  Args:
    groups: the return value of take_sampled_tensors.
    num_examples: the number of examples of the evaluation. If it is unknown (None), the first
      examples are collected.
  """

  def __init__(self, groups: Sequence[SampledTensors],
               num_examples: Optional[int], batch_size: int) -> None:
    self._groups, self._num_examples = groups, num_examples
    self._indices = [np.arange(group.num_examples) if num_examples is None else np.unique(
        np.linspace(0, num_examples - 1, group.num_examples).astype(int)) for group in groups]
    self._rows: List[List[Any]] = [[] for _ in groups]
    self._batch_start, self._batch_size = 0, batch_size

  def tensors_to_fetch(self) -> List[Sequence[tf.Tensor]]:
    """Returns the tensors to fetch with the next batch, a list for each group."""
    return [group.tensors if (self._num_mistakes_to_collect(rows) if group.are_mistakes
                              else len(self._positions_in_next_batch(indices))) else []
            for group, indices, rows in zip(self._groups, self._indices, self._rows)]

  def add_batch(self, values: Sequence[Sequence[np.ndarray]]) -> None:
    """Collects samples from the values of `tensors_to_fetch`."""
    for group, rows, arrays, indices in zip(self._groups, self._rows, values, self._indices):
      if group.are_mistakes:
        rows.extend(list(zip(*arrays))[:self._num_mistakes_to_collect(rows)])
      elif arrays:
        rows += [[array[position] for array in arrays]
                 for position in self._positions_in_next_batch(indices)
                 if position < len(arrays[0])]
    self._batch_start += self._batch_size

  def _positions_in_next_batch(self, indices: np.ndarray) -> np.ndarray:
    """Returns the positions in the next batch of examples, given by indices in the evaluation."""
    positions = indices - self._batch_start
    return positions[(positions >= 0) & (positions < self._batch_size)]

  def _num_mistakes_to_collect(self, rows: Sequence[Any]) -> int:
    """Returns how many mistakes to collect from the next batch, so that they are evenly spaced."""
    end = self._batch_start + self._batch_size
    expected = -(-_NUM_IMAGES * end // (self._num_examples or end))
    return min(expected, _NUM_IMAGES) - len(rows)

  @property
  def samples(self) -> EvaluationSamples:
    samples = EvaluationSamples([], [], [])
    for group, rows in zip(self._groups, self._rows):
      if group.output_name is None:
        (samples.mistakes if group.are_mistakes else samples.images).extend(
            ImageSample(image, int(class_index), outputs) for image, class_index, outputs in rows)
      elif rows:
        samples.outputs.append(OutputSample(group.output_name, *map(np.stack, zip(*rows))))
    return samples
