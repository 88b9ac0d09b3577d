"""Augments training images: --augment lists the augmentations in the order of their application.

The random numbers of an example depend only on the seed and on the position of the example in the
infinite sequence of training examples of all workers. They are therefore the same after a run is
resumed, and on any number of workers, replicas and threads.

Images are [N, height, width, C], uint8 or float32, with pixel values from 0 to 255 and C = 1 or 3.
Small images are augmented in groups: most of the time of an operation on a single small image is
not spent on its pixels.
"""

import math
from typing import Any, Callable, List, NamedTuple, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.data import decoding as image_files, random_numbers
from estimator_train.data.batching import Batching, without_autograph

_MIN_AREA, _MAX_ASPECT_RATIO, _CROP_ATTEMPTS = .08, 4 / 3, 10
_PADDING = 4  # In pixels, on each side.
_MAX_JITTER = .4
_MAX_ANGLE = math.radians(15)
_MAX_GROUP_VALUES = 2 ** 17  # As float32, they fit into the cache of a core.


def augment_and_prefetch(batches: tf.data.Dataset, batching: Batching) -> tf.data.Dataset:
  """Augments and prefetches a dataset of batches of (images, labels), decoded and resized."""
  names, count = _names(batching), batching.examples_per_batch
  if not names:
    return batching.prefetch_batches(batches)
  num_groups = -(-count // _max_group_size(batching))
  size = -(-count // num_groups)

  @without_autograph
  def split(batch: Tuple[tf.Tensor, tf.Tensor], numbers: tf.Tensor) -> Tuple[tf.Tensor, ...]:
    num_added = num_groups * size - count  # Examples that make the groups equal; dropped again.
    return tuple(_reshape(tf.concat([tensor, tensor[:num_added]], 0) if num_added else tensor,
                          [num_groups, size], tensor.shape[1:]) for tensor in (*batch, numbers))

  @without_autograph
  def augment(images: tf.Tensor, labels: tf.Tensor,
              numbers: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
    return _apply(names, images, numbers, batching), labels

  groups = tf.data.Dataset.zip((
      batches, random_numbers.draw_groups(batching, count, _columns(names)))).map(split).apply(
          tf.data.experimental.unbatch())
  batches = image_files.map_and_batch(
      groups, augment, batching._replace(examples_per_batch=num_groups))
  return batching.prefetch_image_batches(batches.map(without_autograph(lambda *groups: tuple(
      _reshape(tensor, [-1], tensor.shape[2:])[:count] for tensor in groups))))


def make_augmented_batches(references: tf.data.Dataset, read: image_files.Read,
                           batching: Batching) -> tf.data.Dataset:
  """Returns a dataset of batches (images, labels) of augmented images, float32.

  Args:
    references: (reference, class index) of each example of this worker, scalars.
    read: the function that returns the content of an image.
    batching: how the images are augmented and combined into batches.
  """
  @without_autograph
  def load(reference: Any, numbers: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
    content, class_index = reference
    return _decode_and_augment(read(content), numbers, batching)[0], class_index

  examples = tf.data.Dataset.zip((
      references, random_numbers.draw_groups(batching, 1, _columns(_names(batching)))))
  return batching.prefetch_image_batches(image_files.map_and_batch(examples, load, batching).map(
      without_autograph(lambda pixels, class_indices: (
          pixels, batching.encode_labels(class_indices)))))


def _reshape(tensor: tf.Tensor, first_sizes: List[int], last_sizes: tf.TensorShape) -> tf.Tensor:
  """Replaces the sizes of the first dimensions of a tensor, and keeps those of the others."""
  kept = tf.shape(tensor)[tensor.shape.ndims - last_sizes.ndims:]
  tensor = tf.reshape(tensor, tf.concat([first_sizes, kept], 0))
  tensor.set_shape([None if size == -1 else size for size in first_sizes] + last_sizes.as_list())
  return tensor


def _names(batching: Batching) -> List[str]:
  """Returns the names of the augmentations, in their order."""
  names = batching.augment.replace('crop_flip', 'crop,flip')
  return [] if names == 'none' else names.split(',')


def _max_group_size(batching: Batching) -> int:
  """Returns the maximum number of images per group."""
  if 'crop' in _names(batching):  # The crops differ in size.
    return 1
  return max(1, _MAX_GROUP_VALUES // max(1, int(np.prod(batching.image_shape))))


def _columns(names: List[str]) -> np.ndarray:
  """Returns the columns of the random numbers of augmentations; see random_numbers.draw."""
  owners = [name for name in AUGMENTATIONS for _ in range(AUGMENTATIONS[name].num_random)]
  return np.concatenate([np.flatnonzero(np.array(owners) == name) for name in names])


def _decode_and_augment(content: tf.Tensor, numbers: tf.Tensor, batching: Batching) -> tf.Tensor:
  """Decodes, augments and resizes an image, float32 [1, height, width, C].

  `crop` cuts its part out of the image of the file, whose resolution it uses. What is listed before
  `crop` is therefore applied to the whole image of the file, all else to the resized image.

  Args:
    content: the content of the image, a scalar string.
    numbers: the random numbers of the example, [1, columns].
    batching: the image shape and `augment`.
  """
  height, width, channels = batching.image_shape
  names = _names(batching)
  if 'crop' not in names:
    image = image_files.decode_and_resize(content, batching.image_shape)
    return _apply(names, image[tf.newaxis], numbers, batching)
  if names[0] == 'crop':
    num_random = AUGMENTATIONS['crop'].num_random
    names, crop, numbers = names[1:], numbers[0, :num_random], numbers[:, num_random:]
    image = image_files.resize(_decode_crop(content, crop), height, width)
  else:
    image = image_files.decode(content, 3)
  image = _apply(names, image[tf.newaxis], numbers, batching)
  return tf.image.rgb_to_grayscale(image) if channels == 1 else image


def _apply(names: List[str], images: tf.Tensor, numbers: tf.Tensor,
           batching: Batching) -> tf.Tensor:
  """Augments images; `numbers` are the random numbers of the augmentations, in their order."""
  height, width, _ = batching.image_shape
  sizes = [AUGMENTATIONS[name].num_random for name in names]
  for name, own_numbers in zip(names, tf.split(numbers, sizes, 1) if names else []):
    images = AUGMENTATIONS[name].apply(images, own_numbers)
    if name == 'crop':
      images = tf.image.resize_bilinear(images, (height, width))
  images.set_shape([None, height, width, None])
  return images


def _flip(images: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
  flipped = tf.where(numbers[:, 0] < .5)[:, 0]
  return tf.dynamic_stitch([tf.range(tf.shape(images)[0]), tf.cast(flipped, tf.int32)],
                           [images, tf.reverse(tf.gather(images, flipped), [2])])


def _crop(images: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
  """Cuts a part out of an image, [1, any, any, C]."""
  top, left, height, width = choose_crop(tf.shape(images)[1:], numbers[0])
  return images[:, top:top + height, left:left + width]


def _decode_crop(content: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
  """Decodes a random part of an image, uint8 [any, any, 3]; `numbers` are [22]."""
  def crop_jpeg() -> tf.Tensor:
    shape = tf.io.extract_jpeg_shape(content)
    return tf.image.decode_and_crop_jpeg(content, tf.stack(choose_crop(shape, numbers)), channels=3)

  # The other formats cannot be decoded partially.
  return tf.cond(tf.image.is_jpeg(content), crop_jpeg, lambda: _crop(
      image_files.decode(content, 3)[tf.newaxis], numbers[tf.newaxis])[0])


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


def _pad_crop(images: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
  """Pads images with black pixels, and crops them to their size again."""
  _, height, width, _ = tf.unstack(tf.shape(images))
  top, left = tf.unstack(tf.cast(numbers * (2 * _PADDING + 1), tf.int32), axis=1)
  padded = _pad(images, _PADDING, _PADDING)
  if images.shape[0] == 1:  # Copying rows takes less time than copying pixels.
    return padded[:, top[0]:top[0] + height, left[0]:left[0] + width]
  return _gather_pixels(padded, top[:, tf.newaxis, tf.newaxis] + tf.range(height)[:, tf.newaxis],
                        left[:, tf.newaxis, tf.newaxis] + tf.range(width))


def _change_color(images: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
  """Scales brightness, contrast and saturation by a random factor each, from 0.6 to 1.4."""
  brightness, contrast, saturation = (
      1 + _MAX_JITTER * (2 * factor[:, tf.newaxis, tf.newaxis] - 1)
      for factor in tf.split(numbers, 3, 1))
  images = brightness * tf.cast(images, tf.float32)
  images = contrast * images + (1 - contrast) * tf.reduce_mean(images, [1, 2, 3], keepdims=True)
  images = saturation * images + (1 - saturation) * tf.reduce_mean(images, -1, keepdims=True)
  return tf.clip_by_value(images, 0., 255.)


def _rotate(images: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
  """Rotates images by -15 to 15 degrees about their center, with bilinear interpolation.

  What lies outside of the image is black.
  """
  _, height, width, _ = tf.unstack(tf.shape(images))
  angle = _MAX_ANGLE * (2 * numbers[:, tf.newaxis] - 1)
  center_y, center_x = (tf.cast(side - 1, tf.float32) / 2 for side in (height, width))
  y = tf.cast(tf.range(height), tf.float32)[:, tf.newaxis] - center_y
  x = tf.cast(tf.range(width), tf.float32)[tf.newaxis] - center_x
  # The coordinates in an image that is padded with one pixel before the image, and two after it.
  y, x = (tf.clip_by_value(1 + center + place, 0., 1 + 2 * (center + .5)) for center, place in (
      (center_y, tf.cos(angle) * y + tf.sin(angle) * x),
      (center_x, tf.cos(angle) * x - tf.sin(angle) * y)))
  padded = _pad(tf.cast(images, tf.float32), 1, 2)
  top, left = (tf.cast(place, tf.int32) for place in (y, x))

  def interpolate(first: tf.Tensor, second: tf.Tensor, place: tf.Tensor) -> tf.Tensor:
    return first + (place - tf.floor(place))[..., tf.newaxis] * (second - first)

  upper, lower = (interpolate(_gather_pixels(padded, row, left),
                              _gather_pixels(padded, row, left + 1), x) for row in (top, top + 1))
  return interpolate(upper, lower, y)


def _cut_out(images: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
  """Replaces a square by the mean color of the image.

  Its side is half of the shorter side of the image. Its center is any pixel of the image, so that
  a part of the square may lie outside.
  """
  images = tf.cast(images, tf.float32)
  shape = tf.shape(images)
  side = tf.minimum(shape[1], shape[2]) // 2

  def is_inside(size: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
    start = tf.cast(number * tf.cast(size, tf.float32), tf.int32)[:, tf.newaxis] - side // 2
    return (tf.range(size) >= start) & (tf.range(size) < start + side)

  is_cut = (is_inside(shape[1], numbers[:, 0])[:, :, tf.newaxis, tf.newaxis]
            & is_inside(shape[2], numbers[:, 1])[:, tf.newaxis, :, tf.newaxis])
  mean = tf.reduce_mean(images, [1, 2], keepdims=True)
  # tf.where_v2, which broadcasts, takes seven times as long.
  return tf.where(tf.broadcast_to(is_cut, shape), tf.broadcast_to(mean, shape), images)


def _pad(images: tf.Tensor, before: int, after: int) -> tf.Tensor:
  """Adds black rows and columns before and after images. tf.pad takes several times as long."""
  for axis in (1, 2):
    shape = tf.shape(images)
    first, last = (tf.zeros(tf.concat([shape[:axis], [count], shape[axis + 1:]], 0), images.dtype)
                   for count in (before, after))
    images = tf.concat([first, images, last], axis)
  return images


def _gather_pixels(images: tf.Tensor, rows: tf.Tensor, columns: tf.Tensor) -> tf.Tensor:
  """Returns the pixels at `rows` and `columns` of each image, integers that broadcast to [N, …]."""
  number, height, width, channels = tf.unstack(tf.shape(images))
  first_rows = tf.reshape(tf.range(number) * height, [-1, 1, 1])
  return tf.gather(tf.reshape(images, [-1, channels]), (first_rows + rows) * width + columns)


class Augmentation(NamedTuple):
  """An augmentation.

  Attributes:
    apply: takes N images and random numbers from 0 to 1, [N, num_random]; `crop` takes one image.
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
