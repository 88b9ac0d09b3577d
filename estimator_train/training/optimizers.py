"""Makes the Keras optimizer that `--optimizer` names, and adds weight decay to a model."""

from typing import Any, Dict, List, Union

import tensorflow.compat.v1 as tf

from estimator_train.settings.choices import OPTIMIZERS
from estimator_train.tf_patches.configurations import nested_layers

LearningRate = Union[float, tf.keras.optimizers.schedules.LearningRateSchedule]


def make_optimizer(name: str, learning_rate: LearningRate) -> tf.keras.optimizers.Optimizer:
  """Makes the optimizer that `--optimizer` names.

  Each optimizer has a unique Keras name, because checkpoints identify optimizers by their names.

  Args:
    name: one of choices.OPTIMIZERS.
    learning_rate: the learning rate, or a schedule of the learning rate.

  Raises:
    ValueError: there is no such optimizer.
  """
  if name not in OPTIMIZERS:
    raise ValueError('no optimizer is implemented for {!r}'.format(name))
  options = dict(OPTIMIZERS[name])
  class_name = options.pop('class')
  optimizer = _OWN_CLASSES.get(class_name) or getattr(tf.keras.optimizers, class_name)
  return optimizer(learning_rate, **options)


class Lamb(tf.keras.optimizers.Optimizer):
  """LAMB, which scales Adam's update of each variable to the norm of the variable.

  See You et al. 2019, arXiv:1904.00962, algorithm 2, with the norm itself as the function phi. The
  update is not scaled if its norm or that of the variable is 0.

  Args:
    learning_rate: the learning rate, or a schedule of the learning rate.
    beta_1: the decay of the mean of the gradients.
    beta_2: the decay of the mean of the squared gradients.
    epsilon: added to the root of the mean of the squared gradients.
    name: the name in checkpoints.
  """

  def __init__(self, learning_rate: LearningRate = 0.001, beta_1: float = 0.9,
               beta_2: float = 0.999, epsilon: float = 1e-6, name: str = 'Lamb',
               **options: Any) -> None:
    super().__init__(name, **options)
    self._set_hyper('learning_rate', options.get('lr', learning_rate))
    self._set_hyper('beta_1', beta_1)
    self._set_hyper('beta_2', beta_2)
    self.epsilon = epsilon

  def _create_slots(self, var_list: List[tf.Variable]) -> None:
    for variable in var_list:
      self.add_slot(variable, 'm')
    for variable in var_list:
      self.add_slot(variable, 'v')

  def _resource_apply_dense(self, grad: tf.Tensor, var: tf.Variable) -> tf.Operation:
    dtype = var.dtype.base_dtype
    beta_1, beta_2 = (self._get_hyper(name, dtype) for name in ('beta_1', 'beta_2'))
    step = tf.cast(self.iterations + 1, dtype)
    mean, squares = self.get_slot(var, 'm'), self.get_slot(var, 'v')
    new_mean = mean.assign(beta_1 * mean + (1 - beta_1) * grad, use_locking=self._use_locking)
    new_squares = squares.assign(beta_2 * squares + (1 - beta_2) * tf.square(grad),
                                 use_locking=self._use_locking)
    update = (new_mean / (1 - tf.pow(beta_1, step))) / (
        tf.sqrt(new_squares / (1 - tf.pow(beta_2, step))) + self.epsilon)
    norm, update_norm = tf.norm(var), tf.norm(update)
    ratio = tf.where(tf.logical_and(norm > 0, update_norm > 0),
                     norm / tf.where(update_norm > 0, update_norm, tf.ones_like(update_norm)),
                     tf.ones_like(norm))
    return var.assign_sub(self._decayed_lr(dtype) * ratio * update, use_locking=self._use_locking)

  def _resource_apply_sparse(self, grad: tf.Tensor, var: tf.Variable,
                             indices: tf.Tensor) -> tf.Operation:
    # The moments of all rows change, as with a dense gradient.
    dense = tf.IndexedSlices(grad, indices, tf.shape(var, out_type=indices.dtype))
    return self._resource_apply_dense(tf.convert_to_tensor(dense), var)

  def get_config(self) -> Dict[str, Any]:
    return dict(super().get_config(), epsilon=self.epsilon, **{
        name: self._serialize_hyperparameter(name)
        for name in ('learning_rate', 'beta_1', 'beta_2')})


_OWN_CLASSES = {'Lamb': Lamb}
tf.keras.utils.get_custom_objects().update(_OWN_CLASSES)  # A copy of a model makes its optimizer.


# The attributes of Keras layers that hold the regularizer of a kernel.
_KERNEL_REGULARIZERS = ('kernel_regularizer', 'depthwise_regularizer', 'pointwise_regularizer')


def decay_kernels(model: tf.keras.Model, factor: float) -> None:
  """Adds `factor` times half of the sum of the squared kernels to the loss of copies of the model.

  Biases, the parameters of batch normalization, frozen layers and kernels that already have a
  regularizer are left out. The copies that model_to_estimator makes contain the regularizers,
  because Keras copies layers by their configurations; the loss of the model itself is unchanged.

  Args:
    model: the model.
    factor: the value of `--weight_decay`.
  """
  for layer in nested_layers(model):
    for name in _KERNEL_REGULARIZERS:
      if name in vars(layer) and layer.trainable_weights and getattr(layer, name) is None:
        setattr(layer, name, tf.keras.regularizers.l2(factor / 2))
