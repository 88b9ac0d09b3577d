"""Makes `input_fn`s of binary image files, such as the files of CIFAR-10, and of gzipped idx files.

Binary image files are read into memory. Idx files are either read into memory or streamed. The
graph does not contain the examples.

The datasets contain (images, labels). Images are uint8 [B, height, width, channels]. Labels are
float32 [B, num_classes] or int64 [B].
"""

from concurrent import futures
from typing import Dict, List, Optional, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.data import BinarySplit, IdxSplit, ImageShape, idx
from estimator_train.data.arrays import InMemorySource, ReadExamples, gather_batches
from estimator_train.data.augmentation import augment_and_prefetch
from estimator_train.data.batching import (
  BatchSettings,
  OrderSettings,
  PixelSettings,
  make_ordered_chunks,
  without_autograph,
)
from estimator_train.data.source import FilePath, InputFn
from estimator_train.errors import UserError
from estimator_train.system import storage


class BinarySource(InMemorySource):
  """A source whose files are read when the examples are first needed."""
  split: BinarySplit
  format_name = 'binary_files'
  _arrays: Optional[Tuple[np.ndarray, np.ndarray]] = None

  def load_arrays(self) -> Tuple[np.ndarray, np.ndarray]:
    if self._arrays is None:
      self._arrays = self.split.read_files(self.split.files)
    return self._arrays

  def check_and_count_examples(self) -> Optional[int]:
    images, class_indices = self.load_arrays()
    shape, num_classes = self.spec.image_shape, len(self.spec.labels)
    max_class_index = class_indices.max(initial=0)
    if not len(images) or images.shape != (len(class_indices), *(shape or ())) or (
        max_class_index >= num_classes):
      raise UserError('the examples of a file do not fit the data set',
                      '{}: images of shape {}, classes up to {}'.format(
                          ', '.join(self.split.files), images.shape, max_class_index),
                      'give the files of --dataset={}, with images of shape {} and {} '
                      'classes'.format(self.spec.name, shape, num_classes))
    return len(images)

  def digest_for_workers(self) -> str:
    return _digest_unless_verified(self, self.split.are_verified)

  def list_files(self) -> List[FilePath]:
    return list(self.split.files)


class IdxSource(InMemorySource):
  """The source of an IdxSplit.

  Without a cache, each worker decompresses the complete files, because gzip does not support random
  access, but decodes only the examples of its shard.
  """
  split: IdxSplit
  format_name = 'idx_files'
  last_stage = 'decode'
  is_in_memory = False
  is_sequential = True

  def load_arrays(self) -> Tuple[np.ndarray, np.ndarray]:
    images = np.frombuffer(idx.read_images(self.split), np.uint8)
    return images.reshape(-1, *self.spec.require_images('an IdxSplit')), self.read_class_indices()

  def check_and_count_examples(self) -> Optional[int]:
    return idx.check_split(self.split, self.spec.require_images('an IdxSplit'),
                           len(self.spec.labels))

  def make_train_input_fn(self, order: OrderSettings, pixels: PixelSettings, batch: BatchSettings,
                          cache: str) -> InputFn:
    if cache == 'none' and order.class_indices is None:
      return lambda: augment_and_prefetch(self._decode_batches(
          self._make_shuffled_dataset(order, pixels).batch(batch.size), pixels, batch),
                                          order, pixels, batch)
    num_examples, read_examples = idx.count_examples(self.split), self._start_reading()
    return lambda: augment_and_prefetch(gather_batches(
        order.make_index_chunks(num_examples, batch.size, self.is_sequential), read_examples,
        np.uint8, pixels.image_shape, batch), order, pixels, batch)

  def make_eval_input_fn(self, pixels: PixelSettings, batch: BatchSettings) -> InputFn:
    if self.default_cache == 'none':
      return lambda: batch.prefetch_batches(self._decode_batches(
          self._make_undecoded_dataset(pixels.image_shape).batch(batch.size), pixels, batch))
    # Each evaluation of a run reads the examples, and decompressing them would slow down the model.
    num_examples, read_examples = idx.count_examples(self.split), self._start_reading()
    return lambda: batch.prefetch_batches(gather_batches(
        make_ordered_chunks(num_examples, batch.size), read_examples, np.uint8, pixels.image_shape,
        batch))

  def _start_reading(self) -> ReadExamples:
    """Starts reading the files into arrays in a thread, while the graph is built.

    Returns:
      A function that waits for the arrays, and returns the examples at some indices.
    """
    # No variable refers to the executor, because the thread of a garbage-collected executor ends
    # after its last task.
    future = futures.ThreadPoolExecutor(1).submit(self.load_arrays)

    def read_examples(indices: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
      images, class_indices = future.result()
      return images[indices], class_indices[indices]

    return read_examples

  @property
  def default_cache(self) -> str:
    return self.cache_if_small(idx.count_examples(self.split))

  def read_class_indices(self) -> np.ndarray:
    return np.frombuffer(idx.read_labels(self.split), np.uint8)

  def digest_for_workers(self) -> str:
    return _digest_unless_verified(self, self.split.are_verified)

  def list_files(self) -> List[FilePath]:
    return [self.split.images, self.split.labels]

  def make_stage_input_fns(self, order: OrderSettings, pixels: PixelSettings,
                           batch: BatchSettings) -> Dict[str, InputFn]:
    # The stage `read` reads all examples, but yields only the last one of each batch, because one
    # element must stand for `batch.size` examples.
    return {'read': lambda: self._make_undecoded_dataset(pixels.image_shape).repeat().shard(
                batch.size, batch.size - 1),
            'batch': lambda: self._make_shuffled_dataset(order, pixels).batch(batch.size)}

  def find_example_error(self) -> Optional[UserError]:
    try:
      idx.read_images(self.split)
      idx.read_labels(self.split)
    except UserError as error:
      return error
    return None

  def _make_undecoded_dataset(self, image_shape: ImageShape) -> tf.data.Dataset:
    """Returns a dataset of (image, class index), as undecoded bytes, in the order of the files."""
    images, class_indices = (
        tf.data.FixedLengthRecordDataset(path, record_bytes, header_bytes=header_bytes,
                                         compression_type='GZIP')
        for path, record_bytes, header_bytes in (
            (self.split.images, int(np.prod(image_shape)), idx.IMAGE_HEADER_BYTES),
            (self.split.labels, 1, idx.LABEL_HEADER_BYTES)))
    return tf.data.Dataset.zip((images, class_indices))

  def _make_shuffled_dataset(self, order: OrderSettings, pixels: PixelSettings) -> tf.data.Dataset:
    """Returns an infinite dataset of the undecoded training examples of this worker."""
    return order.shuffle_and_shard(self._make_undecoded_dataset(pixels.image_shape),
                                   idx.count_examples(self.split))

  @staticmethod
  def _decode_batches(batches: tf.data.Dataset, pixels: PixelSettings,
                      batch: BatchSettings) -> tf.data.Dataset:
    @without_autograph
    def decode(image_bytes: tf.Tensor, class_bytes: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
      images = tf.reshape(tf.decode_raw(image_bytes, tf.uint8), (-1,) + pixels.image_shape)
      class_indices = tf.cast(tf.reshape(tf.decode_raw(class_bytes, tf.uint8), [-1]), tf.int64)
      return images, batch.encode_labels(class_indices)

    return batches.map(decode)


def _digest_unless_verified(source: InMemorySource, are_verified: bool) -> str:
  """Returns a digest of the class indices, or '' if each worker has compared checksums itself."""
  return '' if are_verified else storage.fingerprint_arrays([source.read_class_indices()])
