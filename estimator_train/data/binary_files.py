"""Reads files of uncompressed pixels, such as those of CIFAR-10, and gzipped idx files.

Both are read into memory, idx files on request as a stream. The examples are not constants in the
graphs of the `input_fn`s.

The datasets contain (images, labels). The images are uint8 [B, height, width, channels]; the labels
are float32 [B, num_classes] or int64 [B].
"""

from concurrent import futures
from typing import Dict, List, Optional, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.data import IdxSplit, arrays, idx
from estimator_train.data.arrays import ArraySource
from estimator_train.data.augmentation import augment_and_prefetch
from estimator_train.data.batching import Batching
from estimator_train.data.source import FilePath, InputFn
from estimator_train.errors import UserError
from estimator_train.system import storage

# --cache=auto caches the training images in memory up to this size.
_MAX_AUTO_CACHED_BYTES = 256 << 20


class BinarySource(ArraySource):
  """The source of a BinarySplit, whose files are read when the examples are first needed."""
  format_name = 'binary_files'
  class_indices_are_known = False
  _arrays: Optional[Tuple[np.ndarray, np.ndarray]] = None

  def arrays(self) -> Tuple[np.ndarray, np.ndarray]:
    if self._arrays is None:
      self._arrays = self.split.read(self.split.files)
    return self._arrays

  def check_and_count(self) -> Optional[int]:
    images, class_indices = self.arrays()
    shape, num_classes = self.dataset.image_shape, len(self.dataset.labels)
    last_class = class_indices.max(initial=0)
    if not len(images) or images.shape != (len(class_indices), *(shape or ())) or (
        last_class >= num_classes):
      raise UserError('the examples of a file do not fit the data set',
                      '{}: images of shape {}, classes up to {}'.format(
                          ', '.join(self.split.files), images.shape, last_class),
                      'give the files of --dataset={}, with images of shape {} and {} '
                      'classes'.format(self.dataset.name, shape, num_classes))
    return len(images)

  def cache_key(self) -> str:
    return storage.fingerprint_files(self.files())

  def digest_of_examples(self) -> str:
    # Published files need no digest: each worker has already compared them with their checksums.
    return '' if self.dataset.files else storage.fingerprint_arrays([self.class_indices()])

  def files(self) -> List[FilePath]:
    return list(self.split.files)


class IdxSource(BinarySource):
  """The source of an IdxSplit: gzipped idx files, streamed or read into memory.

  Without a cache, each worker decompresses the complete files, because gzip does not support random
  access. The worker decodes only the examples of its shard.
  """
  format_name = 'idx_files'
  last_stage = 'decode'  # For --mode=input_benchmark.
  is_in_memory = False
  is_sequential = True

  def arrays(self) -> Tuple[np.ndarray, np.ndarray]:
    images = np.frombuffer(idx.read_images(self.split), np.uint8)
    return images.reshape(-1, *self.dataset.require_images('an IdxSplit')), self.class_indices()

  def check_and_count(self) -> Optional[int]:
    # Published files have already been compared with their checksums.
    return idx.check_split(self.split, self.dataset.require_images('an IdxSplit'),
                           len(self.dataset.labels), checksummed=bool(self.dataset.files))

  def make_train_input_fn(self, batching: Batching, cache: str) -> InputFn:
    if cache == 'none' and batching.class_indices is None:
      return lambda: _decode_batches(_shuffle_records(self.split, batching), batching)
    num_examples = idx.count_examples(self.split)
    # A thread reads the files into arrays while the graph is built. The executor is not kept in a
    # variable: when it is garbage-collected, its thread ends as soon as the files are read.
    future = futures.ThreadPoolExecutor(1).submit(self.arrays)

    def read(indices: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
      images, class_indices = future.result()
      return images[indices], class_indices[indices]

    return lambda: arrays.gather_batches(
        self.training_index_chunks(num_examples, batching, batching.examples_per_batch), read,
        np.uint8, batching.image_shape, batching)

  def make_eval_input_fn(self, batching: Batching) -> InputFn:
    return lambda: _decode_batches(_make_record_dataset(self.split, batching),
                                   batching._replace(augment='none'))

  @property
  def default_cache(self) -> str:
    size = idx.count_examples(self.split) * int(np.prod(self.dataset.image_shape))
    return 'memory' if size <= _MAX_AUTO_CACHED_BYTES else 'none'

  def class_indices(self) -> np.ndarray:
    return np.frombuffer(idx.read_labels(self.split), np.uint8)

  def files(self) -> List[FilePath]:
    return [self.split.images, self.split.labels]

  def input_fns_before_last_stage(self, batching: Batching) -> Dict[str, InputFn]:
    batch_size = batching.examples_per_batch

    def read() -> tf.data.Dataset:
      # Read all examples, but yield only the last example of each batch: one element per batch.
      records = _make_record_dataset(self.split, batching).repeat()
      return records.shard(batch_size, batch_size - 1)

    def batch() -> tf.data.Dataset:
      return _shuffle_records(self.split, batching).batch(batch_size)

    return {'read': read, 'batch': batch}

  def explain_failure(self) -> Optional[UserError]:
    try:
      idx.read_images(self.split)
      idx.read_labels(self.split)
    except UserError as error:
      return error
    return None


def _make_record_dataset(split: IdxSplit, batching: Batching) -> tf.data.Dataset:
  """Returns a dataset of (image, class index), as undecoded bytes, in the order of the files."""
  height, width, channels = batching.image_shape
  images = tf.data.FixedLengthRecordDataset(
      split.images, height * width * channels, header_bytes=idx.IMAGE_HEADER_BYTES,
      compression_type='GZIP')
  labels = tf.data.FixedLengthRecordDataset(
      split.labels, 1, header_bytes=idx.LABEL_HEADER_BYTES, compression_type='GZIP')
  return tf.data.Dataset.zip((images, labels))


def _shuffle_records(split: IdxSplit, batching: Batching) -> tf.data.Dataset:
  """Returns the undecoded training examples of this worker, shuffled and repeated infinitely."""
  return batching.shuffle_and_shard(_make_record_dataset(split, batching),
                                    idx.count_examples(split))


def _decode_batches(records: tf.data.Dataset, batching: Batching) -> tf.data.Dataset:
  """Combines records into batches, decodes each batch in one call, and augments the images."""
  # Without this decorator, AutoGraph would take half a second, although it converts nothing.
  @tf.autograph.experimental.do_not_convert
  def decode(image_bytes: tf.Tensor, class_bytes: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
    images = tf.reshape(tf.decode_raw(image_bytes, tf.uint8), (-1,) + batching.image_shape)
    class_indices = tf.cast(tf.reshape(tf.decode_raw(class_bytes, tf.uint8), [-1]), tf.int64)
    return images, batching.encode_labels(class_indices)

  return augment_and_prefetch(records.batch(batching.examples_per_batch).map(decode), batching)
