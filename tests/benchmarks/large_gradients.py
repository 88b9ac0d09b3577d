"""The models whose gradients engines.py exchanges."""

from typing import Any, Callable, Dict, Tuple

import tensorflow.compat.v1 as tf

from estimator_train.model import networks


def dense_80mb(image_shape: Tuple[int, ...], num_classes: int) -> tf.keras.Model:
  """A network with 20 million weights, whose gradients have 80 MB."""
  return _dense(image_shape, num_classes, 4096)


def dense_20mb(image_shape: Tuple[int, ...], num_classes: int) -> tf.keras.Model:
  """A network with 5 million weights."""
  return _dense(image_shape, num_classes, 1870)


def dense_5mb(image_shape: Tuple[int, ...], num_classes: int) -> tf.keras.Model:
  """A network with 1.3 million weights."""
  return _dense(image_shape, num_classes, 790)


def _dense(image_shape: Tuple[int, ...], num_classes: int, units: int) -> tf.keras.Model:
  layers = tf.keras.layers
  return tf.keras.Sequential([
      layers.Flatten(input_shape=image_shape),
      layers.Dense(units, activation='relu'),
      layers.Dense(units, activation='relu'),
      layers.Dense(num_classes, activation='softmax'),
  ])


MODELS: Dict[str, Callable[..., Any]] = {
    'dense_5mb': dense_5mb, 'dense_20mb': dense_20mb, 'dense_80mb': dense_80mb,
    'fashion_cnn': networks.fashion_cnn}
