"""Which loss a model has, and how to have it per example."""

from typing import Any, Callable

import tensorflow.compat.v1 as tf

Loss = Any  # What Keras takes: a name, a function or a tf.keras.losses.Loss.


def default_loss(model: tf.keras.Model) -> Loss:
  """Returns the categorical cross-entropy that fits the model's last layer."""
  is_probabilities = model.outputs[0].op.type == 'Softmax'
  return tf.keras.losses.CategoricalCrossentropy(from_logits=not is_probabilities)


def takes_class_numbers(loss: Loss) -> bool:
  """Whether the loss takes labels as class numbers [B], not one-hot [B, num_classes]."""
  name = loss if isinstance(loss, str) else getattr(loss, '__name__', type(loss).__name__)
  return name.lower().startswith('sparse')


def per_example(loss: Loss) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
  """Returns the loss as a function of (labels, outputs) to float [B]."""
  if isinstance(loss, tf.keras.losses.Loss):
    return type(loss).from_config(
        dict(loss.get_config(), reduction=tf.losses.Reduction.NONE))
  return tf.keras.losses.get(loss)
