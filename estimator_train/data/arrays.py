"""Makes `input_fn`s of examples in memory: NumPy arrays, and one random batch.

The examples are not stored in the graph.
"""

from typing import Any, Callable, Optional, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.data.batching import Batching, evaluation_chunks
from estimator_train.data.source import InputFn, Source
from estimator_train.system import stored


class ArraySource(Source):
  """Makes the `input_fn`s of a split whose examples are in NumPy arrays (ArraySplit)."""
  format_name = 'arrays'
  class_indices_are_known = True
  is_in_memory = True

  def check_and_count(self) -> Optional[int]:
    return len(self.split.classes)  # `classes` holds the class index of each example.

  def make_train_input_fn(self, batching: Batching, cache: str) -> InputFn:
    return make_train_input_fn(self, self.split.images, self.split.classes, batching)

  def make_eval_input_fn(self, batching: Batching) -> InputFn:
    return make_eval_input_fn(self.split.images, self.split.classes, batching)

  def class_indices(self) -> np.ndarray:
    return np.asarray(self.split.classes)

  def cache_key(self) -> str:
    return stored.fingerprint_arrays(self.split)


def make_train_input_fn(source: Source, examples: np.ndarray, class_indices: np.ndarray,
                        batching: Batching) -> InputFn:
  """Makes the `input_fn` of training: shuffled, infinite, with full batches.

  A Python function copies the examples of each batch from the arrays. With `from_tensor_slices`,
  the graph and the meta graph of each checkpoint would contain the arrays.

  Args:
    source: the source of the examples, which determines their order.
    examples: [N, ...], any numeric dtype.
    class_indices: integer [N].
    batching: how the examples are combined into batches.

  Returns:
    A function that returns a dataset of (examples, labels). The examples are [B, ...] with the
    dtype of `examples`; the labels are float32 [B, num_classes] or int64 [B].
  """
  def input_fn() -> tf.data.Dataset:
    chunks = source.training_chunks(len(examples), batching, batching.examples_per_batch)
    return gather_batches(chunks, lambda indices: (examples[indices], class_indices[indices]),
                          examples.dtype, examples.shape[1:], batching)

  return input_fn


def make_eval_input_fn(examples: np.ndarray, class_indices: np.ndarray,
                       batching: Batching) -> InputFn:
  """Makes the `input_fn` of evaluation: each example once, in order; see make_train_input_fn."""
  def input_fn() -> tf.data.Dataset:
    chunks = evaluation_chunks(len(examples), batching.examples_per_batch)
    return gather_batches(chunks, lambda indices: (examples[indices], class_indices[indices]),
                          examples.dtype, examples.shape[1:], batching)

  return input_fn


def gather_batches(chunks: tf.data.Dataset,
                   read: Callable[[np.ndarray], Tuple[np.ndarray, np.ndarray]],
                   dtype: Any, example_shape: Sequence[Optional[int]],
                   batching: Batching) -> tf.data.Dataset:
  """Returns a dataset of batches (examples, labels), which a Python function reads.

  Args:
    chunks: the indices of the examples of each batch, int64 [B].
    read: takes the indices; returns the examples and their class indices.
    dtype: the dtype of the examples.
    example_shape: the shape of an example; None for an unknown dimension.
    batching: how labels are encoded and batches are prefetched.
  """
  def read_as_int64(indices: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    examples, class_indices = read(indices)
    return examples, class_indices.astype(np.int64)

  @tf.autograph.experimental.do_not_convert
  def make_batch(indices: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
    examples, class_indices = tf.numpy_function(read_as_int64, [indices], [dtype, tf.int64])
    examples.set_shape([None, *example_shape])
    class_indices.set_shape([None])
    return examples, batching.encode_labels(class_indices)

  return batching.prefetch_batches(chunks.map(make_batch))


class SyntheticSource(Source):
  """The source of a SyntheticSplit, which repeats one random batch."""
  format_name = 'synthetic'
  can_cache_in_folder = True  # --cache=FOLDER is accepted, but nothing is written.
  last_stage = None

  def check_and_count(self) -> Optional[int]:
    return None

  def make_train_input_fn(self, batching: Batching, cache: str) -> InputFn:
    return make_synthetic_input_fn(batching, self.split.num_batches)

  def make_eval_input_fn(self, batching: Batching) -> InputFn:
    return make_synthetic_input_fn(batching, self.split.num_batches)


def make_synthetic_input_fn(batching: Batching,
                  num_batches: Optional[int] = None) -> InputFn:
  """Makes an `input_fn` that repeats one random batch.

  Args:
    batching: gives the shape and the seed of the batch.
    num_batches: the number of batches; None: infinite.

  Returns:
    A function that returns a dataset of (images, labels). The images are uint8 [B, height, width,
    channels]; the labels are float32 [B, num_classes] or int64 [B].
  """
  def input_fn() -> tf.data.Dataset:
    shape = (batching.examples_per_batch,) + batching.image_shape
    images = tf.cast(
        tf.random.stateless_uniform(shape, [batching.seed, 0], 0, 256, tf.int32), tf.uint8)
    class_indices = tf.random.stateless_uniform(
        [batching.examples_per_batch], [batching.seed, 1], 0, batching.num_classes, tf.int64)
    batch = images, batching.encode_labels(class_indices)
    return tf.data.Dataset.from_tensors(batch).repeat(num_batches)

  return input_fn
