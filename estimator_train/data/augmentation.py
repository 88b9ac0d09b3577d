"""Augments training images: --augment lists the augmentations in the order of their application.

The random numbers of an example depend only on the seed and on the position of the example in the
infinite sequence of training examples of all workers. They are therefore the same after a run is
resumed, and on any number of workers, replicas and threads.

Images are [height, width, C], uint8 or float32, with pixel values from 0 to 255 and C = 1 or 3.
"""

import math
from typing import Any, Callable, Dict, List, NamedTuple, Tuple

import tensorflow.compat.v1 as tf

from estimator_train.data import images
from estimator_train.data.batching import INFINITY, Batching, without_autograph

_MIN_AREA, _MAX_ASPECT_RATIO, _CROP_ATTEMPTS = .08, 4 / 3, 10
_PADDING = 4  # In pixels, on each side.
_MAX_JITTER = .4
_MAX_ANGLE = math.radians(15)


def augment_and_prefetch(batches: tf.data.Dataset, batching: Batching) -> tf.data.Dataset:
  """Augments and prefetches a dataset of batches of (images, labels), decoded and resized."""
  @without_autograph
  def augment(example: Tuple[tf.Tensor, tf.Tensor],
              position: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
    image, label = example
    return _apply(_names(batching), image, _draw(position, batching), batching), label

  if not _names(batching):
    return batching.prefetch_batches(batches)
  examples = _with_positions(batches.apply(tf.data.experimental.unbatch()), batching)
  return batching.prefetch_images(images.map_and_batch(examples, augment, batching))


def make_augmented_batches(references: tf.data.Dataset, read: images.Read,
                           batching: Batching) -> tf.data.Dataset:
  """Returns a dataset of batches (images, labels) of augmented images, float32.

  Args:
    references: (reference, class index) of each example of this worker, scalars.
    read: the function that returns the content of an image.
    batching: how the images are augmented and combined into batches.
  """
  @without_autograph
  def load(reference: Any, position: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
    content, class_index = reference
    return _decode_and_augment(read(content), _draw(position, batching), batching), class_index

  return batching.prefetch_images(
      images.map_and_batch(_with_positions(references, batching), load, batching).map(
          without_autograph(lambda pixels, class_indices: (
              pixels, batching.encode_labels(class_indices)))))


def _names(batching: Batching) -> List[str]:
  """Returns the names of the augmentations, in their order."""
  names = batching.augment.replace('crop_flip', 'crop,flip')
  return [] if names == 'none' else names.split(',')


def _with_positions(examples: tf.data.Dataset, batching: Batching) -> tf.data.Dataset:
  """Returns a dataset of (example, its position in the sequence of training examples)."""
  positions = tf.data.Dataset.range(INFINITY).map(
      without_autograph(batching.shard.to_global_positions))
  return tf.data.Dataset.zip((examples, positions))


def _draw(position: tf.Tensor, batching: Batching) -> Dict[str, tf.Tensor]:
  """Returns the random numbers of an example, from 0 to 1, by the name of the augmentation."""
  seed = tf.stack([tf.constant(batching.seed, tf.int64), position])
  sizes = [augmentation.num_random for augmentation in AUGMENTATIONS.values()]
  return dict(zip(AUGMENTATIONS, tf.split(tf.random.stateless_uniform([sum(sizes)], seed), sizes)))


def _decode_and_augment(content: tf.Tensor, numbers: Dict[str, tf.Tensor],
                        batching: Batching) -> tf.Tensor:
  """Decodes, augments and resizes an image, float32 `image_shape`.

  `crop` cuts its part out of the image of the file, whose resolution it uses. What is listed before
  `crop` is therefore applied to the whole image of the file, all else to the resized image.

  Args:
    content: the content of the image, a scalar string.
    numbers: the random numbers of the example.
    batching: the image shape and `augment`.
  """
  height, width, channels = batching.image_shape
  names = _names(batching)
  if 'crop' not in names:
    return _apply(names, images.decode_and_resize(content, batching.image_shape), numbers, batching)
  if names[0] == 'crop':
    del names[0]
    image = images.resize(_decode_crop(content, numbers['crop']), height, width)
  else:
    image = images.decode(content, 3)
  image = _apply(names, image, numbers, batching)
  return tf.image.rgb_to_grayscale(image) if channels == 1 else image


def _apply(names: List[str], image: tf.Tensor, numbers: Dict[str, tf.Tensor],
           batching: Batching) -> tf.Tensor:
  for name in names:
    image = AUGMENTATIONS[name].apply(image, numbers[name])
    if name == 'crop':
      image = images.resize(image, *batching.image_shape[:2])
  image.set_shape(batching.image_shape[:2] + (None,))
  return image


def _flip(image: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
  return tf.cond(numbers[0] < .5, lambda: tf.image.flip_left_right(image), lambda: image)


def _crop(image: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
  top, left, height, width = choose_crop(tf.shape(image), numbers)
  return image[top:top + height, left:left + width]


def _decode_crop(content: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
  """Decodes a random part of an image, uint8 [any, any, 3]."""
  def crop_jpeg() -> tf.Tensor:
    shape = tf.io.extract_jpeg_shape(content)
    return tf.image.decode_and_crop_jpeg(content, tf.stack(choose_crop(shape, numbers)), channels=3)

  # The other formats cannot be decoded partially.
  return tf.cond(tf.image.is_jpeg(content), crop_jpeg,
                 lambda: _crop(images.decode(content, 3), numbers))


def choose_crop(shape: tf.Tensor, numbers: tf.Tensor) -> Tuple[tf.Tensor, ...]:
  """Chooses a part of an image: 8 % to 100 % of its area, with sides from 3:4 to 4:3.

  Args:
    shape: the shape of the image, int32 [3].
    numbers: random numbers from 0 to 1, [22].

  Returns:
    (top, left, height, width), int32. The whole image if no attempt fits into the image.
  """
  height, width = (tf.cast(side, tf.float32) for side in (shape[0], shape[1]))
  areas = height * width * (_MIN_AREA + (1 - _MIN_AREA) * numbers[2:2 + _CROP_ATTEMPTS])
  ratios = tf.exp(math.log(_MAX_ASPECT_RATIO) * (2 * numbers[2 + _CROP_ATTEMPTS:] - 1))
  heights, widths = tf.round(tf.sqrt(areas / ratios)), tf.round(tf.sqrt(areas * ratios))
  fits = (heights >= 1) & (widths >= 1) & (heights <= height) & (widths <= width)
  attempt = tf.argmax(tf.cast(fits, tf.int32))  # The first attempt that fits.
  crop_height = tf.where(fits[attempt], heights[attempt], height)
  crop_width = tf.where(fits[attempt], widths[attempt], width)
  top = tf.floor(numbers[0] * (height - crop_height + 1))
  left = tf.floor(numbers[1] * (width - crop_width + 1))
  return tuple(tf.cast(number, tf.int32) for number in (top, left, crop_height, crop_width))


def _pad_crop(image: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
  """Pads an image with black pixels, and crops it to its size again."""
  height, width = _size(image)
  top, left = tf.unstack(tf.cast(numbers * (2 * _PADDING + 1), tf.int32))
  return _pad(image, _PADDING, _PADDING)[top:top + height, left:left + width]


def _change_color(image: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
  """Scales brightness, contrast and saturation by a random factor each, from 0.6 to 1.4."""
  brightness, contrast, saturation = tf.unstack(1 + _MAX_JITTER * (2 * numbers - 1))
  image = brightness * tf.cast(image, tf.float32)
  image = contrast * image + (1 - contrast) * tf.reduce_mean(image)
  image = saturation * image + (1 - saturation) * tf.reduce_mean(image, -1, keepdims=True)
  return tf.clip_by_value(image, 0., 255.)


def _rotate(image: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
  """Rotates an image by -15 to 15 degrees about its center, with bilinear interpolation.

  What lies outside of the image is black.
  """
  height, width = _size(image)
  angle = _MAX_ANGLE * (2 * numbers[0] - 1)
  center_y, center_x = (tf.cast(side - 1, tf.float32) / 2 for side in (height, width))
  y = tf.cast(tf.range(height), tf.float32)[:, tf.newaxis] - center_y
  x = tf.cast(tf.range(width), tf.float32)[tf.newaxis] - center_x
  # The coordinates in an image that is padded with one pixel before the image, and two after it.
  y, x = (tf.clip_by_value(1 + center + place, 0., 1 + 2 * (center + .5)) for center, place in (
      (center_y, tf.cos(angle) * y + tf.sin(angle) * x),
      (center_x, tf.cos(angle) * x - tf.sin(angle) * y)))
  top, left = tf.floor(y), tf.floor(x)
  pixels = tf.reshape(_pad(tf.cast(image, tf.float32), 1, 2), [-1, tf.shape(image)[2]])
  indices = tf.cast(top, tf.int32) * (width + 3) + tf.cast(left, tf.int32)

  def interpolate(first: tf.Tensor, second: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
    return first + weight[..., tf.newaxis] * (second - first)

  upper, lower = (interpolate(tf.gather(pixels, row), tf.gather(pixels, row + 1), x - left)
                  for row in (indices, indices + width + 3))
  return interpolate(upper, lower, y - top)


def _cut_out(image: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
  """Replaces a square by the mean color of the image.

  Its side is half of the shorter side of the image. Its center is any pixel of the image, so that
  a part of the square may lie outside.
  """
  image = tf.cast(image, tf.float32)
  height, width = _size(image)
  side = tf.minimum(height, width) // 2
  centers = tf.unstack(tf.cast(numbers * tf.cast([height, width], tf.float32), tf.int32))
  (top, bottom), (left, right) = (
      (tf.maximum(center - side // 2, 0), tf.minimum(center - side // 2 + side, size))
      for center, size in zip(centers, (height, width)))
  filled = tf.zeros([bottom - top, right - left, 1]) + tf.reduce_mean(image, [0, 1])
  rows = tf.concat([image[top:bottom, :left], filled, image[top:bottom, right:]], 1)
  return tf.concat([image[:top], rows, image[bottom:]], 0)


def _pad(image: tf.Tensor, before: int, after: int) -> tf.Tensor:
  """Adds black rows and columns before and after an image. tf.pad takes several times as long."""
  height, width, channels = tf.unstack(tf.shape(image))
  rows = [tf.zeros([count, width, channels], image.dtype) for count in (before, after)]
  columns = [tf.zeros([height + before + after, count, channels], image.dtype)
             for count in (before, after)]
  image = tf.concat([rows[0], image, rows[1]], 0)
  return tf.concat([columns[0], image, columns[1]], 1)


def _size(image: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
  shape = tf.shape(image)
  return shape[0], shape[1]


class Augmentation(NamedTuple):
  """An augmentation.

  Attributes:
    apply: takes an image and random numbers from 0 to 1, [num_random].
    num_random: the number of random numbers of an example.
  """
  apply: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
  num_random: int


# By the name in --augment. A new one must be the last: the others then keep their random numbers.
AUGMENTATIONS = {
    'flip': Augmentation(_flip, 1),
    'crop': Augmentation(_crop, 2 + 2 * _CROP_ATTEMPTS),
    'pad_crop': Augmentation(_pad_crop, 2),
    'color': Augmentation(_change_color, 3),
    'rotate': Augmentation(_rotate, 1),
    'cutout': Augmentation(_cut_out, 2),
}
