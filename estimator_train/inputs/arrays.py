"""`input_fn`s that read NumPy arrays, in memory or memory-mapped, outside of the graph."""

from concurrent import futures
from typing import Callable, Optional, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.datasets import fingerprint, idx
from estimator_train.datasets.description import IdxSplit
from estimator_train.inputs.batching import Batching
from estimator_train.inputs.source import InputFn, Source


class ArraySource(Source):
  """The source of an ArraySplit."""
  format_name = 'arrays'
  class_indices_are_known = True
  is_in_memory = True

  def check_and_count(self) -> Optional[int]:
    return len(self.split.classes)

  def make_train_input_fn(self, batching: Batching, cache: str) -> InputFn:
    return make_train_input_fn(self.split.images, self.split.classes, batching,
                               self.make_permutation(batching))

  def make_eval_input_fn(self, batching: Batching) -> InputFn:
    return make_eval_input_fn(self.split.images, self.split.classes, batching)

  def class_indices(self) -> np.ndarray:
    return np.asarray(self.split.classes)

  def cache_key(self) -> str:
    return fingerprint.of_arrays(self.split)


def read_idx_split(split: IdxSplit,
                   image_shape: Tuple[int, int, int]) -> Tuple[np.ndarray, np.ndarray]:
  """Reads the idx files of a split that idx.check_split has checked.

  Returns:
    The images, uint8 [N, height, width, channels], and the class indices, uint8 [N].
  """
  images = np.frombuffer(idx.read_images(split), np.uint8)
  return images.reshape((-1,) + image_shape), read_idx_labels(split)


def read_idx_labels(split: IdxSplit) -> np.ndarray:
  """Reads only the class indices, uint8 [N]."""
  return np.frombuffer(idx.read_labels(split), np.uint8)


def make_train_input_fn(examples: np.ndarray, labels: np.ndarray, batching: Batching,
                        order: Optional[np.ndarray] = None) -> Callable[[], tf.data.Dataset]:
  """Makes the `input_fn` of training: shuffled, infinite, with full batches.

  tf.data shuffles the indices of the examples, which gives the same order as shuffling the
  examples. A Python function then gathers the examples of each batch from the arrays. In contrast,
  `from_tensor_slices` would store the arrays in the graph and in each checkpoint's meta graph.

  Args:
    examples: [N, ...], any numeric dtype.
    labels: the class indices, integer [N].
    batching: how the examples are combined into batches.
    order: a permutation that is applied before shuffling, integer [N]; None: no permutation.

  Returns:
    A function that returns a dataset of (examples, labels): [B, ...] with the dtype of `examples`,
    and float32 [B, num_classes] or int64 [B].
  """
  def input_fn() -> tf.data.Dataset:
    indices = batching.shuffle_and_shard(tf.data.Dataset.range(len(examples)), len(examples))
    return _gather_batches(indices, lambda: (examples, labels), examples, batching, order)

  return input_fn


def make_idx_train_input_fn(split: IdxSplit, batching: Batching) -> Callable[[], tf.data.Dataset]:
  """Like make_train_input_fn, but for idx files. A thread reads them while the graph is built."""
  num_examples = idx.count_examples(split)
  # Nothing else refers to the executor, so that its thread ends after reading the files.
  arrays = futures.ThreadPoolExecutor(1).submit(read_idx_split, split, batching.image_shape)
  template = np.empty((0,) + batching.image_shape, np.uint8)

  def input_fn() -> tf.data.Dataset:
    indices = batching.shuffle_and_shard(tf.data.Dataset.range(num_examples), num_examples)
    return _gather_batches(indices, arrays.result, template, batching, None)

  return input_fn


def make_eval_input_fn(examples: np.ndarray, labels: np.ndarray,
                       batching: Batching) -> Callable[[], tf.data.Dataset]:
  """Makes the `input_fn` of evaluation: each example once, in order; see make_train_input_fn."""
  def input_fn() -> tf.data.Dataset:
    return _gather_batches(tf.data.Dataset.range(len(examples)), lambda: (examples, labels),
                           examples, batching, None)

  return input_fn


def _gather_batches(indices: tf.data.Dataset,
                    get_arrays: Callable[[], Tuple[np.ndarray, np.ndarray]],
                    template: np.ndarray, batching: Batching,
                    order: Optional[np.ndarray]) -> tf.data.Dataset:
  """Gathers batches of examples and labels.

  Args:
    indices: the indices of the examples, int64 scalars.
    get_arrays: returns all examples and all class indices.
    template: an array with the dtype and the shape [any, ...] of the examples.
    batching: how the examples are combined into batches.
    order: a permutation to apply to the indices; None: no permutation.
  """
  def gather(indices: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    examples, labels = get_arrays()
    chosen = indices if order is None else order[indices]
    return examples[chosen], labels[chosen].astype(np.int64)

  @tf.autograph.experimental.do_not_convert
  def make_batch(indices: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
    values, classes = tf.numpy_function(gather, [indices], [template.dtype, tf.int64])
    values.set_shape((None,) + template.shape[1:])
    classes.set_shape([None])
    return values, batching.encode_labels(classes)

  return batching.prefetch_batches(indices.batch(batching.examples_per_batch).map(make_batch))
