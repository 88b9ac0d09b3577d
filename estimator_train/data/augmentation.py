"""Augments training images. `--augment` lists the augmentations in the order of their application.

The random numbers of an example depend only on the seed and on the position of the example in the
infinite sequence of training examples of all workers. They are therefore the same after a run is
resumed, and on any number of workers, replicas and threads.

Images are [N, height, width, C], uint8 or float32, with pixel values from 0 to 255 and C = 1 or 3.
Small images are augmented in groups, because an operation on a single small image spends most of
its time on overhead.

`--mixup_alpha` mixes pairs of images and their labels (Zhang et al. 2018, arXiv:1710.09412). A pair
consists of neighbors in the sequence of training examples, so that any number of replicas and
workers makes the same pairs. Mixing requires an even number of examples per replica.
"""

import math
from typing import Any, Callable, List, NamedTuple, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.data import decoding
from estimator_train.data.batching import (
  INFINITY,
  BatchSettings,
  OrderSettings,
  PixelSettings,
  map_python_function,
  without_autograph,
)

_MIN_AREA, _MAX_ASPECT_RATIO, _CROP_ATTEMPTS = .08, 4 / 3, 10
_PADDING = 4  # The number of black pixels that `pad_crop` adds on each side.
_MAX_JITTER = .4
_MAX_ANGLE = math.radians(15)
# A group of this number of float32 values fits into the cache of a core.
_MAX_GROUP_VALUES = 2 ** 17
_EXAMPLES_PER_DRAW = 256
_PAIRS_PER_DRAW = 256
_LOW_BITS = 2 ** 32 - 1


def augment_and_prefetch(batches: tf.data.Dataset, order: OrderSettings, pixels: PixelSettings,
                         batch: BatchSettings) -> tf.data.Dataset:
  """Augments and prefetches batches (images, labels), whose images are decoded and resized."""
  names = _augmentation_names(pixels)
  if not names:
    return batch.prefetch_batches(batches)
  # Images of different sizes cannot form a group, and crops differ in size.
  max_images_per_group = 1 if 'crop' in names else max(
      1, _MAX_GROUP_VALUES // max(1, int(np.prod(pixels.image_shape))))
  num_groups = -(-batch.size // max_images_per_group)
  group_size = -(-batch.size // num_groups)

  @without_autograph
  def split_into_groups(examples: Tuple[tf.Tensor, tf.Tensor],
                        random_numbers: tf.Tensor) -> Tuple[tf.Tensor, ...]:
    # Repeated examples make all groups equally large. They are removed after the augmentation.
    num_added = num_groups * group_size - batch.size
    return tuple(
        _reshape_leading(tf.concat([tensor, tensor[:num_added]], 0) if num_added else tensor,
                         [num_groups, group_size], tensor.shape[1:])
        for tensor in (*examples, random_numbers))

  @without_autograph
  def augment(images: tf.Tensor, labels: tf.Tensor,
              random_numbers: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
    return _apply_augmentations(names, images, random_numbers, pixels), labels

  random_batches = _draw_random_batches(order, batch.size, _random_columns(names))
  groups = tf.data.Dataset.zip((batches, random_batches)).map(split_into_groups).apply(
      tf.data.experimental.unbatch())
  augmented = batch.map_and_batch(groups, augment, num_groups)
  return batch.prefetch_image_batches(augmented.map(without_autograph(lambda *groups: tuple(
      _reshape_leading(tensor, [-1], tensor.shape[2:])[:batch.size] for tensor in groups))))


def decode_augment_and_prefetch(references: tf.data.Dataset, read_content: decoding.ReadContent,
                                order: OrderSettings, pixels: PixelSettings,
                                batch: BatchSettings) -> tf.data.Dataset:
  """Returns a dataset of batches (images, labels), whose images are augmented and float32.

  Args:
    references: a pair of scalars, (reference, class index), for each example of this worker.
  """
  @without_autograph
  def load_and_augment(example: Any, random_numbers: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
    reference, class_index = example
    return _decode_and_augment(read_content(reference), random_numbers, pixels)[0], class_index

  examples = tf.data.Dataset.zip((
      references, _draw_random_batches(order, 1, _random_columns(_augmentation_names(pixels)))))
  return batch.prefetch_image_batches(batch.map_and_batch(examples, load_and_augment).map(
      without_autograph(lambda images, class_indices: (
          images, batch.encode_labels(class_indices)))))


def _reshape_leading(tensor: tf.Tensor, first_sizes: List[int],
                     last_sizes: tf.TensorShape) -> tf.Tensor:
  """Reshapes the leading dimensions to `first_sizes`. The sizes of the last dimensions are kept."""
  dynamic_last_sizes = tf.shape(tensor)[tensor.shape.ndims - last_sizes.ndims:]
  tensor = tf.reshape(tensor, tf.concat([first_sizes, dynamic_last_sizes], 0))
  tensor.set_shape([None if size == -1 else size for size in first_sizes] + last_sizes.as_list())
  return tensor


def _augmentation_names(pixels: PixelSettings) -> List[str]:
  """Returns the names of the augmentations in the order of their application."""
  names = pixels.augment.replace('crop_flip', 'crop,flip')
  return [] if names == 'none' else names.split(',')


def _random_columns(names: List[str]) -> np.ndarray:
  """Returns the indices of the columns of draw_random_numbers that the augmentations use."""
  column_names = [name for name in AUGMENTATIONS for _ in range(AUGMENTATIONS[name].num_random)]
  return np.concatenate([np.flatnonzero(np.array(column_names) == name) for name in names])


def _decode_and_augment(content: tf.Tensor, random_numbers: tf.Tensor,
                        pixels: PixelSettings) -> tf.Tensor:
  """Decodes, augments and resizes an image, float32 [1, height, width, C].

  `crop` and the augmentations that are listed before `crop` change the image at full resolution.
  All others change the resized image.

  Args:
    random_numbers: the random numbers of all listed augmentations, [1, columns].
  """
  height, width, channels = pixels.image_shape
  names = _augmentation_names(pixels)
  if 'crop' not in names:
    image = decoding.decode_and_resize(content, pixels.image_shape)
    return _apply_augmentations(names, image[tf.newaxis], random_numbers, pixels)
  if names[0] == 'crop':
    num_random = AUGMENTATIONS['crop'].num_random
    image = decoding.resize(_decode_crop(content, random_numbers[0, :num_random]), height, width)
    names, random_numbers = names[1:], random_numbers[:, num_random:]
  else:
    image = decoding.decode(content, 3)
  image = _apply_augmentations(names, image[tf.newaxis], random_numbers, pixels)
  return tf.image.rgb_to_grayscale(image) if channels == 1 else image


def _apply_augmentations(names: List[str], images: tf.Tensor, random_numbers: tf.Tensor,
                         pixels: PixelSettings) -> tf.Tensor:
  """Augments images. The columns of the random numbers are in the order of the augmentations."""
  height, width, _ = pixels.image_shape
  sizes = [AUGMENTATIONS[name].num_random for name in names]
  for name, augmentation_numbers in zip(names, tf.split(random_numbers, sizes, 1) if names else []):
    images = AUGMENTATIONS[name].apply(images, augmentation_numbers)
    if name == 'crop':
      images = tf.image.resize_bilinear(images, (height, width))
  images.set_shape([None, height, width, None])
  return images


def _flip(images: tf.Tensor, random_numbers: tf.Tensor) -> tf.Tensor:
  flipped = tf.where(random_numbers[:, 0] < .5)[:, 0]
  return tf.dynamic_stitch([tf.range(tf.shape(images)[0]), tf.cast(flipped, tf.int32)],
                           [images, tf.reverse(tf.gather(images, flipped), [2])])


def _crop(images: tf.Tensor, random_numbers: tf.Tensor) -> tf.Tensor:
  """Cuts a part out of an image, [1, any, any, C]."""
  top, left, height, width = choose_crop(tf.shape(images)[1:], random_numbers[0])
  return images[:, top:top + height, left:left + width]


def _decode_crop(content: tf.Tensor, random_numbers: tf.Tensor) -> tf.Tensor:
  """Decodes a random part of an image to uint8 [any, any, 3]; see choose_crop."""
  def crop_jpeg() -> tf.Tensor:
    shape = tf.io.extract_jpeg_shape(content)
    window = tf.stack(choose_crop(shape, random_numbers))
    return tf.image.decode_and_crop_jpeg(content, window, channels=3)

  # Only a JPEG image can be decoded partially.
  return tf.cond(tf.image.is_jpeg(content), crop_jpeg, lambda: _crop(
      decoding.decode(content, 3)[tf.newaxis], random_numbers[tf.newaxis])[0])


def choose_crop(shape: tf.Tensor, random_numbers: tf.Tensor) -> Tuple[tf.Tensor, ...]:
  """Chooses a part that has 8 % to 100 % of an image's area, and an aspect ratio of 3:4 to 4:3.

  Args:
    shape: the shape of the image, int32 [3].
    random_numbers: random numbers from 0 to 1, [22].

  Returns:
    (top, left, height, width), int32. If no attempt fits into the image, the part is the whole
    image.
  """
  height, width = (tf.cast(side, tf.float32) for side in (shape[0], shape[1]))
  areas = height * width * (_MIN_AREA + (1 - _MIN_AREA) * random_numbers[2:2 + _CROP_ATTEMPTS])
  ratios = tf.exp(math.log(_MAX_ASPECT_RATIO) * (2 * random_numbers[2 + _CROP_ATTEMPTS:] - 1))
  heights, widths = tf.round(tf.sqrt(areas / ratios)), tf.round(tf.sqrt(areas * ratios))
  fits = (heights >= 1) & (widths >= 1) & (heights <= height) & (widths <= width)
  attempt = tf.argmax(tf.cast(fits, tf.int32))  # The first attempt that fits.
  crop_height = tf.where(fits[attempt], heights[attempt], height)
  crop_width = tf.where(fits[attempt], widths[attempt], width)
  top = tf.floor(random_numbers[0] * (height - crop_height + 1))
  left = tf.floor(random_numbers[1] * (width - crop_width + 1))
  return tuple(tf.cast(value, tf.int32) for value in (top, left, crop_height, crop_width))


def _pad_crop(images: tf.Tensor, random_numbers: tf.Tensor) -> tf.Tensor:
  """Pads images with black pixels, and crops a random part of the original size."""
  _, height, width, _ = tf.unstack(tf.shape(images))
  top, left = tf.unstack(tf.cast(random_numbers * (2 * _PADDING + 1), tf.int32), axis=1)
  padded = _pad(images, _PADDING, _PADDING)
  if images.shape[0] == 1:  # Copying rows takes less time than copying pixels.
    return padded[:, top[0]:top[0] + height, left[0]:left[0] + width]
  return _gather_pixels(padded, top[:, tf.newaxis, tf.newaxis] + tf.range(height)[:, tf.newaxis],
                        left[:, tf.newaxis, tf.newaxis] + tf.range(width))


def _change_color(images: tf.Tensor, random_numbers: tf.Tensor) -> tf.Tensor:
  """Scales brightness, contrast and saturation, each by a random factor from 0.6 to 1.4."""
  brightness, contrast, saturation = (
      1 + _MAX_JITTER * (2 * factor[:, tf.newaxis, tf.newaxis] - 1)
      for factor in tf.split(random_numbers, 3, 1))
  images = brightness * tf.cast(images, tf.float32)
  images = contrast * images + (1 - contrast) * tf.reduce_mean(images, [1, 2, 3], keepdims=True)
  images = saturation * images + (1 - saturation) * tf.reduce_mean(images, -1, keepdims=True)
  return tf.clip_by_value(images, 0., 255.)


def _rotate(images: tf.Tensor, random_numbers: tf.Tensor) -> tf.Tensor:
  """Rotates images by -15 to 15 degrees about their center, with bilinear interpolation.

  Pixels from outside of the original image are black.
  """
  _, height, width, _ = tf.unstack(tf.shape(images))
  angle = _MAX_ANGLE * (2 * random_numbers[:, tf.newaxis] - 1)
  center_y, center_x = (tf.cast(side - 1, tf.float32) / 2 for side in (height, width))
  y = tf.cast(tf.range(height), tf.float32)[:, tf.newaxis] - center_y
  x = tf.cast(tf.range(width), tf.float32)[tf.newaxis] - center_x
  # Coordinates in the padded image, which has one more pixel before each axis, and two after it.
  y, x = (tf.clip_by_value(1 + center + offset, 0., 1 + 2 * (center + .5)) for center, offset in (
      (center_y, tf.cos(angle) * y + tf.sin(angle) * x),
      (center_x, tf.cos(angle) * x - tf.sin(angle) * y)))
  padded = _pad(tf.cast(images, tf.float32), 1, 2)
  top, left = (tf.cast(coordinate, tf.int32) for coordinate in (y, x))

  def interpolate(first: tf.Tensor, second: tf.Tensor, coordinate: tf.Tensor) -> tf.Tensor:
    return first + (coordinate - tf.floor(coordinate))[..., tf.newaxis] * (second - first)

  upper, lower = (interpolate(_gather_pixels(padded, row, left),
                              _gather_pixels(padded, row, left + 1), x) for row in (top, top + 1))
  return interpolate(upper, lower, y)


def _cut_out(images: tf.Tensor, random_numbers: tf.Tensor) -> tf.Tensor:
  """Replaces a square by the mean color of the image.

  The side of the square is half of the shorter side of the image. The center of the square is a
  random pixel of the image, so that a part of the square may lie outside of the image.
  """
  images = tf.cast(images, tf.float32)
  shape = tf.shape(images)
  side = tf.minimum(shape[1], shape[2]) // 2

  def is_in_square(image_side: tf.Tensor, random_number: tf.Tensor) -> tf.Tensor:
    center = tf.cast(random_number * tf.cast(image_side, tf.float32), tf.int32)
    start = center[:, tf.newaxis] - side // 2
    return (tf.range(image_side) >= start) & (tf.range(image_side) < start + side)

  is_cut = (is_in_square(shape[1], random_numbers[:, 0])[:, :, tf.newaxis, tf.newaxis]
            & is_in_square(shape[2], random_numbers[:, 1])[:, tf.newaxis, :, tf.newaxis])
  mean = tf.reduce_mean(images, [1, 2], keepdims=True)
  # tf.where_v2 would broadcast its arguments, but takes seven times as long.
  return tf.where(tf.broadcast_to(is_cut, shape), tf.broadcast_to(mean, shape), images)


def _pad(images: tf.Tensor, before: int, after: int) -> tf.Tensor:
  """Adds black rows and columns before and after images.

  tf.pad would take several times as long.
  """
  for axis in (1, 2):
    shape = tf.shape(images)
    first, last = (tf.zeros(tf.concat([shape[:axis], [count], shape[axis + 1:]], 0), images.dtype)
                   for count in (before, after))
    images = tf.concat([first, images, last], axis)
  return images


def _gather_pixels(images: tf.Tensor, rows: tf.Tensor, columns: tf.Tensor) -> tf.Tensor:
  """Returns the pixels of each image at integer `rows` and `columns`, which broadcast to [N, …]."""
  num_images, height, width, channels = tf.unstack(tf.shape(images))
  first_rows = tf.reshape(tf.range(num_images) * height, [-1, 1, 1])
  return tf.gather(tf.reshape(images, [-1, channels]), (first_rows + rows) * width + columns)


class Augmentation(NamedTuple):
  """A kind of random change to images.

  Attributes:
    apply: takes N images and random numbers from 0 to 1, [N, num_random], and returns the changed
      images. For `crop`, N is 1.
    num_random: the number of random numbers that each image needs.
  """
  apply: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
  num_random: int


# Keys are the names in --augment. Append new augmentations, because inserting one would change the
# random numbers of those after it.
AUGMENTATIONS = {
    'flip': Augmentation(_flip, 1),
    'crop': Augmentation(_crop, 2 + 2 * _CROP_ATTEMPTS),
    'pad_crop': Augmentation(_pad_crop, 2),
    'color': Augmentation(_change_color, 3),
    'rotate': Augmentation(_rotate, 1),
    'cutout': Augmentation(_cut_out, 2),
}


def _draw_random_batches(order: OrderSettings, batch_size: int,
                         columns: np.ndarray) -> tf.data.Dataset:
  """Returns a dataset of random numbers for batches of examples, float32 [batch_size, columns]."""
  examples_per_draw = batch_size * -(-_EXAMPLES_PER_DRAW // batch_size)

  def draw_some_batches(index: np.ndarray) -> np.ndarray:
    positions = np.arange(index * examples_per_draw, (index + 1) * examples_per_draw)
    random_numbers = draw_random_numbers(
        order.seed, order.shard.to_global_positions(positions), columns)
    return random_numbers.reshape(-1, batch_size, len(columns))

  return map_python_function(
      tf.data.Dataset.range(INFINITY // examples_per_draw), draw_some_batches,
      [(tf.float32, [None, batch_size, len(columns)])]).apply(tf.data.experimental.unbatch())


def draw_random_numbers(seed: int, positions: np.ndarray, columns: np.ndarray) -> np.ndarray:
  """Returns random numbers from 0 to 1 for each position, float32 [positions, columns].

  For one position, tf.random.stateless_uniform([num_columns], [seed, position]) returns the same
  numbers. Calling it for each position would take ten times as long. TensorFlow's generator makes
  four columns at a time, from their index and from a mixture of the seed and the position.
  """
  seed_column, position_column = (np.array([seed], np.uint64),
                                  positions.astype(np.uint64)[:, np.newaxis])
  counter = [word for column in (seed_column, position_column)
             for word in (column & _LOW_BITS, column >> 32)]
  mixed = _philox(counter, [np.array([word], np.uint64) for word in (0x3ec8f720, 0x02461e29)])
  block_indices = np.unique(columns // 4)
  words = _philox([block_indices.astype(np.uint64), np.zeros(1, np.uint64), *mixed[2:]], mixed[:2])
  column_words = np.stack(words, -1)[
      :, np.searchsorted(block_indices, columns // 4), columns % 4]
  return ((column_words & (2 ** 23 - 1)) / 2 ** 23).astype(np.float32)


def _philox(counter: Sequence[np.ndarray], key: Sequence[np.ndarray]) -> List[np.ndarray]:
  """Returns four random 32-bit words, as uint64, for a counter of four words and a two-word key.

  The generator is Philox4x32-10. Source: Salmon et al., Parallel random numbers: as easy as 1, 2, 3
  (2011).
  """
  first, second, third, fourth = counter
  for iteration in range(10):
    iteration_key = [word + np.uint64(iteration * step) & _LOW_BITS
                     for word, step in zip(key, (0x9e3779b9, 0xbb67ae85))]
    product_1, product_3 = first * np.uint64(0xd2511f53), third * np.uint64(0xcd9e8d57)
    first, second = product_3 >> 32 ^ second ^ iteration_key[0], product_3 & _LOW_BITS
    third, fourth = product_1 >> 32 ^ fourth ^ iteration_key[1], product_1 & _LOW_BITS
  return np.broadcast_arrays(first, second, third, fourth)


def mix_pairs(batches: tf.data.Dataset, order: OrderSettings, batch: BatchSettings,
              alpha: float) -> tf.data.Dataset:
  """Mixes the images and the one-hot labels of the two examples of each pair.

  The examples a and b of a pair become λa + (1 - λ)b and λb + (1 - λ)a. The weight λ is drawn from
  the distribution Beta(alpha, alpha). It depends only on the seed and on the position of the pair.
  """
  neighbors = np.arange(batch.size) ^ 1

  def draw_weights(batch_index: np.ndarray) -> np.ndarray:
    positions = order.shard.to_global_positions(
        np.arange(batch_index * batch.size, (batch_index + 1) * batch.size, 2))
    return np.repeat(draw_mixup_weights(order.seed, positions // 2, alpha), 2)

  @without_autograph
  def mix_batch(examples: Tuple[tf.Tensor, tf.Tensor],
                batch_index: tf.Tensor) -> Tuple[tf.Tensor, ...]:
    weights = tf.numpy_function(draw_weights, [batch_index], tf.float32)

    def mix_values(values: tf.Tensor) -> tf.Tensor:
      example_weights = tf.reshape(weights, [-1] + [1] * (values.shape.ndims - 1))
      return example_weights * values + (1 - example_weights) * tf.gather(values, neighbors)

    return tuple(mix_values(tf.cast(values, tf.float32)) for values in examples)

  return batch.prefetch_batches(tf.data.Dataset.zip(
      (batches, tf.data.Dataset.range(INFINITY))).map(mix_batch, batch.num_parallel_calls))


def draw_mixup_weights(seed: int, pair_positions: np.ndarray, alpha: float) -> np.ndarray:
  """Returns the weight λ of the pair at each position, float32 [N]."""
  blocks, block_positions = np.divmod(pair_positions, _PAIRS_PER_DRAW)
  weights = np.empty(len(pair_positions), np.float32)
  for block in np.unique(blocks):
    # The 1 makes these random numbers differ from those that shuffle the epoch `block`.
    random = np.random.RandomState([seed % 2 ** 32, block % 2 ** 32, 1])
    is_in_block = blocks == block
    weights[is_in_block] = random.beta(alpha, alpha, _PAIRS_PER_DRAW)[block_positions[is_in_block]]
  return weights
