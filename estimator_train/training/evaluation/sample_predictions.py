"""The hook that collects a few images of an evaluation, with the outputs of the model."""

from typing import Any, List, NamedTuple, Optional

import numpy as np
import tensorflow.compat.v1 as tf

_COLLECTION_KEY = 'estimator_train/sample_predictions'
_NUM_SAMPLES = 12


class Sample(NamedTuple):
  """One example of an evaluation.

  Attributes:
    image: the image as the input pipeline yields it, [height, width, C].
    class_index: the index of the true class.
    outputs: float32 [num_classes], the outputs of the model.
  """
  image: np.ndarray
  class_index: int
  outputs: np.ndarray


def register_batch(images: Any, class_indices: tf.Tensor, outputs: tf.Tensor) -> None:
  """Registers the tensors of a batch for SamplePredictionsHook, in a graph collection.

  Args:
    images: the images, [B, height, width, C].
    class_indices: the true class indices, [B].
    outputs: the outputs of the model, [B, num_classes].
  """
  tf.get_default_graph().get_collection_ref(_COLLECTION_KEY)[:] = [
      images, class_indices, outputs]


class SamplePredictionsHook(tf.train.SessionRunHook):
  """Collects a dozen examples, evenly spaced over the evaluation.

  The first dozen would be less useful, because an image folder yields one class after another.

  Args:
    num_examples: the number of examples of the evaluation, or None if the number is unknown. In
      that case the first dozen is collected.
    batch_size: the batch size of the evaluation.

  Attributes:
    samples: the collected examples.
  """

  def __init__(self, num_examples: Optional[int], batch_size: int) -> None:
    self.samples: List[Sample] = []
    self._batch_size = batch_size
    self._batch_index = 0
    if num_examples is None:
      self._selected_indices = np.arange(_NUM_SAMPLES)
    else:
      self._selected_indices = np.unique(np.linspace(0, num_examples - 1, _NUM_SAMPLES).astype(int))

  def begin(self) -> None:
    batch = tf.get_collection(_COLLECTION_KEY)
    self._run_args = tf.train.SessionRunArgs(batch) if batch else None

  def before_run(self, run_context: Any) -> Optional[tf.train.SessionRunArgs]:
    is_selected = (self._selected_indices // self._batch_size == self._batch_index).any()
    return self._run_args if is_selected else None

  def after_run(self, run_context: Any, run_values: Any) -> None:
    if run_values.results is not None:
      images, class_indices, outputs = run_values.results
      for index in self._selected_indices - self._batch_index * self._batch_size:
        if 0 <= index < len(images):
          self.samples.append(Sample(images[index], int(class_indices[index]), outputs[index]))
    self._batch_index += 1
