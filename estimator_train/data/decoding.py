"""Decodes, resizes and batches JPEG, PNG and GIF images, from any source of bytes.

The datasets contain (images, labels). Images are decoded to uint8, resized to float32, and, for a
cache, rounded to uint8 again: [B, height, width, C], with pixel values from 0 to 255. C is 1 if the
model takes grey images, or if all images of the batch are expected to be grey and are grey;
otherwise, C is 3. The graph of the model scales the pixel values and, if necessary, repeats a
single channel. Labels are float32 [B, num_classes] or int64 [B].
"""

import contextlib
from typing import Any, Callable, Iterable, List, Sequence, Tuple, Union

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.data.batching import Batching, without_autograph
from estimator_train.errors import UserError, first_line

# A function from a reference, a scalar string such as a path, to the content of the image.
Read = Callable[[tf.Tensor], tf.Tensor]


def decode(content: tf.Tensor, channels: int = 0) -> tf.Tensor:
  """Decodes the content of an image file, a scalar string, to uint8 [height, width, C].

  Args:
    content: the content.
    channels: 3, to convert the image to C = 3; or 0, to keep the channels of the image (C = 1 for a
      grey image).
  """
  # In spite of its name, decode_jpeg also recognizes and decodes PNG and GIF.
  return tf.image.decode_jpeg(content, channels=channels)


def resize(image: tf.Tensor, height: int, width: int) -> tf.Tensor:
  """Resizes an image, uint8 [any, any, C], to float32 [height, width, C].

  The interpolation is bilinear, without half-pixel centers, as is the default of TensorFlow 1.
  """
  return tf.image.resize_bilinear(image[tf.newaxis], (height, width))[0]


def decode_and_resize(content: tf.Tensor, image_shape: Tuple[int, int, int]) -> tf.Tensor:
  """Decodes and resizes an image to float32 `image_shape`, with 1 or 3 channels."""
  height, width, channels = image_shape
  if channels == 3:
    return resize(decode(content, 3), height, width)
  image = decode(content)
  # The decoder cannot convert all formats to grey.
  return tf.cond(
      tf.equal(tf.shape(image)[2], 1), lambda: resize(image, height, width),
      lambda: tf.image.rgb_to_grayscale(resize(decode(content, 3), height, width)))


class Decoder:
  """Decodes images. Several threads can share a decoder.

  Args:
    compute: takes the content of an image, a scalar string tensor, and returns the tensor whose
      value `decode` returns.
    dtype: the type of this tensor. Its shape is the same for all images.
  """

  def __init__(self, compute: Callable[[tf.Tensor], tf.Tensor], dtype: tf.DType) -> None:
    with tf.Graph().as_default() as graph:
      contents = tf.placeholder(tf.string, [None])
      results = tf.map_fn(compute, contents, dtype, parallel_iterations=1, back_prop=False)
    # A negative number makes the calling thread run the operations. To hand them to other threads
    # takes longer than to decode a small image.
    self._session = tf.Session(graph=graph, config=tf.ConfigProto(
        device_count={'GPU': 0}, inter_op_parallelism_threads=-1))
    self._decode = self._session.make_callable(results, [contents])

  def decode(self, content: bytes) -> np.ndarray:
    """Returns the value of the tensor; raises a ValueError if the image cannot be decoded."""
    try:
      return self._decode([content])[0]
    except tf.errors.OpError as error:
      raise ValueError(first_line(error)) from error

  def decode_all(self, contents: Sequence[bytes]) -> List[Union[np.ndarray, ValueError]]:
    """Returns the value of the tensor for each image, or the error of `decode`.

    Decoding 16 small images together takes a fifth of the time.
    """
    try:
      return list(self._decode(contents)) if contents else []
    except tf.errors.OpError as error:
      if len(contents) == 1:
        return [ValueError(first_line(error))]
    return [self.decode_all([content])[0] for content in contents]

  def close(self) -> None:
    self._session.close()


def make_shape_decoder() -> Decoder:
  """Returns a decoder to (height, width, channels)."""
  return Decoder(lambda content: tf.shape(decode(content)), tf.int32)


def are_all_grey(contents: Iterable[bytes]) -> bool:
  """Returns whether all of these images are grey; images without a valid header are ignored."""
  def read_channels(content: tf.Tensor) -> tf.Tensor:
    # The header of a JPEG suffices.
    return tf.cond(tf.image.is_jpeg(content), lambda: tf.io.extract_jpeg_shape(content),
                   lambda: tf.shape(decode(content)))[2]

  with contextlib.closing(Decoder(read_channels, tf.int32)) as decoder:
    for content in contents:
      with contextlib.suppress(ValueError):
        if decoder.decode(content) != 1:
          return False
  return True


def make_batches(references: tf.data.Dataset, read: Read, expect_grey: bool,
                 batching: Batching) -> tf.data.Dataset:
  """Returns a dataset of batches (images, labels) for a dataset of (reference, class index).

  Args:
    references: (reference, class index) of each example, scalars.
    read: the function that returns the content of an image.
    expect_grey: whether most images are expected to be grey, so that only one channel is resized.
    batching: how the examples are combined into batches.
  """
  @without_autograph
  def finish(pixels: tf.Tensor, colour_references: tf.Tensor,
             class_indices: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
    # Building the graph of the fallback takes as long as decoding fifty images.
    if expect_grey and batching.image_shape[2] == 3:
      pixels = _reload_if_coloured(pixels, colour_references, read, batching)
    return pixels, batching.encode_labels(class_indices)

  return batching.prefetch_image_batches(
      map_and_batch(
          references, make_load_image(read, expect_grey, batching), batching).map(finish))


def make_examples(references: tf.data.Dataset, read: Read, expect_grey: bool,
                  batching: Batching) -> tf.data.Dataset:
  """Returns a dataset of (pixels, class indices, whether the pixels are complete), in batches.

  If images are expected to be grey, the pixels have only the first channel, and are complete if all
  images of the batch are grey. Otherwise, they have all channels that the model takes.

  Args:
    references, read, expect_grey, batching: as in make_batches.
  """
  @without_autograph
  def compare(pixels: tf.Tensor, colour_references: tf.Tensor,
              class_indices: tf.Tensor) -> Tuple[tf.Tensor, ...]:
    return pixels, class_indices, tf.reduce_all(tf.equal(colour_references, ''))

  return batching.prefetch_image_batches(
      map_and_batch(
          references, make_load_image(read, expect_grey, batching), batching).map(compare))


def make_load_image(read: Read, expect_grey: bool,
                    batching: Batching) -> Callable[..., Tuple[tf.Tensor, ...]]:
  """Makes a function of (reference, class index) that reads, decodes and resizes an image.

  Returns:
    A function that returns (image, colour reference, class index). The image is [height, width, 1
    or 3]. If the file has several channels, of which the image contains only the first,
    the colour reference is the reference; otherwise, it is an empty string. A reference can be the
    content of a file, which would take time to batch.
  """
  height, width, model_channels = batching.image_shape

  @without_autograph
  def load_image(reference: tf.Tensor, class_index: tf.Tensor) -> Tuple[tf.Tensor, ...]:
    content = read(reference)
    if model_channels == 1 or not expect_grey:
      pixels = decode_and_resize(content, batching.image_shape)
      return _convert(pixels, batching.pixel_dtype), tf.constant(''), class_index
    image = decode(content)
    pixels = resize(image[:, :, :1], height, width)
    return (_convert(pixels, batching.pixel_dtype),
            tf.where(tf.equal(tf.shape(image)[2], 1), '', reference), class_index)

  return load_image


def _convert(pixels: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
  """Converts resized pixels to another dtype, while they are in the cache of the processor."""
  if dtype == tf.float32:
    return pixels
  assert dtype == tf.uint8, dtype
  # Between 2 ** 23 and 2 ** 24, float32 has no fraction: the sum is the nearest integer, ties to
  # even, and its last byte is the pixel value. TensorFlow's own operation for the nearest integer,
  # and its cast from float32, take almost half as long as decoding an image.
  return tf.cast(tf.bitcast(pixels + 2. ** 23, tf.int32), dtype)


def _reload_if_coloured(pixels: tf.Tensor, references: tf.Tensor, read: Read,
                        batching: Batching) -> tf.Tensor:
  """Returns the pixels of a batch, with three channels if an image of the batch has several."""
  @without_autograph
  def reload(image: tf.Tensor, reference: tf.Tensor) -> tf.Tensor:
    return tf.cond(tf.equal(reference, ''), lambda: tf.tile(image, [1, 1, 3]),
                   lambda: _convert(decode_and_resize(read(reference), batching.image_shape),
                                    batching.pixel_dtype))

  def reload_batch() -> tf.Tensor:
    # TensorFlow instantiates the function of a dataset only when the dataset is read. The loop of
    # tf.map_fn would be instantiated at the start of every run.
    return tf.data.experimental.get_single_element(
        tf.data.Dataset.from_tensor_slices((pixels, references))
        .map(reload, batching.num_parallel_calls)
        .batch(tf.size(references, out_type=tf.int64)))

  return tf.cond(tf.reduce_all(tf.equal(references, '')), lambda: pixels, reload_batch)


def is_image_batch(features: Any) -> bool:
  """Returns whether features are a batch of images, [B, height, width, 1 or 3]."""
  return (isinstance(features, tf.Tensor) and features.shape.ndims == 4
          and features.shape.as_list()[-1] in (1, 3))


def map_and_batch(examples: tf.data.Dataset, load: Callable[..., Any],
                  batching: Batching) -> tf.data.Dataset:
  """Returns a dataset of batches of what `load` returns for each example, in parallel."""
  return examples.apply(tf.data.experimental.map_and_batch(
      load, batching.examples_per_batch,
      num_parallel_calls=batching.num_parallel_calls + batching.num_queued_calls))


def make_published_batches(elements: tf.data.Dataset,
                           parse: Callable[..., Tuple[tf.Tensor, tf.Tensor]],
                           batching: Batching) -> tf.data.Dataset:
  """Makes the input pipeline of 2018, which `--input_pipeline=published` selects.

  Its stages are: shuffle_files, for TFRecord files reading several alternately, shuffle_and_repeat,
  map_and_batch, prefetch. Images are decoded to three channels, converted to float32, and resized.

  A resumed run does not continue with the next example, but starts another epoch. With several
  workers, a worker reads every N-th image file or TFRecord file, so that workers may read different
  numbers of examples.

  Args:
    elements: the elements to shuffle.
    parse: takes an element; returns the content of an image and its class index.
    batching: how the examples are combined into batches.
  """
  height, width, channels = batching.image_shape

  @without_autograph
  def load(*element: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
    content, class_index = parse(*element)
    image = tf.image.convert_image_dtype(decode(content, channels=3), tf.float32)
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


def shuffle_files(files: Sequence[bytes], batching: Batching,
                  *components: np.ndarray) -> tf.data.Dataset:
  """Returns a dataset of the worker's paths, shuffled, and of further components of each file.

  This is the first stage of make_published_batches.

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


def _seed(batching: Batching) -> int:
  """Returns the seed of the shuffling; a resumed run does not repeat the order of the first."""
  return (batching.seed + batching.shard.first_example) % 2 ** 31
