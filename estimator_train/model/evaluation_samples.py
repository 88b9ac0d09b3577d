"""Collects samples of the images, labels and predictions of an evaluation, for its report."""

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

# The graph collection of SampledTensors.
_SAMPLES_KEY = 'estimator_train/samples'
_NUM_IMAGES, _NUM_OUTPUTS = 12, 1000


class SampledTensors(NamedTuple):
  """Tensors whose N rows are the samples among the examples of a batch.

  Each batch fetches the same tensors. For each new set of tensors, TensorFlow would optimize the
  graph again, which takes as long as several batches of a small model.

  Attributes:
    output_name: the name of an output that predicts numbers; None if the samples are classified
      images.
    num_examples: how many samples to collect.
    tensors: the targets and the output, both [N, ...]. Or the images [N, height, width, C], the
      true class indices [N], and the class probabilities [N, num_classes]. The last tensor has the
      positions of the samples in the batch.
    selection: a tensor to feed, which selects the samples. For mistakes, the minimum confidence: a
      scalar. The samples are wrongly classified images whose predicted class has at least this
      probability. Otherwise, the positions of the samples, int64. Positions after the end of the
      batch are ignored.
    are_mistakes: whether the samples are mistakes.
  """
  output_name: Optional[str]
  num_examples: int
  tensors: Sequence[tf.Tensor]
  selection: tf.Tensor
  are_mistakes: bool = False


def add_image_samples(features: Any, class_indices: tf.Tensor, probabilities: tf.Tensor,
                      predicted: tf.Tensor) -> None:
  """Adds images to the sampled tensors, and in a second group the wrongly classified images.

  Args:
    features: images [B, height, width, C].
    class_indices: the true classes, [B].
    probabilities: [B, num_classes].
    predicted: the predicted classes, [B].
  """
  tensors = (features, class_indices, probabilities)
  # Otherwise, TensorFlow copies all images to the GPU and back, since GatherV2 has no GPU kernel
  # for uint8.
  with tf.device('/cpu:0'):
    min_confidence = tf.placeholder_with_default(tf.zeros([], probabilities.dtype), [])
    confidences = tf.reduce_max(probabilities, -1)
    is_mistake = tf.not_equal(predicted, class_indices) & (confidences >= min_confidence)
    confidences, positions = tf.math.top_k(
        tf.where(is_mistake, confidences, -tf.ones_like(confidences)),
        tf.minimum(_NUM_IMAGES, tf.size(confidences)))
    positions = tf.boolean_mask(positions, confidences >= 0)
    mistakes = [*(tf.gather(tensor, positions) for tensor in tensors), positions]
    _add_samples(None, _NUM_IMAGES, tensors)
  tf.add_to_collection(_SAMPLES_KEY, SampledTensors(None, _NUM_IMAGES, mistakes, min_confidence,
                                                    are_mistakes=True))


def add_output_samples(output_name: str, targets: tf.Tensor, outputs: tf.Tensor) -> None:
  """Adds an output that predicts numbers, and its targets, [B, ...], to the sampled tensors."""
  _add_samples(output_name, _NUM_OUTPUTS, (targets, outputs))


def _add_samples(output_name: Optional[str], num_examples: int,
                 tensors: Sequence[tf.Tensor]) -> None:
  """Adds the examples at positions that are fed to the sampled tensors, [B, ...]."""
  selection = tf.placeholder_with_default(np.zeros([0], np.int64), [None])
  positions = tf.boolean_mask(selection, selection < tf.shape(tensors[0], out_type=tf.int64)[0])
  tf.add_to_collection(_SAMPLES_KEY, SampledTensors(
      output_name, num_examples, [*(tf.gather(tensor, positions) for tensor in tensors), positions],
      selection))


def take_sampled_tensors() -> List[SampledTensors]:
  """Returns the sampled tensors, and removes them from the graph, which TensorFlow serializes."""
  sampled_tensors = tf.get_collection(_SAMPLES_KEY)
  tf.get_default_graph().clear_collection(_SAMPLES_KEY)
  return sampled_tensors  # A copy, which the removal does not change.


class ImageSample(NamedTuple):
  """One image of an evaluation.

  Attributes:
    image: the image as the input pipeline yields it, [height, width, 1 or 3].
    class_index: the true class.
    probabilities: the class probabilities, float [num_classes].
    identity: the keys and values that identify the example; see Source.identify_example.
  """
  image: np.ndarray
  class_index: int
  probabilities: np.ndarray
  identity: Dict[str, Any]


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
    mistakes: the wrongly classified images with the most probable predictions, in descending order.
    outputs: the samples of the outputs that predict numbers instead of classes.
  """
  images: List[ImageSample]
  mistakes: List[ImageSample]
  outputs: List[OutputSample]


class SampleCollector:
  """Collects examples with the outputs of the model.

  The examples are evenly spaced over the evaluation, because image folders yield one class after
  another. The mistakes are the most confident ones of the evaluation.

  Args:
    groups: the return value of take_sampled_tensors.
    num_examples: the number of examples of the evaluation. If it is unknown (None), the first
      examples are collected.
    identify: see Source.identify_example.
  """

  def __init__(self, groups: Sequence[SampledTensors], num_examples: Optional[int],
               batch_size: int, identify: Callable[[int], Dict[str, Any]]) -> None:
    self._groups, self._identify = groups, identify
    self._indices = [np.arange(group.num_examples) if num_examples is None else np.unique(
        np.linspace(0, num_examples - 1, group.num_examples).astype(int)) for group in groups]
    self._rows: List[List[Any]] = [[] for _ in groups]
    self._batch_start, self._batch_size = 0, batch_size

  def tensors_to_fetch(self) -> List[Sequence[tf.Tensor]]:
    """Returns the tensors to fetch with each batch, a list for each group."""
    return [group.tensors for group in self._groups]

  def values_to_feed(self) -> Dict[tf.Tensor, Any]:
    """Returns the values to feed with the next batch. They select the samples to fetch."""
    return {group.selection: (
        self._positions_in_next_batch(indices) if not group.are_mistakes
        # Less confident mistakes than those so far need not be fetched.
        else rows[-1][2].max() if len(rows) == group.num_examples else 0.)
            for group, rows, indices in zip(self._groups, self._rows, self._indices)}

  def add_batch(self, values: Sequence[Sequence[np.ndarray]]) -> None:
    """Collects samples from the values of `tensors_to_fetch`."""
    for group, rows, (*arrays, positions) in zip(self._groups, self._rows, values):
      rows.extend(zip(*arrays, self._batch_start + positions))
      if group.are_mistakes:
        rows.sort(key=lambda row: -row[2].max())  # Equally confident mistakes stay in their order.
        del rows[group.num_examples:]
    self._batch_start += self._batch_size

  def _positions_in_next_batch(self, indices: np.ndarray) -> np.ndarray:
    """Returns the positions in the next batch of examples, given by indices in the evaluation."""
    positions = indices - self._batch_start
    return positions[(positions >= 0) & (positions < self._batch_size)]

  @property
  def samples(self) -> EvaluationSamples:
    samples = EvaluationSamples([], [], [])
    for group, rows in zip(self._groups, self._rows):
      if group.output_name is None:
        (samples.mistakes if group.are_mistakes else samples.images).extend(
            ImageSample(image, int(class_index), probabilities, self._identify(int(index)))
            for image, class_index, probabilities, index in rows
            if image.shape[-1] in (1, 3))  # The number of channels may be unknown in the graph.
      elif rows:
        samples.outputs.append(OutputSample(
            group.output_name, *map(np.stack, list(zip(*rows))[:2])))
    return samples
