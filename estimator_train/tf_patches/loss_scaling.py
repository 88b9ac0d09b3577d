"""Scales the loss, so that its gradients do not vanish in float16."""

import functools
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf
from tensorflow.python.keras import backend


class LossScalingOptimizer(tf.keras.optimizers.Optimizer):
  """An optimizer that computes the gradients of a scaled loss, and divides them by the scale.

  float16 cannot represent values below 6e-8, and many gradients are smaller. The loss scale is
  TensorFlow's DynamicLossScale. It starts at 2^15, doubles after 2,000 steps with finite gradients
  in a row, and halves after a step in which a gradient on any replica is not finite. Such a step
  does not update the weights. All replicas and workers decide by the sums of their gradients, which
  are computed in every step. The global step also counts steps without an update, so that it stays
  proportional to the number of examples.

  Defect: TensorFlow's own LossScaleOptimizer
  (tensorflow_core/python/keras/mixed_precision/experimental/loss_scale_optimizer.py:47) changes the
  names of the variables of the optimizer that it wraps, and lacks `get_config`. Symptom: a run
  cannot resume with another `--dtype`, and the optimizer of a checkpoint cannot be compared.

  Args:
    optimizer: the optimizer that applies the gradients.
  """

  def __init__(self, optimizer: tf.keras.optimizers.Optimizer) -> None:
    super().__init__(optimizer.get_config()['name'])
    self.optimizer = optimizer

  @property
  def iterations(self) -> tf.Variable:
    return self.optimizer.iterations

  @iterations.setter
  def iterations(self, variable: tf.Variable) -> None:
    self.optimizer.iterations = variable

  def get_updates(self, loss: tf.Tensor, params: Sequence[tf.Variable]) -> List[tf.Operation]:
    # The variables of the scale must be in the graph of the training, but not in the loop of
    # gradient accumulation, which calls get_gradients. The scale is therefore made here.
    self._scale = _LossScale()
    for weight in self._scale._weights.values():
      backend.track_variable(weight)  # Makes Keras's session initialize it.
    return list(super().get_updates(loss, params))

  def get_gradients(self, loss: tf.Tensor, params: Sequence[tf.Variable]) -> List[tf.Tensor]:
    factor = self._scale()
    # Sparse gradients stay sparse, because Keras's momentum changes only their rows.
    return [_change_values(gradient, lambda values: values / factor)
            for gradient in self.optimizer.get_gradients(loss * factor, params)]

  def apply_gradients(self, grads_and_vars: Sequence[Tuple[tf.Tensor, tf.Variable]],
                      name: Optional[str] = None) -> tf.Operation:
    pairs = [(gradient, variable) for gradient, variable in grads_and_vars if gradient is not None]
    variables, optimizer = [variable for _, variable in pairs], self.optimizer
    # The variables are made here, because the tf.cond of _apply_if_finite would change their names.
    with backend.name_scope(self._name):
      with tf.init_scope():
        optimizer._create_hypers()
        optimizer._create_slots(variables)
      apply_state = optimizer._prepare(variables)
    return tf.distribute.get_replica_context().merge_call(
        functools.partial(self._apply_if_finite, apply_state=apply_state), args=(pairs,))

  def _apply_if_finite(self, strategy: tf.distribute.Strategy,
                       grads_and_vars: Sequence[Tuple[Any, tf.Variable]],
                       apply_state: Any) -> tf.Operation:
    """Updates the loss scale and, if the gradients of all replicas are finite, the weights.

    Args:
      apply_state: the return value of `_prepare` of the optimizer.
    """
    variables = [variable for _, variable in grads_and_vars]
    # All replicas and workers have the same sums, and therefore decide alike. A sum is finite only
    # if the gradients of all replicas are finite.
    sums = strategy.extended.batch_reduce_to(tf.distribute.ReduceOp.SUM, grads_and_vars)
    first_copies = [strategy.experimental_local_results(total)[0] for total in sums]
    is_finite = tf.reduce_all([tf.reduce_all(tf.is_finite(getattr(total, 'values', total)))
                               for total in first_copies])

    def update_weights() -> tf.Operation:
      return self.optimizer._distributed_apply(
          _LocalUpdates(strategy), list(zip(sums, variables)), name=None, apply_state=apply_state)

    def skip_update() -> tf.Operation:
      return strategy.group(self.iterations.assign_add(1))

    return tf.group(tf.cond(is_finite, update_weights, skip_update),
                    self._scale.update_after_step(is_finite))

  def get_config(self) -> Dict[str, Any]:
    return {'name': self._name}


def _change_values(gradient: Any, change: Callable[[tf.Tensor], tf.Tensor]) -> Any:
  if isinstance(gradient, tf.IndexedSlices):
    return tf.IndexedSlices(change(gradient.values), gradient.indices, gradient.dense_shape)
  return None if gradient is None else change(gradient)


class _LossScale(tf.train.experimental.DynamicLossScale):
  """A DynamicLossScale whose caller decides whether the gradients are finite.

  No defect: `DynamicLossScale.update` takes the gradients of each replica, and exchanges the
  decision between all replicas. The caller has already decided by the sums of the gradients.
  """

  def update_after_step(self, is_finite: tf.Tensor) -> tf.Operation:
    """Returns the operation that updates the scale after a step.

    Args:
      is_finite: whether the gradients of the step are finite. Must be equal on all replicas.
    """
    scale, good_steps = self(), self._num_good_steps + 1
    is_raised = tf.logical_and(is_finite, good_steps >= self.increment_period)
    raised = tf.where(tf.is_finite(scale * self.multiplier), scale * self.multiplier, scale)
    new_scale = tf.where(is_finite, tf.where(is_raised, raised, scale),
                         tf.maximum(scale / self.multiplier, 1))
    return tf.group(
        self._current_loss_scale.assign(new_scale),
        self._num_good_steps.assign(tf.where(
            tf.logical_and(is_finite, tf.logical_not(is_raised)), good_steps, 0)))


class _LocalUpdates:
  """The part of a strategy with which `_distributed_apply` of an optimizer applies known sums.

  Defect: `_distributed_apply` sums the gradients of all replicas itself
  (tensorflow_core/python/keras/optimizer_v2/optimizer_v2.py:443), also in a branch of a tf.cond. No
  operation that communicates may be in a branch, because the other workers wait for this operation
  if they take another branch. This class has no method that communicates.
  """

  def __init__(self, strategy: tf.distribute.Strategy) -> None:
    self.extended = self
    self.update = strategy.extended.update
    self.colocate_vars_with = strategy.extended.colocate_vars_with

  def batch_reduce_to(self, unused_reduce_op: tf.distribute.ReduceOp,
                      sums_and_vars: Sequence[Tuple[Any, tf.Variable]]) -> List[Any]:
    return [total for total, _ in sums_and_vars]
