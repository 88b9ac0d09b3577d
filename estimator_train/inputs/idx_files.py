"""`input_fn`s that stream gzipped idx files; no array enters the graph.

They return datasets of (uint8 [B, height, width, channels], labels), the labels float32 [B,
num_classes] or int64 [B].
"""

from typing import Callable, Tuple

import tensorflow.compat.v1 as tf

from estimator_train.datasets import idx
from estimator_train.datasets.description import IdxSplit
from estimator_train.inputs.batching import Batching

InputFn = Callable[[], tf.data.Dataset]


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
