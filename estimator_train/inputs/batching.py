"""What every kind of input has in common: the shape of a batch and the order of the examples."""

from typing import NamedTuple, Tuple

import numpy as np
import tensorflow.compat.v1 as tf


class Batching(NamedTuple):
  """How examples become batches.

  Attributes:
    image_shape: (height, width, channels).
    num_classes: the length of a one-hot label.
    one_hot: whether labels are one-hot, not class numbers.
    batch_size: per replica.
    shuffle_buffer: examples to shuffle among.
    num_parallel_calls: images decoded at once.
    prefetch: batches prepared ahead.
    seed: of the order of the examples.
    skip_examples: the examples that earlier runs of a training took, which are passed over so that
      a resumed run goes on where they stopped.
  """
  image_shape: Tuple[int, int, int]
  num_classes: int
  one_hot: bool
  batch_size: int
  shuffle_buffer: int = 1
  num_parallel_calls: int = 1
  prefetch: int = 1
  seed: int = 1
  skip_examples: int = 0

  def shuffled(self, examples: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the examples of training: shuffled and repeated without end, from the next one on.

    Epochs follow each other without a break, so that every batch of them is full.
    """
    return examples.apply(tf.data.experimental.shuffle_and_repeat(
        self.shuffle_buffer, count=None, seed=self.seed)).skip(self.skip_examples)

  def order(self, num_examples: int) -> np.ndarray:
    """Returns the order, int32 [num_examples], in which files are listed to be shuffled.

    Files are found class by class; a shuffle buffer smaller than a class would not mix them.
    """
    return np.random.RandomState(self.seed).permutation(num_examples).astype(np.int32)

  def labels(self, classes: tf.Tensor) -> tf.Tensor:
    """Turns class numbers, int64 [B], into labels: those, or float32 [B, num_classes]."""
    return tf.one_hot(classes, self.num_classes) if self.one_hot else classes
