"""An `input_fn` from NumPy arrays, in memory or mapped to a file, that stay out of the graph."""

from concurrent import futures
from typing import Callable, Optional, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.datasets import fingerprint, idx
from estimator_train.datasets.description import IdxSplit
from estimator_train.inputs.batching import Batching
from estimator_train.inputs.source import InputFn, Source


class ArraySource(Source):
  """NumPy arrays of a user's data set."""
  kind = 'arrays'
  lists_classes = True
  is_in_memory = True

  def check(self) -> Optional[int]:
    return len(self.split.classes)

  def make_train_input_fn(self, batching: Batching, cache: str) -> InputFn:
    return make_train_input_fn(self.split.images, self.split.classes, batching,
                               self.order(batching))

  def make_eval_input_fn(self, batching: Batching) -> InputFn:
    return make_eval_input_fn(self.split.images, self.split.classes, batching)

  def classes(self) -> np.ndarray:
    return np.asarray(self.split.classes)

  def cache_key(self) -> str:
    return fingerprint.of_arrays(self.split)


def read_idx(split: IdxSplit, image_shape: Tuple[int, int, int]) -> Tuple[np.ndarray, np.ndarray]:
  """Reads idx files that idx.check_split has found right.

  Returns:
    Images, uint8 [N, height, width, channels], and class numbers, uint8 [N].
  """
  images = np.frombuffer(idx.read_images(split), np.uint8)
  return images.reshape((-1,) + image_shape), read_idx_labels(split)


def read_idx_labels(split: IdxSplit) -> np.ndarray:
  """Reads the class numbers alone, uint8 [N]."""
  return np.frombuffer(idx.read_labels(split), np.uint8)


def make_train_input_fn(examples: np.ndarray, labels: np.ndarray, batching: Batching,
                        order: Optional[np.ndarray] = None) -> Callable[[], tf.data.Dataset]:
  """Makes the `input_fn` of training: shuffled, without end, every batch full.

  tf.data shuffles the examples' numbers, with the same outcome as if it shuffled the examples; a
  batch of them is then looked up in the arrays. `from_tensor_slices` would put the arrays into the
  graph instead, and the graph into every checkpoint.

  Args:
    examples: [N, ...] of any numeric type.
    labels: class numbers, integer [N].
    batching: how they become batches.
    order: the order in which examples are listed to be shuffled, integer [N]; theirs when None.

  Returns:
    A function that returns a dataset of (the examples' type [B, ...], float32 [B, num_classes] or
    int64 [B]).
  """
  def input_fn() -> tf.data.Dataset:
    numbers = batching.shuffled(tf.data.Dataset.range(len(examples)), len(examples))
    return _batches(numbers, lambda: (examples, labels), examples, batching, order)

  return input_fn


def make_idx_train_input_fn(split: IdxSplit, batching: Batching) -> Callable[[], tf.data.Dataset]:
  """Makes the same from idx files, which a thread reads while the graph is built."""
  num_examples = idx.count(split)
  # The one thread ends with its work.
  reading = futures.ThreadPoolExecutor(1).submit(read_idx, split, batching.image_shape)
  like = np.empty((0,) + batching.image_shape, np.uint8)

  def input_fn() -> tf.data.Dataset:
    numbers = batching.shuffled(tf.data.Dataset.range(num_examples), num_examples)
    return _batches(numbers, reading.result, like, batching, None)

  return input_fn


def make_eval_input_fn(examples: np.ndarray, labels: np.ndarray,
                       batching: Batching) -> Callable[[], tf.data.Dataset]:
  """Makes the `input_fn` of evaluation: every example once, in their order; see above."""
  def input_fn() -> tf.data.Dataset:
    return _batches(tf.data.Dataset.range(len(examples)), lambda: (examples, labels), examples,
                    batching, None)

  return input_fn


def _batches(numbers: tf.data.Dataset, get: Callable[[], Tuple[np.ndarray, np.ndarray]],
             like: np.ndarray, batching: Batching,
             order: Optional[np.ndarray]) -> tf.data.Dataset:
  """Looks up batches of examples and labels in what `get` returns, which is `like` that."""
  def look_up(numbers: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    examples, labels = get()
    chosen = numbers if order is None else order[numbers]
    return examples[chosen], labels[chosen].astype(np.int64)

  @tf.autograph.experimental.do_not_convert
  def batch(numbers: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
    values, classes = tf.numpy_function(look_up, [numbers], [like.dtype, tf.int64])
    values.set_shape((None,) + like.shape[1:])
    classes.set_shape([None])
    return values, batching.labels(classes)

  return batching.prefetched(numbers.batch(batching.batch_size).map(batch))
