"""`input_fn`s that stream gzipped idx files; no array enters the graph."""

from typing import Callable, Tuple

import tensorflow.compat.v1 as tf

from estimator_train.datasets import idx
from estimator_train.datasets.description import IdxSplit

InputFn = Callable[[], tf.data.Dataset]


def make_train_input_fn(split: IdxSplit,
                        image_shape: Tuple[int, int, int],
                        num_classes: int,
                        one_hot: bool,
                        batch_size: int,
                        shuffle_buffer: int,
                        prefetch: int,
                        seed: int,
                        skip_examples: int) -> InputFn:
  """Makes the `input_fn` of training: shuffled, without end, every batch full.

  Args:
    split: the files; idx.check_split has found them right.
    image_shape: (height, width, channels).
    num_classes: the length of a one-hot label.
    one_hot: whether labels are one-hot, not class numbers.
    batch_size: per replica.
    shuffle_buffer: examples to shuffle among.
    prefetch: batches prepared ahead.
    seed: of the order of the examples.
    skip_examples: the examples that earlier runs took, which are passed over so that a resumed
      run goes on where they stopped.

  Returns:
    A function that returns a dataset of (float32 [B, height, width, channels] in [0, 1], float32
    [B, num_classes] or int64 [B]).
  """
  def input_fn() -> tf.data.Dataset:
    examples = _examples(split, image_shape).apply(
        tf.data.experimental.shuffle_and_repeat(shuffle_buffer, count=None, seed=seed))
    return _batches(examples.skip(skip_examples), image_shape, num_classes, one_hot, batch_size,
                    prefetch)

  return input_fn


def make_eval_input_fn(split: IdxSplit,
                       image_shape: Tuple[int, int, int],
                       num_classes: int,
                       one_hot: bool,
                       batch_size: int,
                       prefetch: int) -> InputFn:
  """Makes the `input_fn` of evaluation: every example once, in the order of the files."""
  def input_fn() -> tf.data.Dataset:
    return _batches(_examples(split, image_shape), image_shape, num_classes, one_hot, batch_size,
                    prefetch)

  return input_fn


def _examples(split: IdxSplit, image_shape: Tuple[int, int, int]) -> tf.data.Dataset:
  """Returns a dataset of (image bytes, label byte), both scalar strings."""
  height, width, channels = image_shape
  images = tf.data.FixedLengthRecordDataset(
      split.images, height * width * channels, header_bytes=idx.IMAGE_HEADER_BYTES,
      compression_type='GZIP')
  labels = tf.data.FixedLengthRecordDataset(
      split.labels, 1, header_bytes=idx.LABEL_HEADER_BYTES, compression_type='GZIP')
  return tf.data.Dataset.zip((images, labels))


def _batches(examples: tf.data.Dataset,
             image_shape: Tuple[int, int, int],
             num_classes: int,
             one_hot: bool,
             batch_size: int,
             prefetch: int) -> tf.data.Dataset:
  """Batches the records first and decodes a batch at a time, which costs one call, not B."""
  # AutoGraph would take half a second to find that there is nothing to convert.
  @tf.autograph.experimental.do_not_convert
  def decode(images: tf.Tensor, labels: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
    pixels = tf.reshape(tf.decode_raw(images, tf.uint8), (-1,) + image_shape)
    classes = tf.cast(tf.reshape(tf.decode_raw(labels, tf.uint8), [-1]), tf.int64)
    return (tf.cast(pixels, tf.float32) / 255.,
            tf.one_hot(classes, num_classes) if one_hot else classes)

  return examples.batch(batch_size).map(decode).prefetch(prefetch)
