"""An `input_fn` that costs nothing: one random batch, over and over."""

from typing import Callable, Optional, Tuple

import tensorflow.compat.v1 as tf


def make_input_fn(image_shape: Tuple[int, int, int],
                  num_classes: int,
                  one_hot: bool,
                  batch_size: int,
                  seed: int,
                  num_batches: Optional[int] = None) -> Callable[[], tf.data.Dataset]:
  """Makes an `input_fn` of the same random batch.

  Args:
    image_shape: (height, width, channels).
    num_classes: the length of a one-hot label.
    one_hot: whether labels are one-hot, not class numbers.
    batch_size: per replica.
    seed: of the images and labels.
    num_batches: how many times; None: without end.

  Returns:
    A function that returns a dataset of (float32 [batch_size, height, width, channels] in [0, 1),
    float32 [batch_size, num_classes] or int64 [batch_size]).
  """
  def input_fn() -> tf.data.Dataset:
    images = tf.random.stateless_uniform((batch_size,) + image_shape, [seed, 0])
    classes = tf.random.stateless_uniform([batch_size], [seed, 1], 0, num_classes, tf.int64)
    labels = tf.one_hot(classes, num_classes) if one_hot else classes
    return tf.data.Dataset.from_tensors((images, labels)).repeat(num_batches)

  return input_fn
