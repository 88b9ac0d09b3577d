"""Makes `input_fn`s that read NumPy arrays, which are not stored in the graph."""

from concurrent import futures
from typing import Callable, Optional, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.datasets import fingerprint, idx
from estimator_train.datasets.description import IdxSplit
from estimator_train.inputs.batching import Batching
from estimator_train.inputs.source import InputFn, Source


class ArraySource(Source):
  """Makes the `input_fn`s of a split whose examples are in NumPy arrays (ArraySplit)."""
  format_name = 'arrays'
  class_indices_are_known = True
  is_in_memory = True

  def check_and_count(self) -> Optional[int]:
    return len(self.split.classes)  # `classes` holds the class index of each example.

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
  return images.reshape((-1,) + image_shape), read_idx_class_indices(split)


def read_idx_class_indices(split: IdxSplit) -> np.ndarray:
  """Reads only the class indices of a split, uint8 [N]."""
  return np.frombuffer(idx.read_labels(split), np.uint8)


def make_train_input_fn(examples: np.ndarray, class_indices: np.ndarray, batching: Batching,
                        permutation: Optional[np.ndarray] = None) -> InputFn:
  """Makes the `input_fn` of training: shuffled, infinite, with full batches.

  tf.data shuffles only the positions 0 to N - 1. A Python function then copies the examples of each
  batch from the arrays. With `from_tensor_slices`, the graph and the meta graph of each
  checkpoint would contain the arrays.

  Args:
    examples: [N, ...], any numeric dtype.
    class_indices: integer [N].
    batching: how the examples are combined into batches.
    permutation: the index of the example at each position, integer [N]: a fixed permutation of the
      examples, applied before shuffling because a shuffle buffer may be smaller than a class. None:
      the order of the arrays.

  Returns:
    A function that returns a dataset of (examples, labels). The examples are [B, ...] with the
    dtype of `examples`; the labels are float32 [B, num_classes] or int64 [B].
  """
  def input_fn() -> tf.data.Dataset:
    positions = batching.shuffle_and_shard(tf.data.Dataset.range(len(examples)), len(examples))
    return _gather_batches(positions, lambda: (examples, class_indices), examples, batching,
                           permutation)

  return input_fn


def make_idx_train_input_fn(split: IdxSplit, batching: Batching) -> InputFn:
  """Like make_train_input_fn, but a thread reads idx files into arrays while the graph is built."""
  num_examples = idx.count_examples(split)
  # The executor is not kept in a variable: when it is garbage-collected, its thread ends as soon as
  # the files are read.
  future = futures.ThreadPoolExecutor(1).submit(read_idx_split, split, batching.image_shape)
  template = np.empty((0,) + batching.image_shape, np.uint8)

  def input_fn() -> tf.data.Dataset:
    positions = batching.shuffle_and_shard(tf.data.Dataset.range(num_examples), num_examples)
    return _gather_batches(positions, future.result, template, batching, None)

  return input_fn


def make_eval_input_fn(examples: np.ndarray, class_indices: np.ndarray,
                       batching: Batching) -> InputFn:
  """Makes the `input_fn` of evaluation: each example once, in order; see make_train_input_fn."""
  def input_fn() -> tf.data.Dataset:
    return _gather_batches(tf.data.Dataset.range(len(examples)), lambda: (examples, class_indices),
                           examples, batching, None)

  return input_fn


def _gather_batches(positions: tf.data.Dataset,
                    get_arrays: Callable[[], Tuple[np.ndarray, np.ndarray]],
                    template: np.ndarray, batching: Batching,
                    permutation: Optional[np.ndarray]) -> tf.data.Dataset:
  """Returns a dataset of batches (examples, labels), which are copied from arrays.

  Args:
    positions: the positions of the examples to copy, int64 scalars.
    get_arrays: returns all examples and all class indices.
    template: an array with the dtype and the shape [any, ...] of the examples.
    batching: how the examples are combined into batches.
    permutation: the index of the example at each position, applied before shuffling, see
      make_train_input_fn; None: the order of the arrays.
  """
  def gather(batch_positions: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    examples, class_indices = get_arrays()
    indices = batch_positions if permutation is None else permutation[batch_positions]
    return examples[indices], class_indices[indices].astype(np.int64)

  @tf.autograph.experimental.do_not_convert
  def make_batch(batch_positions: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
    examples, class_indices = tf.numpy_function(gather, [batch_positions],
                                                [template.dtype, tf.int64])
    examples.set_shape((None,) + template.shape[1:])
    class_indices.set_shape([None])
    return examples, batching.encode_labels(class_indices)

  return batching.prefetch_batches(positions.batch(batching.examples_per_batch).map(make_batch))
