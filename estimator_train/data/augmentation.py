"""Augments training images: --augment lists the augmentations in the order of their application.

The random numbers of an example depend only on the seed and on the position of the example in the
infinite sequence of training examples of all workers. They are therefore the same after a run is
resumed, and on any number of workers, replicas and threads.

Images are [N, height, width, C], uint8 or float32, with pixel values from 0 to 255 and C = 1 or 3.
Small images are augmented in groups: most of the time of an operation on a single small image is
not spent on its pixels.

`--mixup_alpha` mixes pairs of images and their labels (Zhang et al. 2018, arXiv:1710.09412). Pairs
are neighbors in the sequence of training examples, so that any number of replicas and workers makes
the same pairs. This requires an even number of examples per replica.
"""

import math
from typing import Any, Callable, List, NamedTuple, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.data import decoding
from estimator_train.data.batching import (
  INFINITY,
  Batch,
  Order,
  Pixels,
  map_in_python,
  without_autograph,
)

_MIN_AREA, _MAX_ASPECT_RATIO, _CROP_ATTEMPTS = .08, 4 / 3, 10
_PADDING = 4  # In pixels, on each side.
_MAX_JITTER = .4
_MAX_ANGLE = math.radians(15)
_MAX_GROUP_VALUES = 2 ** 17  # As float32, they fit into the cache of a core.
_EXAMPLES_PER_DRAW = 256
_PAIRS_PER_DRAW = 256
_LOW_BITS = 2 ** 32 - 1


def augment_and_prefetch(batches: tf.data.Dataset, order: Order, pixels: Pixels,
                         batch: Batch) -> tf.data.Dataset:
  """Augments and prefetches a dataset of batches of (images, labels), decoded and resized."""
  names = _names(pixels)
  if not names:
    return batch.prefetch_batches(batches)
  # The crops differ in size.
  max_group_size = 1 if 'crop' in names else max(
      1, _MAX_GROUP_VALUES // max(1, int(np.prod(pixels.image_shape))))
  num_groups = -(-batch.size // max_group_size)
  size = -(-batch.size // num_groups)

  @without_autograph
  def split(examples: Tuple[tf.Tensor, tf.Tensor], numbers: tf.Tensor) -> Tuple[tf.Tensor, ...]:
    num_added = num_groups * size - batch.size  # They make the groups equal; dropped again.
    return tuple(_reshape(tf.concat([tensor, tensor[:num_added]], 0) if num_added else tensor,
                          [num_groups, size], tensor.shape[1:]) for tensor in (*examples, numbers))

  @without_autograph
  def augment(images: tf.Tensor, labels: tf.Tensor,
              numbers: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
    return _apply(names, images, numbers, pixels), labels

  groups = tf.data.Dataset.zip((
      batches, _draw_groups(order, batch.size, _columns(names)))).map(split).apply(
          tf.data.experimental.unbatch())
  augmented = batch.map_and_batch(groups, augment, num_groups)
  return batch.prefetch_image_batches(augmented.map(without_autograph(lambda *groups: tuple(
      _reshape(tensor, [-1], tensor.shape[2:])[:batch.size] for tensor in groups))))


def make_augmented_batches(references: tf.data.Dataset, read: decoding.ReadContent, order: Order,
                           pixels: Pixels, batch: Batch) -> tf.data.Dataset:
  """Returns a dataset of batches (images, labels) of augmented images, float32.

  Args:
    references: (reference, class index) of each example of this worker, scalars.
    read: returns the content of an image.
  """
  @without_autograph
  def load(reference: Any, numbers: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
    content, class_index = reference
    return _decode_and_augment(read(content), numbers, pixels)[0], class_index

  examples = tf.data.Dataset.zip((
      references, _draw_groups(order, 1, _columns(_names(pixels)))))
  return batch.prefetch_image_batches(batch.map_and_batch(examples, load).map(
      without_autograph(lambda images, class_indices: (
          images, batch.encode_labels(class_indices)))))


def _reshape(tensor: tf.Tensor, first_sizes: List[int], last_sizes: tf.TensorShape) -> tf.Tensor:
  """Replaces the sizes of the first dimensions of a tensor, and keeps those of the others."""
  kept = tf.shape(tensor)[tensor.shape.ndims - last_sizes.ndims:]
  tensor = tf.reshape(tensor, tf.concat([first_sizes, kept], 0))
  tensor.set_shape([None if size == -1 else size for size in first_sizes] + last_sizes.as_list())
  return tensor


def _names(pixels: Pixels) -> List[str]:
  """Returns the names of the augmentations, in their order."""
  names = pixels.augment.replace('crop_flip', 'crop,flip')
  return [] if names == 'none' else names.split(',')


def _columns(names: List[str]) -> np.ndarray:
  """Returns the columns of the random numbers of augmentations; see draw_numbers."""
  owners = [name for name in AUGMENTATIONS for _ in range(AUGMENTATIONS[name].num_random)]
  return np.concatenate([np.flatnonzero(np.array(owners) == name) for name in names])


def _decode_and_augment(content: tf.Tensor, numbers: tf.Tensor, pixels: Pixels) -> tf.Tensor:
  """Decodes, augments and resizes an image, float32 [1, height, width, C].

  `crop` cuts its part out of the image of the file, whose resolution it uses. What is listed before
  `crop` is therefore applied to the whole image of the file, all else to the resized image.

  Args:
    content: a scalar string.
    numbers: the random numbers of the example, [1, columns].
  """
  height, width, channels = pixels.image_shape
  names = _names(pixels)
  if 'crop' not in names:
    image = decoding.decode_and_resize(content, pixels.image_shape)
    return _apply(names, image[tf.newaxis], numbers, pixels)
  if names[0] == 'crop':
    num_random = AUGMENTATIONS['crop'].num_random
    names, crop, numbers = names[1:], numbers[0, :num_random], numbers[:, num_random:]
    image = decoding.resize(_decode_crop(content, crop), height, width)
  else:
    image = decoding.decode(content, 3)
  image = _apply(names, image[tf.newaxis], numbers, pixels)
  return tf.image.rgb_to_grayscale(image) if channels == 1 else image


def _apply(names: List[str], images: tf.Tensor, numbers: tf.Tensor, pixels: Pixels) -> tf.Tensor:
  """Augments images; `numbers` are the random numbers of the augmentations, in their order."""
  height, width, _ = pixels.image_shape
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
      decoding.decode(content, 3)[tf.newaxis], numbers[tf.newaxis])[0])


def choose_crop(shape: tf.Tensor, numbers: tf.Tensor) -> Tuple[tf.Tensor, ...]:
  """Chooses a part of an image: 8 % to 100 % of its area, with sides from 3:4 to 4:3.

  Args:
    shape: int32 [3].
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


def _draw_groups(order: Order, size: int, columns: np.ndarray) -> tf.data.Dataset:
  """Returns a dataset of the random numbers of groups of examples, float32 [size, columns]."""
  num_drawn = size * -(-_EXAMPLES_PER_DRAW // size)

  def draw_some(index: np.ndarray) -> np.ndarray:
    positions = np.arange(index * num_drawn, (index + 1) * num_drawn)
    numbers = draw_numbers(order.seed, order.shard.to_global_positions(positions), columns)
    return numbers.reshape(-1, size, len(columns))

  return map_in_python(tf.data.Dataset.range(INFINITY // num_drawn), draw_some, [
      (tf.float32, [None, size, len(columns)])]).apply(tf.data.experimental.unbatch())


def draw_numbers(seed: int, positions: np.ndarray, columns: np.ndarray) -> np.ndarray:
  """Returns random numbers from 0 to 1 for each position, float32 [positions, columns].

  They are those of tf.random.stateless_uniform([more columns], [seed, position]), which takes ten
  times as long, because it takes one position at a time. TensorFlow's generator makes four numbers
  at a time, from their index and from a mixture of seed and position.
  """
  seeds, places = np.array([seed], np.uint64), positions.astype(np.uint64)[:, np.newaxis]
  counter = [word for pair in (seeds, places) for word in (pair & _LOW_BITS, pair >> 32)]
  mixed = _philox(counter, [np.array([word], np.uint64) for word in (0x3ec8f720, 0x02461e29)])
  fours = np.unique(columns // 4)
  words = _philox([fours.astype(np.uint64), np.zeros(1, np.uint64), *mixed[2:]], mixed[:2])
  chosen = np.stack(words, -1)[:, np.searchsorted(fours, columns // 4), columns % 4]
  return ((chosen & (2 ** 23 - 1)) / 2 ** 23).astype(np.float32)


def _philox(counter: Sequence[np.ndarray], key: Sequence[np.ndarray]) -> List[np.ndarray]:
  """Returns four random words of 32 bits, as uint64, for four words and a key of two words.

  The generator is Philox4x32-10. Source: Salmon et al., Parallel random numbers: as easy as 1, 2, 3
  (2011).
  """
  first, second, third, fourth = counter
  for number in range(10):
    keys = [word + np.uint64(number * step) & _LOW_BITS
            for word, step in zip(key, (0x9e3779b9, 0xbb67ae85))]
    product, other = first * np.uint64(0xd2511f53), third * np.uint64(0xcd9e8d57)
    first, second = other >> 32 ^ second ^ keys[0], other & _LOW_BITS
    third, fourth = product >> 32 ^ fourth ^ keys[1], product & _LOW_BITS
  return np.broadcast_arrays(first, second, third, fourth)


def mix_pairs(batches: tf.data.Dataset, order: Order, batch: Batch,
              alpha: float) -> tf.data.Dataset:
  """Mixes the images and the one-hot labels of the two examples of each pair.

  Example a of a pair becomes λa + (1 - λ)b, and b becomes λb + (1 - λ)a. The weight λ is from the
  beta distribution, both of whose parameters are `alpha`, and depends only on the seed and on the
  position of the pair.
  """
  neighbors = np.arange(batch.size) ^ 1

  def draw(index: np.ndarray) -> np.ndarray:
    positions = order.shard.to_global_positions(
        np.arange(index * batch.size, (index + 1) * batch.size, 2))
    return np.repeat(draw_weights(order.seed, positions // 2, alpha), 2)

  @without_autograph
  def mix(examples: Tuple[tf.Tensor, tf.Tensor], index: tf.Tensor) -> Tuple[tf.Tensor, ...]:
    weights = tf.numpy_function(draw, [index], tf.float32)

    def mix_values(values: tf.Tensor) -> tf.Tensor:
      own = tf.reshape(weights, [-1] + [1] * (values.shape.ndims - 1))
      return own * values + (1 - own) * tf.gather(values, neighbors)

    return tuple(mix_values(tf.cast(values, tf.float32)) for values in examples)

  return batch.prefetch_batches(tf.data.Dataset.zip(
      (batches, tf.data.Dataset.range(INFINITY))).map(mix, batch.num_parallel_calls))


def draw_weights(seed: int, pairs: np.ndarray, alpha: float) -> np.ndarray:
  """Returns the weight λ of each pair, float32 [N]; `pairs` are the positions of the pairs."""
  blocks, places = np.divmod(pairs, _PAIRS_PER_DRAW)
  weights = np.empty(len(pairs), np.float32)
  for block in np.unique(blocks):
    # The 1 separates these random numbers from those that shuffle an epoch.
    random = np.random.RandomState([seed % 2 ** 32, block % 2 ** 32, 1])
    weights[blocks == block] = random.beta(alpha, alpha, _PAIRS_PER_DRAW)[places[blocks == block]]
  return weights
