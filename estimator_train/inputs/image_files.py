"""`input_fn`s that read image files: JPEG, PNG or GIF, as their content says.

They return datasets of (pixels, labels). Pixels are float32 [B, height, width, C] in grey levels
from 0 to 255: decoded to uint8 and resized as they are. C is 1 where all images of a batch are
grey, and 3 otherwise; the model's graph scales them and repeats a single channel, on its device.
Labels are float32 [B, num_classes] or int64 [B].
"""

import contextlib
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Callable, Iterator, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.datasets.description import ImageSplit
from estimator_train.inputs.batching import Batching
from estimator_train.inputs.source import InputFn

# Paths looked up in one call to Python, which takes as long as decoding a tenth of an image.
_PATHS_AT_ONCE = 64
_READERS_AHEAD = 4  # Of a file system in the network, opening a file takes long.
_SAMPLE = 16


def make_train_input_fn(split: ImageSplit, batching: Batching) -> InputFn:
  """Makes the `input_fn` of training: shuffled, without end, every batch full."""
  def input_fn() -> tf.data.Dataset:
    return _batches(listed(split, batching), split, batching)

  return input_fn


def listed(split: ImageSplit, batching: Batching) -> tf.data.Dataset:
  """Returns (path, class number) of the images in the order of training, without end."""
  order = batching.order(len(split.files))
  return _look_up(batching.shuffled(tf.data.Dataset.range(len(order)), len(order)), split, order)


def make_eval_input_fn(split: ImageSplit, batching: Batching) -> InputFn:
  """Makes the `input_fn` of evaluation: every image once, in the order of the list."""
  def input_fn() -> tf.data.Dataset:
    numbers = tf.data.Dataset.range(len(split.files))
    order = np.arange(len(split.files), dtype=np.int32)
    return _batches(_look_up(numbers, split, order), split, batching)

  return input_fn


def decode(path: tf.Tensor, channels: int = 0) -> tf.Tensor:
  """Reads an image: a scalar string to uint8 [height, width, C].

  Args:
    path: of the file.
    channels: C: 3, or 0 for as many as the file has: 1 when it is grey.
  """
  return decode_content(tf.read_file(path), channels)


def decode_content(content: tf.Tensor, channels: int = 0) -> tf.Tensor:
  """Decodes the content of an image file, a scalar string, likewise."""
  return tf.image.decode_jpeg(content, channels=channels)


def resize(image: tf.Tensor, height: int, width: int) -> tf.Tensor:
  """Resizes uint8 [any, any, C] to float32 [height, width, C], bilinear as in TensorFlow 1."""
  return tf.image.resize_bilinear(image[tf.newaxis], (height, width))[0]


def is_grey(files: Sequence[bytes]) -> bool:
  """Whether a sample of the files is grey; those that cannot be decoded are left for later.

  Says only which kind to be quick for: a batch with an image of the other kind is right as well.
  """
  with tf.Graph().as_default(), tf.Session(
      config=tf.ConfigProto(device_count={'GPU': 0})) as session:
    path = tf.placeholder(tf.string, [])
    channels = tf.shape(decode(path))[2]
    for file in _evenly(files, _SAMPLE):
      try:
        if session.run(channels, {path: file}) != 1:
          return False
      except tf.errors.OpError:
        pass
  return True


def _evenly(files: Sequence[bytes], count: int) -> Iterator[bytes]:
  step = max(1, len(files) // count)
  return iter(files[::step])


def _batches(examples: tf.data.Dataset, split: ImageSplit, batching: Batching) -> tf.data.Dataset:
  load = make_load(batching, is_grey(split.files))
  return batching.prefetched(
      examples
      .apply(tf.data.experimental.map_and_batch(
          load, batching.batch_size, num_parallel_calls=batching.num_parallel_calls))
      .map(_make_complete(batching)))


def _look_up(numbers: tf.data.Dataset, split: ImageSplit, order: np.ndarray) -> tf.data.Dataset:
  """Returns (path, class) of each number. The list of paths stays out of the graph."""
  threads = ThreadPoolExecutor(_READERS_AHEAD)

  def in_python(some: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    chosen = order[some]
    paths = [split.files[index] for index in chosen]
    threads.submit(_ask_for, paths)
    return np.array(paths, object), split.classes[chosen].astype(np.int64)

  @tf.autograph.experimental.do_not_convert
  def look_up(some: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
    paths, classes = tf.numpy_function(in_python, [some], [tf.string, tf.int64])
    paths.set_shape([None])
    classes.set_shape([None])
    return paths, classes

  return (numbers.batch(_PATHS_AT_ONCE).map(look_up)
          .apply(tf.data.experimental.unbatch()).prefetch(_PATHS_AT_ONCE))


def _ask_for(paths: Sequence[bytes]) -> None:
  """Asks the kernel to read files before they are needed: decoding does not wait for the disk."""
  for path in paths:
    with contextlib.suppress(OSError):  # Whoever reads it will tell.
      descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
      try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_WILLNEED)
      finally:
        os.close(descriptor)


def make_load(batching: Batching, grey: bool) -> Callable[..., Tuple[tf.Tensor, ...]]:
  """Makes the function that reads, decodes and resizes one image of a (path, class number).

  Args:
    batching: says the size.
    grey: whether to expect grey images.

  Returns:
    A function that returns float32 [height, width, 1 or 3], whether these are all of its channels,
    and its arguments.
  """
  height, width, _ = batching.image_shape

  @tf.autograph.experimental.do_not_convert
  def load(path: tf.Tensor, class_number: tf.Tensor) -> Tuple[tf.Tensor, ...]:
    if not grey:
      pixels = resize(decode(path, channels=3), height, width)
      return pixels, tf.constant(True), path, class_number
    image = decode(path)
    pixels = resize(image[:, :, :1], height, width)
    return pixels, tf.equal(tf.shape(image)[2], 1), path, class_number

  return load


def _make_complete(batching: Batching) -> Callable[..., Tuple[tf.Tensor, tf.Tensor]]:
  """Makes the function that reads a batch again, in colour, if not all of it has been grey."""
  height, width, _ = batching.image_shape

  @tf.autograph.experimental.do_not_convert
  def complete(pixels: tf.Tensor, is_complete: tf.Tensor, paths: tf.Tensor,
               classes: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
    pixels = tf.cond(
        tf.reduce_all(is_complete), lambda: pixels,
        lambda: tf.map_fn(lambda path: resize(decode(path, channels=3), height, width), paths,
                          tf.float32, parallel_iterations=batching.num_parallel_calls))
    return pixels, batching.labels(classes)

  return complete
