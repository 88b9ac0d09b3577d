"""`mnist_practical`: the practical network of the multi-worker write-up."""

from typing import Tuple

import tensorflow.compat.v1 as tf


def build(image_shape: Tuple[int, int, int], num_classes: int) -> tf.keras.Model:
  """A 3x3 convolution of 32, pooling and a dense layer of 64.

  Args:
    image_shape: (height, width, channels).
    num_classes: the number of outputs.

  Returns:
    An uncompiled model: float32 [B, height, width, channels] to logits [B, num_classes].
  """
  layers = tf.keras.layers
  return tf.keras.Sequential([
      layers.Conv2D(32, 3, activation='relu', input_shape=image_shape),
      layers.MaxPooling2D(2),
      layers.Flatten(),
      layers.Dense(64, activation='relu'),
      layers.Dense(num_classes),
  ])
