"""The hook that keeps a few of an evaluation's images, with what the model made of them."""

from typing import Any, List, NamedTuple, Optional

import numpy as np
import tensorflow.compat.v1 as tf

_OFFERED = 'estimator_train/sample_predictions'
_COUNT = 12


class Sample(NamedTuple):
  """One example of an evaluation.

  Attributes:
    image: [height, width, C], as the input delivered it.
    true: its class number.
    outputs: float32 [num_classes], of the model.
  """
  image: np.ndarray
  true: int
  outputs: np.ndarray


def offer(images: Any, true: tf.Tensor, outputs: tf.Tensor) -> None:
  """Lets the hook know a batch: images [B, height, width, C], classes [B], outputs [B, classes]."""
  tf.get_default_graph().get_collection_ref(_OFFERED)[:] = [images, true, outputs]


class SamplePredictions(tf.train.SessionRunHook):
  """Keeps a dozen examples from all over an evaluation; folders of images come class by class.

  Args:
    num_examples: of the evaluation; None where that is unknown: the first ones are kept.
    batch_size: of it.

  Attributes:
    samples: what was kept.
  """

  def __init__(self, num_examples: Optional[int], batch_size: int) -> None:
    self.samples: List[Sample] = []
    self._batch_size = batch_size
    self._batch = 0
    if num_examples is None:
      self._wanted = np.arange(_COUNT)
    else:
      self._wanted = np.unique(np.linspace(0, num_examples - 1, _COUNT).astype(int))

  def begin(self) -> None:
    offered = tf.get_collection(_OFFERED)
    self._fetch = tf.train.SessionRunArgs(offered) if offered else None

  def before_run(self, run_context: Any) -> Optional[tf.train.SessionRunArgs]:
    return self._fetch if (self._wanted // self._batch_size == self._batch).any() else None

  def after_run(self, run_context: Any, run_values: Any) -> None:
    if run_values.results is not None:
      images, true, outputs = run_values.results
      for index in self._wanted - self._batch * self._batch_size:
        if 0 <= index < len(images):
          self.samples.append(Sample(images[index], int(true[index]), outputs[index]))
    self._batch += 1
