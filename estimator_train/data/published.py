"""Makes the input pipeline of 2018, which `--input_pipeline=published` selects.

Its stages are: list the files, read several TFRecord files alternately, shuffle_and_repeat,
map_and_batch, prefetch. Images are decoded to three channels, converted to float32, and resized.

A resumed run does not continue with the next example, but starts another epoch. With several
workers, a worker reads every N-th image file or TFRecord file, so that workers may read different
numbers of examples.
"""

from typing import Callable, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.data import ImageRecordSplit, ImageSplit, images
from estimator_train.data.batching import Batching
from estimator_train.errors import UserError

_MAX_READERS = 16  # The number of TFRecord files that are read alternately.
# A function from an element of a dataset to the content of an image and its class index.
Parse = Callable[..., Tuple[tf.Tensor, tf.Tensor]]


def make_file_batches(split: ImageSplit, batching: Batching) -> tf.data.Dataset:
  """Returns a dataset of batches (images, labels) of image files."""
  files = _list_files(split.files, batching, split.classes.astype(np.int64))
  return _shuffle_and_batch(files, lambda path, class_index: (tf.read_file(path), class_index),
                            batching)


def make_record_batches(split: ImageRecordSplit, batching: Batching) -> tf.data.Dataset:
  """Returns a dataset of batches (images, labels) of TFRecord files."""
  # Without this decorator, AutoGraph would take time, although it converts nothing.
  @tf.autograph.experimental.do_not_convert
  def read_file(path: tf.Tensor) -> tf.data.Dataset:
    return tf.data.TFRecordDataset(path)

  def parse(record: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
    features = tf.io.parse_single_example(record, {
        split.image_key: tf.io.FixedLenFeature([], tf.string),
        split.label_key: tf.io.FixedLenFeature([], tf.int64)})
    return features[split.image_key], features[split.label_key] + split.label_offset

  files = split.records.files
  records = _list_files(files, batching).apply(tf.data.experimental.parallel_interleave(
      read_file, min(_MAX_READERS, len(files))))
  return _shuffle_and_batch(records, parse, batching)


def _list_files(files: Sequence[bytes], batching: Batching,
                *components: np.ndarray) -> tf.data.Dataset:
  """Returns a dataset of the worker's paths, shuffled, and of further components of each file.

  Raises:
    UserError: there are fewer files than workers.
  """
  shard = batching.shard
  if len(files) < shard.num_workers:
    raise UserError('--input_pipeline=published requires a file per worker',
                    '{} file(s) for {} workers'.format(len(files), shard.num_workers),
                    'write more files, or give --input_pipeline=exact')
  slices = (np.array(files, object),) + components
  paths = tf.data.Dataset.from_tensor_slices(slices if components else slices[0])
  return paths.shard(shard.num_workers, shard.rank).shuffle(len(files), seed=_seed(batching))


def _shuffle_and_batch(elements: tf.data.Dataset, parse: Parse,
                       batching: Batching) -> tf.data.Dataset:
  """Returns a dataset of batches (images, labels) that `parse` reads from the elements."""
  height, width, channels = batching.image_shape

  @tf.autograph.experimental.do_not_convert
  def load(*element: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
    content, class_index = parse(*element)
    image = tf.image.convert_image_dtype(images.decode(content, channels=3), tf.float32)
    image = tf.image.resize_images(image, (height, width)) * 255.
    if channels == 1:
      image = tf.image.rgb_to_grayscale(image)
    return image, batching.check_and_encode_labels(class_index)

  return batching.prefetch_batches(
      elements
      .apply(tf.data.experimental.shuffle_and_repeat(batching.shuffle_buffer,
                                                     seed=_seed(batching)))
      .apply(tf.data.experimental.map_and_batch(
          load, batching.examples_per_batch, num_parallel_calls=batching.num_parallel_calls)))


def _seed(batching: Batching) -> int:
  """Returns the seed of the shuffling; a resumed run does not repeat the order of the first."""
  return (batching.seed + batching.shard.first_example) % 2 ** 31
