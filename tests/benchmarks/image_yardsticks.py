"""The least work of an input from JPEG images, as what the inputs are compared with."""

from typing import Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.data import decoding
from estimator_train.data.source import InputFn
from estimator_train.system import machine

_CHUNK_SIZE = 64


def make_decoding_from_memory(contents: Sequence[bytes], image_size: Tuple[int, int],
                              batch_size: int) -> InputFn:
  """Makes an input that decodes images from memory at full scale, and resizes one channel.

  It uses the operations, the threads and the prefetching of the package, and reads no file. As many
  images are decoded at a time as there are cores; the package has further ones wait for a thread.

  Args:
    contents: the contents of the image files.
    image_size: (height, width).
    batch_size: images of a batch, float32 [B, height, width, 1].
  """
  all_contents = np.array(contents, object)

  def look_up(numbers: np.ndarray) -> np.ndarray:
    return all_contents[numbers % len(all_contents)]

  def load(content: tf.Tensor) -> tf.Tensor:
    return decoding.resize(decoding.decode(tf.reshape(content, []))[:, :, :1], *image_size)

  return lambda: (
      tf.data.Dataset.range(2 ** 60).batch(_CHUNK_SIZE)
      .map(lambda numbers: tf.numpy_function(look_up, [numbers], tf.string))
      .map(lambda some: tf.reshape(some, [_CHUNK_SIZE])).apply(tf.data.experimental.unbatch())
      .apply(tf.data.experimental.map_and_batch(
          load, batch_size, num_parallel_calls=machine.available_cores())).prefetch(2))
