"""`mnist_practical`: a small network with one convolution and two dense layers.

configs/mnist_multi_worker_practical.flags uses the network. The publication has two examples, which
this package calls the simple form and the practical form.
"""

from typing import Tuple

import tensorflow.compat.v1 as tf


def build(image_shape: Tuple[int, int, int], num_classes: int) -> tf.keras.Model:
  """Builds a 3x3 convolution with 32 filters, pooling and a dense layer of 64 units.

  Args:
    image_shape: (height, width, channels).
    num_classes: the number of outputs.

  Returns:
    An uncompiled model from float32 [B, height, width, channels] to logits [B, num_classes].
  """
  layers = tf.keras.layers
  return tf.keras.Sequential([
      layers.Conv2D(32, 3, activation='relu', input_shape=image_shape),
      layers.MaxPooling2D(2),
      layers.Flatten(),
      layers.Dense(64, activation='relu'),
      layers.Dense(num_classes),
  ])
