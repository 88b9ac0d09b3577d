"""Scales the loss, so that its gradients do not vanish in float16."""

from typing import Any, Dict, List, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf
from tensorflow.python.keras import backend


class LossScalingOptimizer(tf.keras.optimizers.Optimizer):
  """An optimizer that computes the gradients of a scaled loss, and divides them by the scale.

  float16 cannot represent values below 6e-8, and many gradients are smaller. TensorFlow's
  DynamicLossScale starts at 2^15, doubles after 2,000 steps with finite gradients in a row, and
  halves after a step with a gradient that is not finite on some replica. A step with
  such a gradient does not update the weights. The global step counts this step, too, so that the
  global step stays proportional to the number of examples.

  Defect: TensorFlow's own LossScaleOptimizer
  (tensorflow_core/python/keras/mixed_precision/experimental/loss_scale_optimizer.py:47) lacks
  `get_config` and `from_config`, which model_to_estimator needs to create the optimizer again.
  Symptom: a model with a LossScaleOptimizer cannot be converted to an Estimator.
  LossScaleOptimizer also changes the names of the optimizer's variables, so that a run could not
  resume with another `--dtype`.

  Args:
    optimizer: the optimizer that applies the gradients. The names of this optimizer's variables do
      not change.
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
    # The scale is not made in __init__, because its variables must be in the training graph, and
    # not in get_gradients, which the loop of gradient accumulation calls.
    self._scale = tf.train.experimental.DynamicLossScale()
    for weight in self._scale._weights.values():
      backend.track_variable(weight)  # Makes Keras's session initialize it.
    return list(super().get_updates(loss, params))

  def get_gradients(self, loss: tf.Tensor, params: Sequence[tf.Variable]) -> List[tf.Tensor]:
    factor = self._scale()
    return [None if gradient is None else gradient / factor
            for gradient in self.optimizer.get_gradients(loss * factor, params)]

  def apply_gradients(self, grads_and_vars: Sequence[Tuple[tf.Tensor, tf.Variable]],
                      name: Optional[str] = None) -> tf.Operation:
    pairs = [(gradient, variable) for gradient, variable in grads_and_vars if gradient is not None]
    optimizer = self.optimizer
    # The variables are made here, because their names would be different if they were made in the
    # tf.cond of _apply_if_finite.
    with backend.name_scope(self._name), tf.init_scope():
      optimizer._create_hypers()
      optimizer._create_slots([variable for _, variable in pairs])
    gradients, variables = zip(*pairs)
    # A function passes the variables to _apply_if_finite. If the variables were arguments
    # themselves, call_for_each_replica would replace each variable by its copy on the replica, but
    # the optimizer needs the variable that represents all copies.
    return tf.distribute.get_replica_context().merge_call(
        self._apply_if_finite, args=(gradients, lambda: variables))

  def _apply_if_finite(self, strategy: tf.distribute.Strategy, gradients: Any,
                       variables: Any) -> tf.Operation:
    """Returns the operation that updates the loss scale and, with finite gradients, the weights.

    Args:
      strategy: the strategy. merge_call adds this argument.
      gradients: the gradients of each replica.
      variables: for each replica, a function that returns the variables.
    """
    update_scale, is_finite = self._scale.update(gradients)

    def apply() -> tf.Operation:
      return strategy.group(strategy.extended.call_for_each_replica(
          lambda gradients, variables: self.optimizer.apply_gradients(
              list(zip(gradients, variables()))), args=(gradients, variables)))

    def skip() -> tf.Operation:
      return strategy.group(self.iterations.assign_add(1))

    return tf.group(tf.cond(is_finite, apply, skip), update_scale)

  def get_config(self) -> Dict[str, Any]:
    # The class itself, because optimizers.py changes classes without changing their names.
    return {'name': self._name, 'class': type(self.optimizer),
            'config': self.optimizer.get_config()}

  @classmethod
  def from_config(cls, config: Dict[str, Any],
                  custom_objects: Any = None) -> 'LossScalingOptimizer':
    return cls(config['class'].from_config(dict(config['config'])))
