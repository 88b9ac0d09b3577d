"""`mnist_deep`: the network of mnist_8gpu.flags, with batch norm and dropout."""

from typing import Tuple

import tensorflow.compat.v1 as tf


def build(image_shape: Tuple[int, int, int], num_classes: int) -> tf.keras.Model:
  """Builds three 3x3 convolutions, batch norm, pooling, dropout, and a dense layer of 128 units.

  Batch norm computes its statistics over the batch of each replica, and each replica draws its own
  dropout masks. The trained weights therefore depend slightly on the number of replicas.

  Args:
    image_shape: (height, width, channels).
    num_classes: the number of outputs.

  Returns:
    An uncompiled model from float32 [B, height, width, channels] to probabilities [B, num_classes].
  """
  layers = tf.keras.layers
  return tf.keras.Sequential([
      layers.Conv2D(32, 3, activation='relu', input_shape=image_shape),
      layers.Conv2D(256, 3, activation='relu'),
      layers.BatchNormalization(),
      layers.Conv2D(128, 3, activation='relu'),
      layers.MaxPooling2D(2),
      layers.Dropout(0.25),
      layers.Flatten(),
      layers.Dense(128, activation='relu'),
      layers.Dropout(0.5),
      layers.Dense(num_classes, activation='softmax'),
  ])
