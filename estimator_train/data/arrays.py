"""Makes `input_fn`s of NumPy arrays and of synthetic data.

The graph does not contain the examples.
"""

import abc
from typing import Any, Callable, Optional, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.data import ArraySplit, ImageShape, SyntheticSplit, identity
from estimator_train.data.augmentation import augment_and_prefetch
from estimator_train.data.batching import (
  BatchSettings,
  OrderSettings,
  PixelSettings,
  make_ordered_chunks,
  without_autograph,
)
from estimator_train.data.source import InputFn, Source
from estimator_train.errors import UserError
from estimator_train.system import storage

# Takes indices, int64 [B]; returns the examples at these indices, [B, ...], and their class
# indices, [B].
ReadExamples = Callable[[np.ndarray], Tuple[np.ndarray, np.ndarray]]


class InMemorySource(Source):
  """A source of examples that are in NumPy arrays."""
  can_augment = True
  is_in_memory = True

  @abc.abstractmethod
  def load_arrays(self) -> Tuple[np.ndarray, np.ndarray]:
    """Returns the images, [N, ...], and the class indices, integer [N]."""

  def check_and_count_examples(self) -> Optional[int]:
    return len(self.read_class_indices())

  def make_train_input_fn(self, order: OrderSettings, pixels: PixelSettings, batch: BatchSettings,
                          cache: str) -> InputFn:
    return make_train_input_fn(self, *self.load_arrays(), order, pixels, batch)

  def make_eval_input_fn(self, pixels: PixelSettings, batch: BatchSettings) -> InputFn:
    examples, class_indices = self.load_arrays()
    return lambda: batch.prefetch_batches(_gather_from_arrays(
        make_ordered_chunks(len(examples), batch.size), examples, class_indices, batch))

  def read_class_indices(self) -> np.ndarray:
    return self.load_arrays()[1]

  def describe_content(self) -> str:
    return identity.digest_arrays(*self.load_arrays())


class ArraySource(InMemorySource):
  split: ArraySplit
  format_name = 'arrays'
  class_indices_are_known = True

  def load_arrays(self) -> Tuple[np.ndarray, np.ndarray]:
    return self.split.images, np.asarray(self.split.classes)

  def files_fingerprint(self) -> str:
    return storage.fingerprint_arrays(self.split)


def make_train_input_fn(source: Source, examples: np.ndarray, class_indices: np.ndarray,
                        order: OrderSettings, pixels: PixelSettings,
                        batch: BatchSettings) -> InputFn:
  """Makes the `input_fn` of training. Its dataset is shuffled and infinite, with full batches.

  A Python function copies the examples of each batch from the arrays. With `from_tensor_slices`,
  the graph and the meta graph of each checkpoint would contain the arrays.

  Args:
    examples: [N, ...], any numeric dtype.
    class_indices: integer [N].

  Returns:
    A function that returns a dataset of (examples, labels). The examples are [B, ...] with the
    dtype of `examples`; the labels are float32 [B, num_classes] or int64 [B].
  """
  return lambda: augment_and_prefetch(_gather_from_arrays(
      order.make_index_chunks(len(examples), batch.size, source.is_sequential), examples,
      class_indices, batch), order, pixels, batch)


def _gather_from_arrays(chunks: tf.data.Dataset, examples: np.ndarray, class_indices: np.ndarray,
                        batch: BatchSettings) -> tf.data.Dataset:
  return gather_batches(chunks, lambda indices: (examples[indices], class_indices[indices]),
                        examples.dtype, examples.shape[1:], batch)


def gather_batches(chunks: tf.data.Dataset, read_examples: ReadExamples, dtype: Any,
                   example_shape: Sequence[Optional[int]], batch: BatchSettings) -> tf.data.Dataset:
  """Returns a dataset of batches (examples, labels), which a Python function reads.

  Args:
    chunks: the indices of the examples of each batch, int64 [B].
    example_shape: None for an unknown dimension.
  """
  def read_as_int64(indices: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    examples, class_indices = read_examples(indices)
    return examples, class_indices.astype(np.int64)

  @without_autograph
  def make_batch(indices: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
    examples, class_indices = tf.numpy_function(read_as_int64, [indices], [dtype, tf.int64])
    examples.set_shape([None, *example_shape])
    class_indices.set_shape([None])
    return examples, batch.encode_labels(class_indices)

  return chunks.map(make_batch)


class SyntheticSource(Source):
  split: SyntheticSplit
  format_name = 'synthetic'
  can_cache_in_folder = True  # --cache=FOLDER is accepted, but nothing is written.
  last_stage = None

  def check_and_count_examples(self) -> Optional[int]:
    return None

  def make_train_input_fn(self, order: OrderSettings, pixels: PixelSettings, batch: BatchSettings,
                          cache: str) -> InputFn:
    return self.make_eval_input_fn(pixels, batch)

  def make_eval_input_fn(self, pixels: PixelSettings, batch: BatchSettings) -> InputFn:
    return make_synthetic_input_fn(pixels.image_shape, self.split.seed, batch,
                                   self.split.num_batches)

  def describe_content(self) -> str:
    return '{}'.format(self.split.num_batches)

  def read_class_indices(self) -> np.ndarray:
    raise UserError('balanced classes and --cache_features require a finite data set',
                    '--dataset={} is infinite'.format(self.spec.name),
                    'omit --class_weights, --class_sampling and --cache_features')


def make_synthetic_input_fn(image_shape: ImageShape, seed: int, batch: BatchSettings,
                            num_batches: Optional[int] = None) -> InputFn:
  """Makes an `input_fn` that repeats one random batch.

  Args:
    num_batches: the number of batches; None: the batch is repeated infinitely.

  Returns:
    A function that returns a dataset of (images, labels). The images are uint8 [B, height, width,
    channels]; the labels are float32 [B, num_classes] or int64 [B].
  """
  def input_fn() -> tf.data.Dataset:
    images = tf.cast(tf.random.stateless_uniform(
        (batch.size,) + image_shape, [seed, 0], 0, 256, tf.int32), tf.uint8)
    class_indices = tf.random.stateless_uniform(
        [batch.size], [seed, 1], 0, batch.num_classes, tf.int64)
    return tf.data.Dataset.from_tensors(
        (images, batch.encode_labels(class_indices))).repeat(num_batches)

  return input_fn
