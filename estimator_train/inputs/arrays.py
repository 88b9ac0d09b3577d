"""An `input_fn` from NumPy arrays that stay in the process's memory, outside of the graph."""

import gzip
from typing import Callable, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.datasets import idx
from estimator_train.datasets.description import IdxSplit
from estimator_train.inputs.batching import Batching, to_unit


def read_idx(split: IdxSplit, image_shape: Tuple[int, int, int]) -> Tuple[np.ndarray, np.ndarray]:
  """Reads idx files that idx.check_split has found right.

  Returns:
    Images, uint8 [N, height, width, channels], and class numbers, uint8 [N].
  """
  with gzip.open(split.images) as file:
    images = np.frombuffer(file.read(), np.uint8, offset=idx.IMAGE_HEADER_BYTES)
  with gzip.open(split.labels) as file:
    labels = np.frombuffer(file.read(), np.uint8, offset=idx.LABEL_HEADER_BYTES)
  return images.reshape((-1,) + image_shape), labels


def make_train_input_fn(images: np.ndarray, labels: np.ndarray,
                        batching: Batching) -> Callable[[], tf.data.Dataset]:
  """Makes the `input_fn` of training: shuffled, without end, every batch full.

  tf.data shuffles the examples' numbers, with the same outcome as if it shuffled the examples; a
  batch of them is then looked up in the arrays. `from_tensor_slices` would put the arrays into the
  graph instead, and the graph into every checkpoint.

  Args:
    images: uint8 [N, height, width, channels].
    labels: class numbers, integer [N].
    batching: how they become batches.

  Returns:
    A function that returns a dataset of (float32 [B, height, width, channels] in [0, 1], float32
    [B, num_classes] or int64 [B]).
  """
  def look_up(numbers: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    return images[numbers], labels[numbers].astype(np.int64)

  @tf.autograph.experimental.do_not_convert
  def batch(numbers: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
    pixels, classes = tf.numpy_function(look_up, [numbers], [tf.uint8, tf.int64])
    pixels.set_shape((None,) + batching.image_shape)
    classes.set_shape([None])
    return to_unit(pixels), batching.labels(classes)

  def input_fn() -> tf.data.Dataset:
    numbers = batching.shuffled(tf.data.Dataset.range(len(images)))
    return numbers.batch(batching.batch_size).map(batch).prefetch(batching.prefetch)

  return input_fn
