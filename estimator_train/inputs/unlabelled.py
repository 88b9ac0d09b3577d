"""Images without labels, in batches as they come: from image files and idx files, for predictions.

Pixels are those of evaluation; see image_files.py. What cannot be read takes its place among them.
"""

import collections
import itertools
import os
import stat
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Deque, Generator, Iterator, List, NamedTuple, Optional, Tuple, Union

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.datasets import file_pattern
from estimator_train.errors import UserError
from estimator_train.inputs import idx_images, image_files


class Image(NamedTuple):
  """An image.

  Attributes:
    name: the file's path; `:` and its number from 0 on follow where the file has several.
    pixels: [height, width, 1 or 3], grey levels from 0 to 255.
  """
  name: bytes
  pixels: np.ndarray


class Bad(NamedTuple):
  """A file that cannot be read, or not to its end, and why."""
  name: bytes
  reason: str


Example = Union[Image, Bad]


def find(pattern: str) -> Iterator[bytes]:
  """Returns the files of `--input`, in their usual order; the name of a file is no pattern.

  Raises:
    UserError: there is none, or a folder cannot be listed.
  """
  if os.path.isfile(pattern):
    return iter([os.fsencode(pattern)])
  files = file_pattern.walk(pattern)
  first = next(files, None)
  if first is None:
    raise UserError('--input matches no file', '--input=' + pattern,
                    'give one such as \'DATA/**/*.jpeg\', in quotes')
  return itertools.chain([first], files)


def batches(files: Iterator[bytes], image_shape: Tuple[int, int, int], batch_size: int,
            num_parallel_calls: int) -> Generator[List[Example], None, None]:
  """Reads the files, a batch ahead of whoever takes them.

  Args:
    files: image files and idx files, as their content says.
    image_shape: (height, width, channels) that the model takes.
    batch_size: examples of a batch, good and bad; the last may be shorter.
    num_parallel_calls: images decoded at once.

  Yields:
    Lists of examples, in the order of the files.
  """
  decoder = _Decoder(image_shape)
  examples = _examples(files, decoder, image_shape, batch_size, num_parallel_calls)
  try:
    while True:
      batch = list(itertools.islice(examples, batch_size))
      if not batch:
        return
      yield batch
  finally:
    examples.close()  # The threads end first.
    decoder.close()


def stack(images: List[Image]) -> np.ndarray:
  """Returns float32 [B, height, width, C]; C is 1 where all of the images are grey, else 3."""
  channels = max(image.pixels.shape[2] for image in images)
  return np.stack([image.pixels if image.pixels.shape[2] == channels
                   else np.repeat(image.pixels, channels, 2)
                   for image in images]).astype(np.float32, copy=False)


def _examples(files: Iterator[bytes], decoder: '_Decoder', image_shape: Tuple[int, int, int],
              ahead: int, num_threads: int) -> Generator[Example, None, None]:
  height, width, _ = image_shape
  under_way: Deque[Tuple[bytes, Future]] = collections.deque()
  with ThreadPoolExecutor(num_threads) as threads:
    try:
      while True:
        for path in itertools.islice(files, ahead - len(under_way)):
          under_way.append((path, threads.submit(_read, path, decoder)))
        if not under_way:
          return
        path, future = under_way.popleft()
        example = future.result()
        if example is None:
          yield from _of_idx_file(path, height, width)
        else:
          yield example
    finally:
      for _, future in under_way:
        future.cancel()


def _read(path: bytes, decoder: '_Decoder') -> Optional[Example]:
  """Reads and decodes an image; None is an idx file."""
  try:
    if not stat.S_ISREG(os.stat(path).st_mode):
      return Bad(path, 'not a regular file')  # Reading a named pipe would wait for ever.
    with open(path, 'rb') as file:
      if idx_images.begins_like_one(file.peek(4)):
        return None
      return Image(path, decoder.pixels(file.read()))
  except OSError as error:
    return Bad(path, error.strerror or str(error))
  except ValueError as error:
    return Bad(path, str(error))


def _of_idx_file(path: bytes, height: int, width: int) -> Iterator[Example]:
  try:
    for number, pixels in enumerate(idx_images.read(path, height, width)):
      yield Image(path + b':%d' % number, pixels)
  except ValueError as error:
    yield Bad(path, str(error))


class _Decoder:
  """Decodes and resizes images one by one; several threads may share it.

  Args:
    image_shape: (height, width, channels) that the model takes; one channel, or three.
  """

  def __init__(self, image_shape: Tuple[int, int, int]) -> None:
    height, width, channels = image_shape
    with tf.Graph().as_default() as graph:
      contents = tf.placeholder(tf.string, [])
      image = tf.image.decode_jpeg(contents)
      # Transparency, of grey or in colour, is left away.
      image = tf.cond(tf.equal(tf.shape(image)[2] % 2, 1), lambda: image,
                      lambda: tf.image.decode_jpeg(contents, channels=3))
      pixels = image_files.resize(image, height, width)
      if channels == 1:
        pixels = tf.cond(tf.equal(tf.shape(pixels)[2], 1), lambda: pixels,
                         lambda: tf.image.rgb_to_grayscale(pixels))
    self._session = tf.Session(graph=graph, config=tf.ConfigProto(device_count={'GPU': 0}))
    self._fetch = self._session.make_callable(pixels, [contents])

  def pixels(self, contents: bytes) -> np.ndarray:
    """Returns float32 [height, width, 1 or 3]; raises a ValueError that says why not."""
    try:
      return self._fetch(contents)
    except tf.errors.OpError as error:
      raise ValueError(error.message.splitlines()[0].strip()) from error

  def close(self) -> None:
    self._session.close()
