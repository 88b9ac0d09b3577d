"""The models by name; TensorFlow is imported only when one is built."""

import importlib
from typing import Any, Tuple

NAMES = ('fashion_cnn',)


def build(name: str, image_shape: Tuple[int, int, int], num_classes: int) -> Any:
  """Builds the Keras model of that name.

  Args:
    name: one of NAMES; the module of that name beside this one has the function `build`.
    image_shape: (height, width, channels) of an image.
    num_classes: the number of outputs.

  Returns:
    An uncompiled tf.keras.Model: float32 [B, height, width, channels] to float32 [B, num_classes].
  """
  module = importlib.import_module('estimator_train.models.' + name)
  return module.build(image_shape, num_classes)
