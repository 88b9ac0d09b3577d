"""Makes the optimizers of `--optimizer`, and applies weight decay."""

import functools
import re
from typing import Any, Dict, List, Union

import tensorflow.compat.v1 as tf

from estimator_train.settings.flags import OPTIMIZERS
from estimator_train.tf_patches.keras import nested_layers

# Keras's names of biases, normalization parameters and slopes of PReLU. He et al. 2015
# (arXiv:1502.01852, section 2.1) do not decay the slopes of PReLU either.
_UNDECAYED_NAME = re.compile(r'(alpha|beta|bias|gamma)(_\d+)?')
LearningRate = Union[float, tf.keras.optimizers.schedules.LearningRateSchedule]


def make_optimizer(name: str, learning_rate: LearningRate) -> tf.keras.optimizers.Optimizer:
  """Makes the optimizer that `--optimizer` names.

  Each optimizer has a different name in Keras, by which checkpoints identify it.

  Args:
    name: a key of OPTIMIZERS in settings/flags.py.
  """
  options = dict(OPTIMIZERS[name])
  class_name = options.pop('class')
  optimizer_class = (_OPTIMIZERS_OF_PACKAGE.get(class_name)
                     or getattr(tf.keras.optimizers, class_name))
  return optimizer_class(learning_rate, **options)


class AdamW(tf.keras.optimizers.Adam):
  """Adam with decoupled weight decay (Loshchilov and Hutter 2019, arXiv:1711.05101, algorithm 2).

  Each step also multiplies each weight for which _is_kernel is True by 1 - rate * `weight_decay`,
  where the rate is the learning rate.

  Args:
    name: the name in checkpoints.
  """

  def __init__(self, learning_rate: LearningRate = 0.001, weight_decay: float = 0.,
               name: str = 'AdamW', **options: Any) -> None:
    super().__init__(learning_rate, name=name, **options)
    self.weight_decay = weight_decay

  def _resource_apply_dense(self, grad: tf.Tensor, var: tf.Variable,
                            apply_state: Any = None) -> tf.Operation:
    with tf.control_dependencies([self._decay(grad, var)]):
      return super()._resource_apply_dense(grad, var, apply_state)

  def _resource_apply_sparse(self, grad: tf.Tensor, var: tf.Variable, indices: tf.Tensor,
                             apply_state: Any = None) -> tf.Operation:
    with tf.control_dependencies([self._decay(grad, var)]):
      return super()._resource_apply_sparse(grad, var, indices, apply_state)

  def _decay(self, grad: tf.Tensor, var: tf.Variable) -> tf.Operation:
    if not self.weight_decay or not _is_kernel(var):
      return tf.no_op()
    with tf.control_dependencies([grad]):  # The gradient must use the weight before the decay.
      return var.assign_sub(self._decayed_lr(var.dtype.base_dtype) * self.weight_decay * var,
                            use_locking=self._use_locking)

  def get_config(self) -> Dict[str, Any]:
    return dict(super().get_config(), weight_decay=self.weight_decay)


class Lars(tf.keras.optimizers.SGD):
  """LARS: SGD with momentum and a learning rate per weight (You et al. 2017, arXiv:1708.03888).

  See algorithm 1 of the paper. The learning rate of a weight is the product of the global learning
  rate, `trust_coefficient`, and the ratio of the norm of the weight to the norm of its gradient.
  Biases and normalization parameters do not decay, and use the global learning rate; see
  _is_kernel. A weight whose norm is 0 also uses the global learning rate.

  Args:
    name: the name in checkpoints.
  """

  def __init__(self, learning_rate: LearningRate = 0.01, momentum: float = 0.9,
               weight_decay: float = 0., trust_coefficient: float = 0.001, name: str = 'Lars',
               **options: Any) -> None:
    super().__init__(learning_rate, momentum, name=name, **options)
    self.weight_decay = weight_decay
    self.trust_coefficient = trust_coefficient

  def _resource_apply_dense(self, grad: tf.Tensor, var: tf.Variable,
                            apply_state: Any = None) -> tf.Operation:
    if _is_kernel(var):
      norm = tf.norm(var)
      ratio = tf.where(norm > 0, self.trust_coefficient * tf.math.divide_no_nan(
          norm, tf.norm(grad) + self.weight_decay * norm), tf.ones_like(norm))
      grad = ratio * (grad + self.weight_decay * var)
    return super()._resource_apply_dense(grad, var, apply_state)

  def _resource_apply_sparse(self, grad: tf.Tensor, var: tf.Variable, indices: tf.Tensor,
                             apply_state: Any = None) -> tf.Operation:
    return self._resource_apply_dense(_to_dense(grad, var, indices), var, apply_state)

  def get_config(self) -> Dict[str, Any]:
    return dict(super().get_config(), weight_decay=self.weight_decay,
                trust_coefficient=self.trust_coefficient)


class Lamb(tf.keras.optimizers.Optimizer):
  """LAMB, which scales Adam's update of each variable to the norm of the variable.

  See You et al. 2019, arXiv:1904.00962, algorithm 2, with the identity as the function phi. The
  update of a variable whose norm is 0 is not scaled. As in the LAMB of TensorFlow Addons, ALBERT
  and NVIDIA's BERT, the updates of biases and normalization parameters are not scaled either, and
  these variables do not decay; see _is_kernel. The reason is that a bias starts at 0, so that its
  norm after the first update is about the learning rate. Scaling would multiply its later updates
  by this small norm.

  Args:
    beta_1: the decay of the mean of the gradients.
    beta_2: the decay of the mean of the squared gradients.
    epsilon: is added to the root of the mean of the squared gradients.
    name: the name in checkpoints.
  """

  def __init__(self, learning_rate: LearningRate = 0.001, beta_1: float = 0.9,
               beta_2: float = 0.999, epsilon: float = 1e-6, weight_decay: float = 0.,
               name: str = 'Lamb', **options: Any) -> None:
    super().__init__(name, **options)
    self._set_hyper('learning_rate', options.get('lr', learning_rate))
    self._set_hyper('beta_1', beta_1)
    self._set_hyper('beta_2', beta_2)
    self.epsilon = epsilon
    self.weight_decay = weight_decay

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
    if _is_kernel(var):
      update += self.weight_decay * var
      norm, update_norm = tf.norm(var), tf.norm(update)
      update *= tf.where(norm > 0, tf.math.divide_no_nan(norm, update_norm), tf.ones_like(norm))
    return var.assign_sub(self._decayed_lr(dtype) * update, use_locking=self._use_locking)

  def _resource_apply_sparse(self, grad: tf.Tensor, var: tf.Variable,
                             indices: tf.Tensor) -> tf.Operation:
    # The moments of all rows change, as with a dense gradient.
    return self._resource_apply_dense(_to_dense(grad, var, indices), var)

  def get_config(self) -> Dict[str, Any]:
    return dict(super().get_config(), epsilon=self.epsilon, weight_decay=self.weight_decay, **{
        name: self._serialize_hyperparameter(name)
        for name in ('learning_rate', 'beta_1', 'beta_2')})


def _is_kernel(variable: tf.Variable) -> bool:
  """Returns whether a weight is a kernel or an embedding instead of a bias or a scale.

  Kernels and embeddings have two or more dimensions. So do some biases and scales, for example in
  GRU(reset_after=True), LocallyConnected2D and LayerNormalization over several axes. The function
  recognizes these by the names that Keras gives them.
  """
  # The copies of a weight on other replicas are called NAME/replica_1 and so on.
  name = variable.name.partition(':')[0].split('/replica_')[0].rpartition('/')[2]
  return bool(variable.shape.ndims > 1) and not _UNDECAYED_NAME.fullmatch(name)


def _to_dense(grad: tf.Tensor, variable: tf.Variable, indices: tf.Tensor) -> tf.Tensor:
  return tf.convert_to_tensor(
      tf.IndexedSlices(grad, indices, tf.shape(variable, out_type=indices.dtype)))


_OPTIMIZERS_OF_PACKAGE = {'AdamW': AdamW, 'Lars': Lars, 'Lamb': Lamb}
tf.keras.utils.get_custom_objects().update(_OPTIMIZERS_OF_PACKAGE)  # To load compiled models.


# The attributes of Keras layers that contain a kernel, and those that contain its regularizer.
_KERNEL_REGULARIZERS = {'kernel': 'kernel_regularizer', 'depthwise_kernel': 'depthwise_regularizer',
                        'pointwise_kernel': 'pointwise_regularizer'}


def add_weight_decay(model: tf.keras.Model, optimizer: tf.keras.optimizers.Optimizer,
                  factor: float) -> None:
  """Adds weight decay to the optimizer or, if it cannot decay weights, to the loss.

  The loss then contains `factor` / 2 times the sum of the squared kernels. Frozen layers, and
  kernels that already have a regularizer, are omitted.

  Args:
    optimizer: the return value of make_optimizer.
    factor: the value of `--weight_decay`.
  """
  if type(optimizer) in _OPTIMIZERS_OF_PACKAGE.values():
    optimizer.weight_decay = factor
    return
  for layer in nested_layers(model):
    for kernel_name, regularizer_name in _KERNEL_REGULARIZERS.items():
      kernel = vars(layer).get(kernel_name)
      if kernel is not None and layer.trainable_weights and (
          regularizer_name in vars(layer) and vars(layer)[regularizer_name] is None):
        regularizer = tf.keras.regularizers.l2(factor / 2)
        setattr(layer, regularizer_name, regularizer)  # Part of the configuration of the layer.
        layer.add_loss(functools.partial(regularizer, kernel))
