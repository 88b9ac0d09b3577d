"""The models whose gradients engines.py exchanges."""

from typing import Any, Callable, Dict, Tuple

import tensorflow.compat.v1 as tf

from estimator_train.models import fashion_cnn


def dense_80mb(image_shape: Tuple[int, ...], num_classes: int) -> tf.keras.Model:
  """A network with 20 million weights, whose gradients have 80 MB."""
  layers = tf.keras.layers
  return tf.keras.Sequential([
      layers.Flatten(input_shape=image_shape),
      layers.Dense(4096, activation='relu'),
      layers.Dense(4096, activation='relu'),
      layers.Dense(num_classes, activation='softmax'),
  ])


MODELS: Dict[str, Callable[..., Any]] = {
    'dense_80mb': dense_80mb, 'fashion_cnn': fashion_cnn.build}
