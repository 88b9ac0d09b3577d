"""The hook that collects a few images of an evaluation, with the outputs of the model."""

from typing import Any, List, NamedTuple, Optional

import numpy as np
import tensorflow.compat.v1 as tf

_COLLECTION_KEY = 'estimator_train/sample_predictions'
_NUM_SAMPLES = 12


class Sample(NamedTuple):
  """One example of an evaluation.

  Attributes:
    image: [height, width, C], as the input pipeline delivered it.
    true: the class index.
    outputs: float32 [num_classes], the outputs of the model.
  """
  image: np.ndarray
  true: int
  outputs: np.ndarray


def register_batch(images: Any, true: tf.Tensor, outputs: tf.Tensor) -> None:
  """Registers the tensors of a batch for SamplePredictions, in a collection of the default graph.

  Args:
    images: [B, height, width, C].
    true: the class indices, [B].
    outputs: the outputs of the model, [B, num_classes].
  """
  tf.get_default_graph().get_collection_ref(_COLLECTION_KEY)[:] = [images, true, outputs]


class SamplePredictions(tf.train.SessionRunHook):
  """Collects a dozen examples, evenly spaced because image folders are read class by class.

  Args:
    num_examples: the number of examples of the evaluation; None: unknown, the first ones are taken.
    batch_size: the batch size of the evaluation.

  Attributes:
    samples: the collected examples.
  """

  def __init__(self, num_examples: Optional[int], batch_size: int) -> None:
    self.samples: List[Sample] = []
    self._batch_size = batch_size
    self._batch = 0
    if num_examples is None:
      self._wanted = np.arange(_NUM_SAMPLES)
    else:
      self._wanted = np.unique(np.linspace(0, num_examples - 1, _NUM_SAMPLES).astype(int))

  def begin(self) -> None:
    batch = tf.get_collection(_COLLECTION_KEY)
    self._fetch = tf.train.SessionRunArgs(batch) if batch else None

  def before_run(self, run_context: Any) -> Optional[tf.train.SessionRunArgs]:
    return self._fetch if (self._wanted // self._batch_size == self._batch).any() else None

  def after_run(self, run_context: Any, run_values: Any) -> None:
    if run_values.results is not None:
      images, true, outputs = run_values.results
      for index in self._wanted - self._batch * self._batch_size:
        if 0 <= index < len(images):
          self.samples.append(Sample(images[index], int(true[index]), outputs[index]))
    self._batch += 1
