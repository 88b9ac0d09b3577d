"""Decodes, resizes and batches JPEG, PNG and GIF images, from any source of bytes.

The datasets contain (images, labels). Images are [B, height, width, C], with pixel values from 0 to
255. They are decoded to uint8, and resized to float32. For a cache, they are rounded to uint8. C is
1 if the model takes gray images, or if all images of the batch are expected to be gray and are
gray. Otherwise, C is 3. The graph of the model scales the pixel values and, if necessary, repeats
the single channel. Labels are float32 [B, num_classes] or int64 [B].
"""

import contextlib
from typing import Any, Callable, Iterable, List, Sequence, Tuple, Union

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.data import ImageShape
from estimator_train.data.batching import (
  BatchSettings,
  OrderSettings,
  PixelSettings,
  without_autograph,
)
from estimator_train.distribution import devices
from estimator_train.errors import UserError, first_line

# Takes a reference to an image, and returns the content of the image file. A reference is a scalar
# string, such as the path of the file.
ReadContent = Callable[[tf.Tensor], tf.Tensor]


def decode(content: tf.Tensor, channels: int = 0) -> tf.Tensor:
  """Decodes the content of an image file, a scalar string, to uint8 [height, width, C].

  With `channels=0`, C is 1 for a gray image, else 3; with `channels=3`, it is always 3.
  """
  # In spite of its name, decode_jpeg also recognizes and decodes PNG and GIF.
  return tf.image.decode_jpeg(content, channels=channels)


def resize(image: tf.Tensor, height: int, width: int) -> tf.Tensor:
  """Resizes an image, uint8 [any, any, C], to float32 [height, width, C].

  The interpolation is bilinear without half-pixel centers, which is the default of TensorFlow 1.
  """
  return tf.image.resize_bilinear(image[tf.newaxis], (height, width))[0]


def decode_and_resize(content: tf.Tensor, image_shape: ImageShape) -> tf.Tensor:
  """Decodes and resizes an image to float32 `image_shape`, with 1 or 3 channels."""
  height, width, channels = image_shape
  if channels == 3:
    return resize(decode(content, 3), height, width)
  image = decode(content)
  # The decoder cannot convert all formats to gray.
  return tf.cond(
      tf.equal(tf.shape(image)[2], 1), lambda: resize(image, height, width),
      lambda: tf.image.rgb_to_grayscale(resize(decode(content, 3), height, width)))


class ImageFunction:
  """A function of the content of an image, computed by TensorFlow. Threads can share the function.

  Args:
    compute: takes the content of an image, a scalar string, and returns a tensor of this dtype,
      whose shape is the same for all images.
  """

  def __init__(self, compute: Callable[[tf.Tensor], tf.Tensor], dtype: tf.DType) -> None:
    with tf.Graph().as_default() as graph:
      contents = tf.placeholder(tf.string, [None])
      results = tf.map_fn(compute, contents, dtype, parallel_iterations=1, back_prop=False)
    # A negative number makes the calling thread run the operations. Handing them to other threads
    # would take longer than decoding a small image.
    self._session = tf.Session(
        graph=graph, config=devices.make_cpu_config(inter_op_parallelism_threads=-1))
    self._compute = self._session.make_callable(results, [contents])

  def call(self, content: bytes) -> np.ndarray:
    """Returns the result; raises a ValueError if the image cannot be decoded."""
    try:
      return self._compute([content])[0]
    except tf.errors.OpError as error:
      raise ValueError(first_line(error)) from error

  def call_all(self, contents: Sequence[bytes]) -> List[Union[np.ndarray, ValueError]]:
    """Returns, for each image, the result or the error that `call` would raise.

    Decoding 16 small images together takes a fifth of the time of 16 calls.
    """
    try:
      return list(self._compute(contents)) if contents else []
    except tf.errors.OpError as error:
      if len(contents) == 1:
        return [ValueError(first_line(error))]
    return [self.call_all([content])[0] for content in contents]

  def close(self) -> None:
    self._session.close()


def make_shape_function() -> ImageFunction:
  """Makes a function that decodes an image, and returns its (height, width, channels)."""
  return ImageFunction(lambda content: tf.shape(decode(content)), tf.int32)


def are_all_gray(contents: Iterable[bytes]) -> bool:
  """Returns whether all images are gray. Images without a valid header are ignored."""
  def read_channels(content: tf.Tensor) -> tf.Tensor:
    # Only the header of a JPEG needs to be read.
    return tf.cond(tf.image.is_jpeg(content), lambda: tf.io.extract_jpeg_shape(content),
                   lambda: tf.shape(decode(content)))[2]

  with contextlib.closing(ImageFunction(read_channels, tf.int32)) as channel_function:
    for content in contents:
      with contextlib.suppress(ValueError):
        if channel_function.call(content) != 1:
          return False
  return True


def make_batches(references: tf.data.Dataset, read_content: ReadContent, expect_gray: bool,
                 pixels: PixelSettings, batch: BatchSettings) -> tf.data.Dataset:
  """Returns a dataset of batches (images, labels).

  Args:
    references: a pair of scalars, (reference, class index), for each example.
    expect_gray: whether most images are expected to be gray, so that only one channel is resized.
    pixels: the pixels of the images. Its `augment` is ignored.
  """
  @without_autograph
  def finish_batch(images: tf.Tensor, color_references: tf.Tensor,
                   class_indices: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
    # Building the graph of _reload_if_in_color takes as long as decoding fifty images.
    if expect_gray and pixels.image_shape[2] == 3:
      images = _reload_if_in_color(images, color_references, read_content, pixels, batch)
    return images, batch.encode_labels(class_indices)

  return batch.prefetch_image_batches(batch.map_and_batch(
      references, make_load_image(read_content, expect_gray, pixels)).map(finish_batch))


def make_batches_to_cache(references: tf.data.Dataset, read_content: ReadContent, expect_gray: bool,
                          pixels: PixelSettings, batch: BatchSettings) -> tf.data.Dataset:
  """Like make_batches, but makes (images, class indices, whether the images are complete).

  If images are expected to be gray, only their first channel is returned. The images of a batch are
  then complete if all of them are gray. Otherwise, all channels that the model takes are returned,
  and the images are always complete.
  """
  @without_autograph
  def finish_batch(images: tf.Tensor, color_references: tf.Tensor,
                   class_indices: tf.Tensor) -> Tuple[tf.Tensor, ...]:
    return images, class_indices, tf.reduce_all(tf.equal(color_references, ''))

  return batch.prefetch_image_batches(batch.map_and_batch(
      references, make_load_image(read_content, expect_gray, pixels)).map(finish_batch))


def make_load_image(read_content: ReadContent, expect_gray: bool,
                    pixels: PixelSettings) -> Callable[..., Tuple[tf.Tensor, ...]]:
  """Makes a function of (reference, class index) that reads, decodes and resizes an image.

  Returns:
    A function that returns (image, color reference, class index). The image is [height, width, 1
    or 3]. The color reference is not empty if the image lacks channels of the file. It is then the
    reference, with which the image can be loaded again.
  """
  height, width, model_channels = pixels.image_shape

  @without_autograph
  def load_image(reference: tf.Tensor, class_index: tf.Tensor) -> Tuple[tf.Tensor, ...]:
    content = read_content(reference)
    if model_channels == 1 or not expect_gray:
      image = decode_and_resize(content, pixels.image_shape)
      return _convert_dtype(image, pixels.dtype), tf.constant(''), class_index
    decoded = decode(content)
    image = resize(decoded[:, :, :1], height, width)
    # A reference can be the content of a file, so batching an unnecessary reference takes time.
    return (_convert_dtype(image, pixels.dtype),
            tf.where(tf.equal(tf.shape(decoded)[2], 1), '', reference), class_index)

  return load_image


def _convert_dtype(image: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
  """Converts a single resized image, which is in the processor's cache, from float32 to `dtype`."""
  if dtype == tf.float32:
    return image
  assert dtype == tf.uint8, dtype
  # Between 2 ** 23 and 2 ** 24, float32 has no fraction. The sum is therefore rounded to the
  # nearest integer, with ties to even, and its last byte is the pixel value. TensorFlow's operation
  # for rounding and its cast from float32 would take almost half as long as decoding an image.
  return tf.cast(tf.bitcast(image + 2. ** 23, tf.int32), dtype)


def _reload_if_in_color(images: tf.Tensor, color_references: tf.Tensor, read_content: ReadContent,
                        pixels: PixelSettings, batch: BatchSettings) -> tf.Tensor:
  """Returns the images of a batch, with three channels if any image is in color."""
  @without_autograph
  def reload_image(image: tf.Tensor, reference: tf.Tensor) -> tf.Tensor:
    return tf.cond(tf.equal(reference, ''), lambda: tf.tile(image, [1, 1, 3]),
                   lambda: _convert_dtype(
                       decode_and_resize(read_content(reference), pixels.image_shape),
                       pixels.dtype))

  def reload_batch() -> tf.Tensor:
    # TensorFlow instantiates the function of a dataset only when the dataset is read. The loop of
    # tf.map_fn would be instantiated at the start of every run.
    return tf.data.experimental.get_single_element(
        tf.data.Dataset.from_tensor_slices((images, color_references))
        .map(reload_image, batch.num_parallel_calls)
        .batch(tf.size(color_references, out_type=tf.int64)))

  return tf.cond(tf.reduce_all(tf.equal(color_references, '')), lambda: images, reload_batch)


def is_image_batch(features: Any) -> bool:
  """Returns whether features may be a batch of images, [B, height, width, 1 or 3].

  If the number of channels is known only when the graph runs, as with a cache, the result is True.
  """
  return (isinstance(features, tf.Tensor) and features.shape.ndims == 4
          and features.shape.as_list()[-1] in (None, 1, 3))


def make_published_batches(elements: tf.data.Dataset,
                           parse: Callable[..., Tuple[tf.Tensor, tf.Tensor]], order: OrderSettings,
                           pixels: PixelSettings, batch: BatchSettings) -> tf.data.Dataset:
  """Makes the input pipeline of 2018, which `--input_pipeline=published` selects.

  The stages are shuffle_files, shuffle_and_repeat, map_and_batch and prefetch. For TFRecord files,
  shuffle_files is followed by a stage that reads several files alternately. Images are decoded to
  three channels, converted to float32, and resized.

  A resumed run starts another epoch, and does not continue with the next example. Each of N workers
  reads every N-th image file or TFRecord file. Workers may therefore read different numbers of
  examples.

  Args:
    parse: takes an element, and returns the content of an image and its class index.
  """
  height, width, channels = pixels.image_shape

  @without_autograph
  def load(*element: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
    content, class_index = parse(*element)
    image = tf.image.convert_image_dtype(decode(content, channels=3), tf.float32)
    image = tf.image.resize_images(image, (height, width)) * 255.
    if channels == 1:
      image = tf.image.rgb_to_grayscale(image)
    return image, batch.check_and_encode_labels(class_index)

  return batch.prefetch_batches(
      elements
      .apply(tf.data.experimental.shuffle_and_repeat(order.shuffle_buffer,
                                                     seed=_published_seed(order)))
      .apply(tf.data.experimental.map_and_batch(
          load, batch.size, num_parallel_calls=batch.num_parallel_calls)))


def shuffle_files(files: Sequence[bytes], order: OrderSettings,
                  *file_values: np.ndarray) -> tf.data.Dataset:
  """Returns a shuffled dataset of the files of this worker: the first stage of 2018.

  Args:
    files: the paths of the files of all workers.
    file_values: arrays of further values for each file, which the dataset contains after the path.

  Raises:
    UserError: there are fewer files than workers.
  """
  shard = order.shard
  if len(files) < shard.num_workers:
    raise UserError('--input_pipeline=published requires a file per worker',
                    '{} file(s) for {} workers'.format(len(files), shard.num_workers),
                    'write more files, or give --input_pipeline=exact')
  slices = (np.array(files, object),) + file_values
  paths = tf.data.Dataset.from_tensor_slices(slices if file_values else slices[0])
  return paths.shard(shard.num_workers, shard.rank).shuffle(len(files), seed=_published_seed(order))


def _published_seed(order: OrderSettings) -> int:
  """Returns a seed with which a resumed run reads the examples in another order."""
  return (order.seed + order.shard.first_example) % 2 ** 31
