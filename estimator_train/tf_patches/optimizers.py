"""Makes optimizers work with Estimators and replicas."""

from typing import Any, List, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf
from tensorflow.python.keras import optimizers
from tensorflow.python.keras.optimizer_v2 import optimizer_v2

_GRADIENT_METHODS = {'get_gradients', 'get_updates', 'compute_gradients', 'apply_gradients'}


def register_schedules(*schedules: type) -> None:
  """Registers classes of learning rate schedules, so that compiled models with them can be loaded.

  Defect: an optimizer is created again from its configuration, without custom objects
  (tensorflow_core/python/keras/optimizer_v2/optimizer_v2.py:717). Symptom: `ValueError: Unknown
  decay: Cosine` from load_model.
  """
  for schedule in schedules:
    tf.keras.utils.get_custom_objects()[schedule.__name__] = schedule


def add_base_classes(optimizer: Any, first: Sequence[type] = (), last: Sequence[type] = (),
                     **attributes: Any) -> None:
  """Replaces the class of an optimizer by a class that has further base classes.

  No defect: the variables of a wrapper around the optimizer would have other names. The new class
  has the name of the old class, because names of variables may contain this name.

  Args:
    optimizer: an optimizer of Keras or of `tf.train`.
    first: the classes whose methods override those of the optimizer.
    last: the classes whose methods the optimizer's methods call by `super()`.
    **attributes: attributes of the new class.
  """
  if isinstance(optimizer, optimizers.TFOptimizer):  # Keras wraps optimizers of `tf.train`.
    optimizer = optimizer.optimizer
  first, last = ([base for base in bases if not isinstance(optimizer, base)]
                 for bases in (first, last))
  if first or last:
    optimizer.__class__ = type(type(optimizer).__name__, (*first, type(optimizer), *last),
                               attributes)


def hyperparameter_names(optimizer: Any) -> Set[str]:
  """Returns the names of the hyperparameters of one or several optimizers, such as `beta_1`.

  Private API: `_hyper` (tensorflow_core/python/keras/optimizer_v2/optimizer_v2.py:254), because
  no public attribute has the names.
  """
  if isinstance(optimizer, (list, tuple)):
    return {name for member in optimizer for name in hyperparameter_names(member)}
  inner = getattr(optimizer, 'optimizer', None)  # LossScalingOptimizer wraps another optimizer.
  return {*getattr(optimizer, '_hyper', ()),
          *(hyperparameter_names(inner) if inner is not None else ())}


def sum_gradients_before_changes(optimizer: Any) -> None:
  """Sums gradients over all replicas before an optimizer changes them, for example by clipping.

  Defect: the optimizer of each replica changes the gradients of this replica, which are those of
  1/N of the loss. The sum is computed last (tensorflow_core/python/keras/optimizer_v2/
  optimizer_v2.py:473, training/optimizer.py:672). Symptom: with clipping, N replicas do not train
  like one.

  This function makes the optimizer compute the sum first. `apply_gradients` then divides the
  changed gradients by the number of replicas, because TensorFlow sums them again.

  Args:
    optimizer: an optimizer of Keras, or Keras's wrapper of an optimizer of `tf.train`. If it does
      not change gradients, this function does nothing.
  """
  if isinstance(optimizer, optimizers.TFOptimizer):
    optimizer = optimizer.optimizer
  if isinstance(optimizer, optimizer_v2.OptimizerV2):
    if hasattr(optimizer, 'clipnorm') or hasattr(optimizer, 'clipvalue') or (
        _handles_gradients(optimizer)):
      add_base_classes(optimizer, last=[_SummingOptimizer])
    return
  innermost = nested_optimizers(optimizer)[-1]
  if _handles_gradients(optimizer) or innermost is not optimizer:
    add_base_classes(innermost, last=[_SummingTrainOptimizer])


def _handles_gradients(optimizer: Any) -> bool:
  """Returns whether a class other than TensorFlow's base class overrides _GRADIENT_METHODS."""
  return any(_GRADIENT_METHODS & set(vars(base)) for base in type(optimizer).__mro__
             if base not in (optimizer_v2.OptimizerV2, tf.train.Optimizer)
             and not base.__module__.startswith('estimator_train.'))


def nested_optimizers(optimizer: Any) -> List[Any]:
  """Returns an optimizer of `tf.train`, the optimizer that it wraps, and so on."""
  for value in vars(optimizer).values():
    if isinstance(value, tf.train.Optimizer):
      return [optimizer, *nested_optimizers(value)]
  return [optimizer]


def gradients_for_sum(optimizer: Any, grads_and_vars: Sequence[Any]) -> Sequence[Any]:
  """Returns the gradients of a replica, so that their sum over all replicas is that of the update.

  After sum_gradients_before_changes, each replica already has the sum. This function divides it.

  Args:
    grads_and_vars: the argument of `apply_gradients` of the optimizer.
  """
  is_sum = any(isinstance(inner, (_SummingOptimizer, _SummingTrainOptimizer))
               for inner in nested_optimizers(optimizer))
  return divide_by_replicas(grads_and_vars) if is_sum else grads_and_vars


class _SummingOptimizer(optimizer_v2.OptimizerV2):
  """A base class of an optimizer of Keras; see sum_gradients_before_changes."""

  def get_gradients(self, loss: tf.Tensor, params: Sequence[Any]) -> List[Any]:
    clipping = {name: self.__dict__.pop(name) for name in ('clipnorm', 'clipvalue')
                if name in self.__dict__}
    gradients = super().get_gradients(loss, params)
    self.__dict__.update(clipping)
    gradients = sum_over_replicas(list(zip(gradients, params)))
    if 'clipnorm' in clipping:
      gradients = [tf.clip_by_norm(gradient, clipping['clipnorm']) for gradient in gradients]
    if 'clipvalue' in clipping:
      gradients = [tf.clip_by_value(gradient, -clipping['clipvalue'], clipping['clipvalue'])
                   for gradient in gradients]
    return gradients

  def apply_gradients(self, grads_and_vars: Any, name: Any = None) -> Any:
    return super().apply_gradients(divide_by_replicas(grads_and_vars), name)


class _SummingTrainOptimizer(tf.train.Optimizer):
  """A base class of an optimizer of `tf.train`; see sum_gradients_before_changes."""

  def compute_gradients(self, *args: Any, **options: Any) -> List[Tuple[Any, Any]]:
    pairs = super().compute_gradients(*args, **options)
    return list(zip(sum_over_replicas(pairs), [variable for _, variable in pairs]))

  def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: Any = None) -> Any:
    return super().apply_gradients(divide_by_replicas(grads_and_vars), global_step, name)


def sum_over_replicas(grads_and_vars: Sequence[Tuple[Any, Any]]) -> List[Any]:
  """Returns the sums of the gradients over all replicas; None where there is no gradient."""
  if tf.distribute.get_strategy().num_replicas_in_sync == 1:
    return [gradient for gradient, _ in grads_and_vars]
  sums = iter(tf.distribute.get_replica_context().merge_call(
      lambda strategy, pairs: strategy.extended.batch_reduce_to(tf.distribute.ReduceOp.SUM, pairs),
      args=([pair for pair in grads_and_vars if pair[0] is not None],)))
  return [gradient if gradient is None else next(sums) for gradient, _ in grads_and_vars]


def divide_by_replicas(grads_and_vars: Any) -> List[Tuple[Any, Any]]:
  factor = 1 / tf.distribute.get_strategy().num_replicas_in_sync
  return [(_multiply(gradient, factor), variable) for gradient, variable in grads_and_vars]


def _multiply(gradient: Any, factor: float) -> Any:
  """Multiplies a gradient, which may be None or sparse, by a factor."""
  if gradient is None or factor == 1:
    return gradient
  if isinstance(gradient, tf.IndexedSlices):
    return tf.IndexedSlices(gradient.values * factor, gradient.indices, gradient.dense_shape)
  return gradient * factor
