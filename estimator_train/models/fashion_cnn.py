"""`fashion_cnn`: the small convolutional network of fashion_mnist.flags."""

from typing import Tuple

import tensorflow.compat.v1 as tf


def build(image_shape: Tuple[int, int, int], num_classes: int) -> tf.keras.Model:
  """Builds three 3x3 convolutions, two 2x2 max poolings, a dense layer of 64 units and the output.

  The model has 93,322 parameters for images of 28x28x1 and 10 classes.

  Args:
    image_shape: (height, width, channels), at least 18 pixels high and wide.
    num_classes: the number of outputs.

  Returns:
    An uncompiled model from float32 [B, height, width, channels] to probabilities [B, num_classes].
  """
  layers = tf.keras.layers
  return tf.keras.Sequential([
      layers.Conv2D(32, 3, activation='relu', input_shape=image_shape),
      layers.MaxPooling2D(2),
      layers.Conv2D(64, 3, activation='relu'),
      layers.MaxPooling2D(2),
      layers.Conv2D(64, 3, activation='relu'),
      layers.Flatten(),
      layers.Dense(64, activation='relu'),
      layers.Dense(num_classes, activation='softmax'),
  ])
