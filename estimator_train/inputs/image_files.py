"""Makes `input_fn`s that read JPEG, PNG and GIF files, whatever the extensions of their names.

The datasets contain (images, labels). Images are decoded to uint8 and resized to float32 [B,
height, width, C], with pixel values from 0 to 255. C is 1 if is_sample_grey returned True and all
images of the batch are grey; otherwise, C is 3. The graph of the model scales the pixel values and,
if necessary, repeats a single channel. Labels are float32 [B, num_classes] or int64 [B].
"""

import contextlib
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Callable, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.datasets.description import ImageSplit
from estimator_train.inputs.batching import Batching
from estimator_train.inputs.source import InputFn

# The number of paths that one call of a Python function looks up. One call per image would take a
# tenth of the time that decoding an image takes.
_PATHS_PER_LOOKUP = 64
_READAHEAD_THREADS = 4  # Several, because opening a file on a network file system is slow.
_GREY_SAMPLE_SIZE = 16  # The maximum number of files that is_sample_grey decodes.


def make_train_input_fn(split: ImageSplit, batching: Batching) -> InputFn:
  """Makes the `input_fn` of training: shuffled, infinite, with full batches."""
  def input_fn() -> tf.data.Dataset:
    return _make_batches(make_path_dataset(split, batching), split, batching)

  return input_fn


def make_path_dataset(split: ImageSplit, batching: Batching) -> tf.data.Dataset:
  """Returns an infinite dataset of (path, class index) in the order of training."""
  num_files = len(split.files)
  positions = batching.shuffle_and_shard(tf.data.Dataset.range(num_files), num_files)
  # The files are listed class by class. The permutation mixes the classes before shuffling.
  return _look_up_paths(positions, split, batching.permutation(num_files))


def make_eval_input_fn(split: ImageSplit, batching: Batching) -> InputFn:
  """Makes the `input_fn` of evaluation: each image once, in the order of the files."""
  def input_fn() -> tf.data.Dataset:
    positions = tf.data.Dataset.range(len(split.files))
    identity = np.arange(len(split.files), dtype=np.int32)
    return _make_batches(_look_up_paths(positions, split, identity), split, batching)

  return input_fn


def decode(path: tf.Tensor, channels: int = 0) -> tf.Tensor:
  """Reads and decodes an image to uint8 [height, width, C].

  Args:
    path: the path of the file, a scalar string.
    channels: 3, to convert the image to C = 3; or 0, to keep the channels of the file (C = 1 for a
      grey image).
  """
  return decode_content(tf.read_file(path), channels)


def decode_content(content: tf.Tensor, channels: int = 0) -> tf.Tensor:
  """Decodes the content of an image file, a scalar string; see decode."""
  # In spite of its name, decode_jpeg also recognizes and decodes PNG and GIF.
  return tf.image.decode_jpeg(content, channels=channels)


def resize(image: tf.Tensor, height: int, width: int) -> tf.Tensor:
  """Resizes an image, uint8 [any, any, C], to float32 [height, width, C].

  The interpolation is bilinear, without half-pixel centers, as is the default of TensorFlow 1.
  """
  return tf.image.resize_bilinear(image[tf.newaxis], (height, width))[0]


def is_sample_grey(files: Sequence[bytes]) -> bool:
  """Returns whether all images in a sample of the files are grey.

  Images that cannot be decoded are ignored. The result only selects the faster of two code paths;
  each code path reads grey and colour images correctly.
  """
  with tf.Graph().as_default(), tf.Session(
      config=tf.ConfigProto(device_count={'GPU': 0})) as session:
    path = tf.placeholder(tf.string, [])
    channels = tf.shape(decode(path))[2]
    for file in _evenly_spaced(files, _GREY_SAMPLE_SIZE):
      try:
        if session.run(channels, {path: file}) != 1:
          return False
      except tf.errors.OpError:
        pass
  return True


def _evenly_spaced(files: Sequence[bytes], max_count: int) -> Sequence[bytes]:
  """Returns up to `max_count` files, evenly spaced in the list."""
  count = min(max_count, len(files))
  return [files[index * len(files) // count] for index in range(count)]


def _make_batches(paths: tf.data.Dataset, split: ImageSplit,
                  batching: Batching) -> tf.data.Dataset:
  """Returns a dataset of batches (images, labels) for a dataset of (path, class index)."""
  load_image = make_load_image(batching, is_sample_grey(split.files))
  return batching.prefetch_batches(
      paths
      .apply(tf.data.experimental.map_and_batch(
          load_image, batching.examples_per_batch, num_parallel_calls=batching.num_parallel_calls))
      .map(_make_colour_fallback(batching)))


def _look_up_paths(positions: tf.data.Dataset, split: ImageSplit,
                   permutation: np.ndarray) -> tf.data.Dataset:
  """Returns a dataset of (path, class index). The paths are not stored in the graph.

  Args:
    positions: the positions of the files in `permutation`, int64 scalars.
    split: the files and their class indices.
    permutation: the index of the file at each position, integer [N].
  """
  threads = ThreadPoolExecutor(_READAHEAD_THREADS)

  def look_up_in_python(batch_positions: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    indices = permutation[batch_positions]
    paths = [split.files[index] for index in indices]
    threads.submit(_request_readahead, paths)
    return np.array(paths, object), split.classes[indices].astype(np.int64)

  @tf.autograph.experimental.do_not_convert
  def look_up(batch_positions: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
    paths, class_indices = tf.numpy_function(look_up_in_python, [batch_positions],
                                             [tf.string, tf.int64])
    paths.set_shape([None])
    class_indices.set_shape([None])
    return paths, class_indices

  return (positions.batch(_PATHS_PER_LOOKUP).map(look_up)
          .apply(tf.data.experimental.unbatch()).prefetch(_PATHS_PER_LOOKUP))


def _request_readahead(paths: Sequence[bytes]) -> None:
  """Asks the kernel to read files ahead, so that decoding does not wait for the disk."""
  for path in paths:
    with contextlib.suppress(OSError):  # The error is reported when the image is decoded.
      descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
      try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_WILLNEED)
      finally:
        os.close(descriptor)


def make_load_image(batching: Batching, expect_grey: bool) -> Callable[..., Tuple[tf.Tensor, ...]]:
  """Makes a function of (path, class index) that reads, decodes and resizes an image.

  Args:
    batching: gives the image size.
    expect_grey: whether most images are expected to be grey, so that only one channel is resized.

  Returns:
    A function that returns (image, has_all_channels, path, class index). The image is float32
    [height, width, 1 or 3]. If has_all_channels is False, the file has several channels, of which
    the image contains only the first.
  """
  height, width, _ = batching.image_shape

  @tf.autograph.experimental.do_not_convert
  def load_image(path: tf.Tensor, class_index: tf.Tensor) -> Tuple[tf.Tensor, ...]:
    if not expect_grey:
      pixels = resize(decode(path, channels=3), height, width)
      return pixels, tf.constant(True), path, class_index
    image = decode(path)
    pixels = resize(image[:, :, :1], height, width)
    return pixels, tf.equal(tf.shape(image)[2], 1), path, class_index

  return load_image


def _make_colour_fallback(batching: Batching) -> Callable[..., Tuple[tf.Tensor, tf.Tensor]]:
  """Makes a function that reads a batch again, with three channels, if an image is not grey."""
  height, width, _ = batching.image_shape

  @tf.autograph.experimental.do_not_convert
  def reload_if_coloured(pixels: tf.Tensor, has_all_channels: tf.Tensor, paths: tf.Tensor,
                         class_indices: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
    pixels = tf.cond(
        tf.reduce_all(has_all_channels), lambda: pixels,
        lambda: tf.map_fn(lambda path: resize(decode(path, channels=3), height, width), paths,
                          tf.float32, parallel_iterations=batching.num_parallel_calls))
    return pixels, batching.encode_labels(class_indices)

  return reload_if_coloured
