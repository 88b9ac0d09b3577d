"""Examines the loss of a model, smooths its labels and weights its classes."""

import copy
from typing import Any, Callable, List, Optional, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.tf_patches import compiled_models

Loss = Any  # What Keras accepts as a loss: a name, a function or a tf.keras.losses.Loss.
_PROBED_BATCH_SIZE, _PROBED_CLASSES = 5, 7


def default_loss(model: tf.keras.Model) -> Loss:
  """Returns the categorical cross-entropy that fits the model's last layer."""
  has_softmax = model.outputs[0].op.type == 'Softmax'
  return tf.keras.losses.CategoricalCrossentropy(from_logits=not has_softmax)


def get_loss(model: tf.keras.Model) -> Loss:
  """Returns the loss of a compiled model, or a list if the model has several losses."""
  loss = model.loss
  if isinstance(loss, dict):
    loss = list(loss.values())
  return loss[0] if isinstance(loss, (list, tuple)) and len(loss) == 1 else loss


def class_probabilities(model: tf.keras.Model, outputs: tf.Tensor) -> tf.Tensor:
  """Returns the outputs of a compiled model if they are probabilities, or else their softmax.

  The option `from_logits` of the loss determines whether the outputs are logits. If the loss lacks
  this option, the outputs count as probabilities in two cases: the last operation is a softmax, or
  the loss is a cross-entropy function or the name of one.

  Args:
    outputs: the outputs of the model, float [B, num_classes].
  """
  loss = get_loss(model)
  config = loss.get_config() if isinstance(loss, tf.keras.losses.Loss) else {}
  name = loss if isinstance(loss, str) else getattr(loss, '__name__', '')
  are_probabilities = model.outputs[0].op.type == 'Softmax' or name.endswith('crossentropy')
  return tf.nn.softmax(outputs) if config.get('from_logits', not are_probabilities) else outputs


def model_takes_class_indices(model: tf.keras.Model) -> bool:
  """Returns whether the only loss of a compiled model takes class indices [B]."""
  return takes_class_indices(get_loss(model), model.outputs[0].shape.as_list()[-1])


def takes_class_indices(loss: Loss, num_classes: Optional[int]) -> bool:
  """Returns whether the loss takes class indices [B] instead of one-hot labels [B, num_classes].

  The function calls the loss with labels of both shapes. If the loss accepts both shapes or
  neither, its name decides: the names of Keras's losses of class indices begin with `sparse`.
  """
  if loss is None or isinstance(loss, (list, tuple)):
    return False
  # The batch size must differ from 1 and from the number of classes.
  batch_size = _PROBED_BATCH_SIZE + (num_classes == _PROBED_BATCH_SIZE)
  outputs_shape = (batch_size, num_classes or _PROBED_CLASSES)
  # The name of a tf.keras.losses.Loss is that of its class.
  name = loss if isinstance(loss, str) else getattr(loss, '__name__', type(loss).__name__)
  is_called_sparse = name.lower().startswith('sparse')
  if _accepts_shapes(loss, outputs_shape, outputs_shape):
    return is_called_sparse and _accepts_shapes(loss, (batch_size,), outputs_shape)
  return is_called_sparse or any(
      _accepts_shapes(loss, shape, outputs_shape) for shape in ((batch_size,), (batch_size, 1)))


def _accepts_shapes(loss: Loss, labels_shape: Tuple[int, ...],
                    outputs_shape: Tuple[int, int]) -> bool:
  """Returns whether the loss can be computed for labels and outputs with these shapes."""
  for dtype in (tf.float32, tf.int64):
    with tf.Graph().as_default():
      try:
        make_per_example_loss(loss)(tf.placeholder(dtype, labels_shape),
                                    tf.placeholder(tf.float32, outputs_shape))
        return True
      except Exception:  # The loss may be the user's code.
        continue
  return False


def is_keras_crossentropy(loss: Loss) -> bool:
  """Returns whether the loss is one of Keras's own categorical cross-entropies.

  A user's loss is not recognized by its name, because Keras's metrics may not fit it.
  """
  keras_functions = (tf.keras.losses.categorical_crossentropy,
                     tf.keras.losses.sparse_categorical_crossentropy)
  keras_classes = (tf.keras.losses.CategoricalCrossentropy,
                   tf.keras.losses.SparseCategoricalCrossentropy)
  return (loss in keras_functions or type(loss) in keras_classes
          or loss in ('categorical_crossentropy', 'sparse_categorical_crossentropy'))


def names_of_losses_that_are_no_means(model: tf.keras.Model) -> List[str]:
  """Returns the names of those losses of a compiled model that are not means over the examples.

  N replicas divide each loss by N, as if it were a mean. A sum over the batch therefore becomes 1/N
  of the sum, and a function of the whole batch becomes the mean of N values. The function does not
  recognize all such losses, because it only examines the last operations of a loss.
  """
  return compiled_models.names_of_scalar_losses(model) + [
      loss.op.name for loss in model.get_losses_for(model.inputs) if _is_sum(loss)]


def _is_sum(loss: tf.Tensor) -> bool:
  """Returns whether a loss is a sum over the batch, possibly multiplied by numbers."""
  operation = loss.op
  if operation.type == 'Sum':
    axes = tf.get_static_value(operation.inputs[1])
    return axes is None or 0 in axes.reshape(-1) or _is_sum(operation.inputs[0])
  if operation.type == 'RealDiv' and operation.inputs[1].op.type != 'Const':
    return False  # The divisor is probably the batch size, as for an activity regularizer.
  return operation.type == 'L2Loss' or (
      operation.type in ('Add', 'AddN', 'AddV2', 'Identity', 'Mul', 'Neg', 'RealDiv', 'Sub')
      and any(map(_is_sum, operation.inputs)))


def balanced_class_weights(class_counts: Sequence[int]) -> Sequence[float]:
  """Returns class weights that balance the classes. Their mean over all examples is 1.

  A class without examples has the weight 0, and does not change the weights of the other classes.
  """
  mean = sum(class_counts) / np.count_nonzero(class_counts)
  return [mean / count if count else 0. for count in class_counts]


class ClassWeightedLoss(tf.keras.losses.Loss):
  """A loss that multiplies the loss of each example by the weight of the example's class.

  Args:
    class_weights: the weight of each class, in the order of the class indices.
  """

  def __init__(self, loss: Loss, class_weights: Sequence[float]) -> None:
    super().__init__()
    self.loss = loss
    self.class_weights = list(class_weights)

  def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
    class_weights = tf.constant(self.class_weights, tf.float32)
    if takes_class_indices(self.loss, len(self.class_weights)):
      example_weights = tf.gather(class_weights, tf.cast(tf.reshape(y_true, [-1]), tf.int32))
    else:
      example_weights = tf.reduce_sum(y_true * class_weights, -1)
    return example_weights * make_per_example_loss(self.loss)(y_true, y_pred)


class SmoothedLoss(tf.keras.losses.Loss):
  """A loss that distributes a fraction of each one-hot label equally over all classes."""

  def __init__(self, loss: Loss, fraction: float) -> None:
    super().__init__()
    self.loss, self.fraction = loss, fraction

  def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
    num_classes = tf.cast(tf.shape(y_true)[-1], y_true.dtype)
    smoothed = y_true * (1 - self.fraction) + self.fraction / num_classes
    return make_per_example_loss(self.loss)(smoothed, y_pred)


def make_per_example_loss(loss: Loss) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
  """Makes a function that returns the loss of each example, float [B], for labels and outputs.

  If the loss returns only one number per batch, this number is the loss of each example.
  """
  if isinstance(loss, tf.keras.losses.Loss):
    function = copy.copy(loss)
    function.reduction = tf.losses.Reduction.NONE
  else:
    function = tf.keras.losses.get(loss)

  def compute_losses(labels: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    values = function(labels, outputs)
    # The rank is unknown if the labels come from a tf.py_func.
    means = tf.reduce_mean(values, tf.range(1, tf.maximum(tf.rank(values), 1)))
    return tf.broadcast_to(means, tf.shape(outputs)[:1])

  return compute_losses
