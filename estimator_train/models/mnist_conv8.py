"""`mnist_conv8`: one convolution with 8 filters, as in Keras's tf.data examples."""

from typing import Tuple

import tensorflow.compat.v1 as tf


def build(image_shape: Tuple[int, int, int], num_classes: int) -> tf.keras.Model:
  """Builds a 3x3 convolution and the output layer.

  Args:
    image_shape: (height, width, channels).
    num_classes: the number of outputs.

  Returns:
    An uncompiled model from float32 [B, height, width, channels] to probabilities [B, num_classes].
  """
  layers = tf.keras.layers
  return tf.keras.Sequential([
      layers.Conv2D(8, 3, padding='same', activation='relu', input_shape=image_shape),
      layers.Flatten(),
      layers.Dense(num_classes, activation='softmax'),
  ])
