"""Which loss a model has, and how to have it per example."""

from typing import Any, Callable, Sequence

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


def balanced_weights(class_counts: Sequence[int]) -> Sequence[float]:
  """Returns the weight of each class with which all count alike, and an average example is 1."""
  return [sum(class_counts) / (len(class_counts) * count) for count in class_counts]


class ClassWeighted(tf.keras.losses.Loss):
  """A loss in which each example counts by its class.

  Args:
    loss: the loss of an example.
    weights: one a class.
  """

  def __init__(self, loss: Loss, weights: Sequence[float]) -> None:
    super().__init__()
    self.loss = loss
    self.weights = list(weights)

  def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
    weights = tf.constant(self.weights, tf.float32)
    if takes_class_numbers(self.loss):
      of_example = tf.gather(weights, tf.cast(tf.reshape(y_true, [-1]), tf.int32))
    else:
      of_example = tf.reduce_sum(y_true * weights, -1)
    return of_example * per_example(self.loss)(y_true, y_pred)


def per_example(loss: Loss) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
  """Returns the loss as a function of (labels, outputs) to float [B]."""
  if isinstance(loss, tf.keras.losses.Loss):
    return type(loss).from_config(
        dict(loss.get_config(), reduction=tf.losses.Reduction.NONE))
  return tf.keras.losses.get(loss)
