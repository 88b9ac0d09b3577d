"""Sums the gradients of all replicas before an optimizer changes them."""

from typing import Any, List, Sequence, Tuple

import tensorflow.compat.v1 as tf
from tensorflow.python.keras import optimizers
from tensorflow.python.keras.optimizer_v2 import optimizer_v2

_METHODS = {'get_gradients', 'get_updates', 'compute_gradients', 'apply_gradients'}


def sum_before_changes(optimizer: Any) -> None:
  """Makes an optimizer that changes gradients, for example by clipping, change their global sums.

  Defect: each replica calls the methods of the optimizer with its own gradients, of 1/N of the
  loss, and the sum is computed last (tensorflow_core/python/keras/optimizer_v2/optimizer_v2.py:473,
  training/optimizer.py:672). Symptom: with clipping, N replicas do not train like one.

  The sum is computed first instead. `apply_gradients` divides the changed gradients by the number
  of replicas, because TensorFlow sums them again.

  Args:
    optimizer: an optimizer of Keras, or Keras's wrapper of an optimizer of `tf.train`. An optimizer
      that uses the gradients unchanged remains as it is.
  """
  if isinstance(optimizer, optimizers.TFOptimizer):
    optimizer = optimizer.optimizer
  if isinstance(optimizer, optimizer_v2.OptimizerV2):
    if hasattr(optimizer, 'clipnorm') or hasattr(optimizer, 'clipvalue') or _overrides(optimizer):
      _add_last_base_class(optimizer, _SummingOptimizer)
    return
  innermost = _with_inner_optimizers(optimizer)[-1]
  if _overrides(optimizer) or innermost is not optimizer:
    _add_last_base_class(innermost, _SummingTrainOptimizer)


def _overrides(optimizer: Any) -> bool:
  """Returns whether a class of an optimizer, other than the base class, handles gradients."""
  return any(_METHODS & set(vars(base)) for base in type(optimizer).__mro__
             if base not in (optimizer_v2.OptimizerV2, tf.train.Optimizer)
             and not base.__module__.startswith('estimator_train.'))


def _with_inner_optimizers(optimizer: Any) -> List[Any]:
  """Returns an optimizer of `tf.train`, the optimizer in it, and so on."""
  for value in vars(optimizer).values():
    if isinstance(value, tf.train.Optimizer):
      return [optimizer, *_with_inner_optimizers(value)]
  return [optimizer]


def _add_last_base_class(optimizer: Any, base_class: type) -> None:
  """Adds a base class whose methods the methods of the optimizer's classes call by `super()`."""
  optimizer_class = type(optimizer)
  if not issubclass(optimizer_class, base_class):
    optimizer.__class__ = type(optimizer_class.__name__, (optimizer_class, base_class), {})


class _SummingOptimizer(optimizer_v2.OptimizerV2):
  """A base class of an optimizer of Keras; see sum_before_changes."""

  def get_gradients(self, loss: tf.Tensor, params: Sequence[Any]) -> List[Any]:
    clipping = {name: self.__dict__.pop(name) for name in ('clipnorm', 'clipvalue')
                if name in self.__dict__}
    gradients = super().get_gradients(loss, params)
    self.__dict__.update(clipping)
    gradients = _sum_over_replicas(list(zip(gradients, params)))
    if 'clipnorm' in clipping:
      gradients = [tf.clip_by_norm(gradient, clipping['clipnorm']) for gradient in gradients]
    if 'clipvalue' in clipping:
      gradients = [tf.clip_by_value(gradient, -clipping['clipvalue'], clipping['clipvalue'])
                   for gradient in gradients]
    return gradients

  def apply_gradients(self, grads_and_vars: Any, name: Any = None) -> Any:
    return super().apply_gradients(_divided_by_replicas(grads_and_vars), name)


class _SummingTrainOptimizer(tf.train.Optimizer):
  """A base class of an optimizer of `tf.train`; see sum_before_changes."""

  def compute_gradients(self, *args: Any, **options: Any) -> List[Tuple[Any, Any]]:
    pairs = super().compute_gradients(*args, **options)
    return list(zip(_sum_over_replicas(pairs), [variable for _, variable in pairs]))

  def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: Any = None) -> Any:
    return super().apply_gradients(_divided_by_replicas(grads_and_vars), global_step, name)


def _sum_over_replicas(grads_and_vars: Sequence[Tuple[Any, Any]]) -> List[Any]:
  """Returns the sums of the gradients of all replicas; None where there is no gradient."""
  if tf.distribute.get_strategy().num_replicas_in_sync == 1:
    return [gradient for gradient, _ in grads_and_vars]
  sums = iter(tf.distribute.get_replica_context().merge_call(
      lambda strategy, pairs: strategy.extended.batch_reduce_to(tf.distribute.ReduceOp.SUM, pairs),
      args=([pair for pair in grads_and_vars if pair[0] is not None],)))
  return [gradient if gradient is None else next(sums) for gradient, _ in grads_and_vars]


def _divided_by_replicas(grads_and_vars: Any) -> List[Tuple[Any, Any]]:
  factor = 1 / tf.distribute.get_strategy().num_replicas_in_sync
  return [(_scale(gradient, factor), variable) for gradient, variable in grads_and_vars]


def _scale(gradient: Any, factor: float) -> Any:
  """Multiplies a gradient, which may be None or sparse, by a factor."""
  if gradient is None or factor == 1:
    return gradient
  if isinstance(gradient, tf.IndexedSlices):
    return tf.IndexedSlices(gradient.values * factor, gradient.indices, gradient.dense_shape)
  return gradient * factor
