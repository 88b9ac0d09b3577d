"""`input_fn`s that stream gzipped idx files; no array enters the graph.

They return datasets of (uint8 [B, height, width, channels], labels), the labels float32 [B,
num_classes] or int64 [B].
"""

from typing import Dict, List, Optional, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.datasets import fingerprint, idx
from estimator_train.datasets.description import IdxSplit
from estimator_train.errors import UserError
from estimator_train.inputs import arrays
from estimator_train.inputs.batching import Batching
from estimator_train.inputs.source import InputFn, Path, Source

# Decompressed: up to here memory holds them unless the user says otherwise.
_SMALL_BYTES = 256 << 20


class IdxSource(Source):
  """A pair of gzipped idx files: streamed, or held in memory.

  A worker that streams decompresses all of them, as gzip cannot be entered in the middle, and
  decodes its own examples only.
  """
  kind = 'idx_files'
  last_stage = 'decode'

  def check(self) -> Optional[int]:
    # Published files have been compared with their checksums when they were downloaded.
    return idx.check_split(self.split, self.dataset.image_shape, len(self.dataset.labels),
                           checksummed=bool(self.dataset.files))

  def make_train_input_fn(self, batching: Batching, cache: str) -> InputFn:
    make = make_train_input_fn if cache == 'none' else arrays.make_idx_train_input_fn
    return make(self.split, batching)

  def make_eval_input_fn(self, batching: Batching) -> InputFn:
    return make_eval_input_fn(self.split, batching)

  @property
  def default_cache(self) -> str:
    size = idx.count(self.split) * int(np.prod(self.dataset.image_shape))
    return 'memory' if size <= _SMALL_BYTES else 'none'

  def classes(self) -> np.ndarray:
    return arrays.read_idx_labels(self.split)

  def cache_key(self) -> str:
    return fingerprint.of_files(self.files())

  def order(self, batching: Batching) -> Optional[np.ndarray]:
    return None

  def files(self) -> List[Path]:
    return [self.split.images, self.split.labels]

  def make_stages(self, batching: Batching) -> Dict[str, InputFn]:
    size = batching.batch_size

    def read() -> tf.data.Dataset:
      # The last of every so many: the others are read, and go nowhere.
      return examples(self.split, batching).repeat().shard(size, size - 1)

    def batch() -> tf.data.Dataset:
      return batching.shuffled(examples(self.split, batching), idx.count(self.split)).batch(size)

    return {'read': read, 'batch': batch}

  def explain_failure(self) -> Optional[UserError]:
    try:
      idx.read_images(self.split)
      idx.read_labels(self.split)
    except UserError as error:
      return error
    return None


def make_train_input_fn(split: IdxSplit, batching: Batching) -> InputFn:
  """Makes the `input_fn` of training: shuffled, without end, every batch full.

  Args:
    split: the files; idx.check_split has found them right.
    batching: how they become batches.
  """
  def input_fn() -> tf.data.Dataset:
    return _batches(batching.shuffled(examples(split, batching), idx.count(split)), batching)

  return input_fn


def make_eval_input_fn(split: IdxSplit, batching: Batching) -> InputFn:
  """Makes the `input_fn` of evaluation: every example once, in the order of the files."""
  def input_fn() -> tf.data.Dataset:
    return _batches(examples(split, batching), batching)

  return input_fn


def examples(split: IdxSplit, batching: Batching) -> tf.data.Dataset:
  """Returns a dataset of (image bytes, label byte), both scalar strings."""
  height, width, channels = batching.image_shape
  images = tf.data.FixedLengthRecordDataset(
      split.images, height * width * channels, header_bytes=idx.IMAGE_HEADER_BYTES,
      compression_type='GZIP')
  labels = tf.data.FixedLengthRecordDataset(
      split.labels, 1, header_bytes=idx.LABEL_HEADER_BYTES, compression_type='GZIP')
  return tf.data.Dataset.zip((images, labels))


def _batches(examples: tf.data.Dataset, batching: Batching) -> tf.data.Dataset:
  """Batches the records first and decodes a batch at a time, which costs one call, not B."""
  # AutoGraph would take half a second to find that there is nothing to convert.
  @tf.autograph.experimental.do_not_convert
  def decode(images: tf.Tensor, labels: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
    pixels = tf.reshape(tf.decode_raw(images, tf.uint8), (-1,) + batching.image_shape)
    classes = tf.cast(tf.reshape(tf.decode_raw(labels, tf.uint8), [-1]), tf.int64)
    return pixels, batching.labels(classes)

  return batching.prefetched(examples.batch(batching.batch_size).map(decode))
