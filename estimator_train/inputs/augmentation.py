"""Augments training images: random crops and horizontal flips, as is usual for ImageNet.

The random numbers of an example depend only on the seed and on the position of the example in the
infinite sequence of training examples of all workers. They are therefore the same after a run is
resumed, and on any number of workers, replicas and threads.
"""

import math
from typing import Any, Tuple

import tensorflow.compat.v1 as tf

from estimator_train.inputs import images
from estimator_train.inputs.batching import INFINITY, Batching

_MIN_AREA, _MAX_ASPECT_RATIO = .08, 4 / 3
_CROP_ATTEMPTS = 10


def make_batches(references: tf.data.Dataset, read: images.Read,
                 batching: Batching) -> tf.data.Dataset:
  """Returns a dataset of batches (images, labels) of augmented images.

  Args:
    references: (reference, class index) of each example of this worker, scalars.
    read: the function that returns the content of an image.
    batching: how the images are augmented and combined into batches.
  """
  # Without this decorator, AutoGraph would take time, although it converts nothing.
  @tf.autograph.experimental.do_not_convert
  def load(reference: Any, position: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
    content, class_index = reference
    return augment(read(content), position, batching), class_index

  @tf.autograph.experimental.do_not_convert
  def encode(pixels: tf.Tensor, class_indices: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
    return pixels, batching.encode_labels(class_indices)

  @tf.autograph.experimental.do_not_convert
  def to_global_position(position: tf.Tensor) -> Any:
    return batching.shard.to_global_positions(position)

  positions = tf.data.Dataset.range(INFINITY).map(to_global_position)
  examples = tf.data.Dataset.zip((references, positions))
  return batching.prefetch_images(examples.apply(tf.data.experimental.map_and_batch(
      load, batching.examples_per_batch,
      num_parallel_calls=batching.num_parallel_calls + batching.num_queued_calls)).map(encode))


def augment(content: tf.Tensor, position: tf.Tensor, batching: Batching) -> tf.Tensor:
  """Decodes, augments and resizes an image.

  Args:
    content: the content of the image, a scalar string.
    position: the position of the example in the sequence of training examples, int64.
    batching: the seed, the image shape and `augment`.

  Returns:
    float32 [height, width, C], with the number of channels of the model and values from 0 to 255.
  """
  height, width, channels = batching.image_shape
  seed = tf.stack([tf.constant(batching.seed, tf.int64), position])
  numbers = tf.random.stateless_uniform([3 + 2 * _CROP_ATTEMPTS], seed)
  if batching.augment == 'crop_flip':
    pixels = images.resize(_decode_crop(content, numbers), height, width)
    if channels == 1:
      pixels = tf.image.rgb_to_grayscale(pixels)
  else:
    pixels = images.decode_and_resize(content, batching.image_shape)
  return tf.cond(numbers[0] < .5, lambda: tf.image.flip_left_right(pixels), lambda: pixels)


def _decode_crop(content: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
  """Decodes a random part of an image, uint8 [any, any, 3]."""
  def crop_jpeg() -> tf.Tensor:
    shape = tf.io.extract_jpeg_shape(content)
    return tf.image.decode_and_crop_jpeg(content, tf.stack(choose_crop(shape, numbers)), channels=3)

  def crop_decoded() -> tf.Tensor:
    image = images.decode(content, 3)
    top, left, height, width = choose_crop(tf.shape(image), numbers)
    return image[top:top + height, left:left + width]

  # The other formats cannot be decoded partially.
  return tf.cond(tf.image.is_jpeg(content), crop_jpeg, crop_decoded)


def choose_crop(shape: tf.Tensor, numbers: tf.Tensor) -> Tuple[tf.Tensor, ...]:
  """Chooses a part of an image: 8 % to 100 % of its area, with sides from 3:4 to 4:3.

  Args:
    shape: the shape of the image, int32 [3].
    numbers: random numbers from 0 to 1; the first one is for other uses.

  Returns:
    (top, left, height, width), int32. The whole image if no attempt fits into the image.
  """
  height, width = (tf.cast(side, tf.float32) for side in (shape[0], shape[1]))
  areas = height * width * (_MIN_AREA + (1 - _MIN_AREA) * numbers[3:3 + _CROP_ATTEMPTS])
  ratios = tf.exp(math.log(_MAX_ASPECT_RATIO) * (2 * numbers[3 + _CROP_ATTEMPTS:] - 1))
  heights, widths = tf.round(tf.sqrt(areas / ratios)), tf.round(tf.sqrt(areas * ratios))
  fits = (heights >= 1) & (widths >= 1) & (heights <= height) & (widths <= width)
  attempt = tf.argmax(tf.cast(fits, tf.int32))  # The first attempt that fits.
  crop_height = tf.where(fits[attempt], heights[attempt], height)
  crop_width = tf.where(fits[attempt], widths[attempt], width)
  top = tf.floor(numbers[1] * (height - crop_height + 1))
  left = tf.floor(numbers[2] * (width - crop_width + 1))
  return tuple(tf.cast(number, tf.int32) for number in (top, left, crop_height, crop_width))
