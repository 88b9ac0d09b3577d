"""Which loss a model has, and how to have it per example."""

import copy
from typing import Any, Callable, Sequence

import tensorflow.compat.v1 as tf

Loss = Any  # What Keras takes: a name, a function or a tf.keras.losses.Loss.


def default_loss(model: tf.keras.Model) -> Loss:
  """Returns the categorical cross-entropy that fits the model's last layer."""
  is_probabilities = model.outputs[0].op.type == 'Softmax'
  return tf.keras.losses.CategoricalCrossentropy(from_logits=not is_probabilities)


def of(model: tf.keras.Model) -> Loss:
  """Returns the loss of a compiled model of one output; Keras takes it in a list or dict too."""
  loss = model.loss
  if isinstance(loss, dict):
    loss = list(loss.values())
  return loss[0] if isinstance(loss, (list, tuple)) and len(loss) == 1 else loss


def takes_class_numbers(loss: Loss) -> bool:
  """Whether the loss takes labels as class numbers [B], not one-hot [B, num_classes]."""
  return _name(loss).startswith('sparse')


def _name(loss: Loss) -> str:
  name = loss if isinstance(loss, str) else getattr(loss, '__name__', type(loss).__name__)
  return name.lower()


def is_of_classes(loss: Loss) -> bool:
  """Whether the loss is a categorical cross-entropy, so that the outputs are of one class each."""
  return _name(loss).replace('_', '').endswith('categoricalcrossentropy')


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
  """Returns the loss as a function of (labels, outputs) to float [B].

  Of a loss that is a mean over the batch, each example gets that mean.
  """
  if isinstance(loss, tf.keras.losses.Loss):
    function = copy.copy(loss)
    function.reduction = tf.losses.Reduction.NONE
  else:
    function = tf.keras.losses.get(loss)

  def of_examples(labels: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    values = function(labels, outputs)
    if values.shape.ndims == 0:
      return tf.fill(tf.shape(outputs)[:1], values)
    return tf.reduce_mean(values, list(range(1, values.shape.ndims)))

  return of_examples
