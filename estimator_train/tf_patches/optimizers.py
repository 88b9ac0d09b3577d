"""Makes optimizers and gradients usable by Estimators, replicas and micro-batches."""

from typing import Any, Callable, List, NamedTuple, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf
from tensorflow.python.keras import optimizers
from tensorflow.python.keras.optimizer_v2 import optimizer_v2

_METHODS = {'get_gradients', 'get_updates', 'compute_gradients', 'apply_gradients'}
AVERAGE_SLOT = 'average'


def register_schedules(*schedules: type) -> None:
  """Registers classes of learning rate schedules, so that compiled models with them can be loaded.

  Defect: an optimizer is created again from its configuration, without custom objects
  (tensorflow_core/python/keras/optimizer_v2/optimizer_v2.py:717). Symptom: `ValueError: Unknown
  decay: Cosine` from load_model.
  """
  for schedule in schedules:
    tf.keras.utils.get_custom_objects()[schedule.__name__] = schedule


def add_optimizer_base_class(optimizer: Any, base_class: type) -> None:
  """Adds a base class to the optimizer of a compiled model, by replacing the optimizer's class.

  No defect: a wrapper around the optimizer would have variables of other names. The new class has
  the name of the old class, because names of variables may contain this name.

  Args:
    optimizer: an optimizer of Keras or of `tf.train`.
    base_class: a class whose methods override the methods of the optimizer.
  """
  if isinstance(optimizer, optimizers.TFOptimizer):  # Keras wraps optimizers of `tf.train`.
    optimizer = optimizer.optimizer
  if not isinstance(optimizer, base_class):
    _replace_class(optimizer, base_class, type(optimizer))


def hyperparameter_names(optimizer: Any) -> Set[str]:
  """Returns the names of the hyperparameters of one or several optimizers, such as `beta_1`.

  Private API: `_hyper` (tensorflow_core/python/keras/optimizer_v2/optimizer_v2.py:254), because
  there is no public one.
  """
  if isinstance(optimizer, (list, tuple)):
    return {name for member in optimizer for name in hyperparameter_names(member)}
  inner = getattr(optimizer, 'optimizer', None)  # LossScalingOptimizer wraps another optimizer.
  return {*getattr(optimizer, '_hyper', ()),
          *(hyperparameter_names(inner) if inner is not None else ())}


def sum_gradients_before_changes(optimizer: Any) -> None:
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
      add_last_base_class(optimizer, _SummingOptimizer)
    return
  innermost = with_inner_optimizers(optimizer)[-1]
  if _overrides(optimizer) or innermost is not optimizer:
    add_last_base_class(innermost, _SummingTrainOptimizer)


def _overrides(optimizer: Any) -> bool:
  """Returns whether a class of an optimizer, other than the base class, handles gradients."""
  return any(_METHODS & set(vars(base)) for base in type(optimizer).__mro__
             if base not in (optimizer_v2.OptimizerV2, tf.train.Optimizer)
             and not base.__module__.startswith('estimator_train.'))


def with_inner_optimizers(optimizer: Any) -> List[Any]:
  """Returns an optimizer of `tf.train`, the optimizer in it, and so on."""
  for value in vars(optimizer).values():
    if isinstance(value, tf.train.Optimizer):
      return [optimizer, *with_inner_optimizers(value)]
  return [optimizer]


def add_last_base_class(optimizer: Any, base_class: type) -> None:
  """Adds a base class whose methods the methods of the optimizer's classes call by `super()`."""
  if not isinstance(optimizer, base_class):
    _replace_class(optimizer, type(optimizer), base_class)


def _replace_class(optimizer: Any, *base_classes: type, **attributes: Any) -> None:
  """Gives an optimizer a new class, which has the name of its class."""
  optimizer.__class__ = type(type(optimizer).__name__, base_classes, attributes)


def gradients_to_add(optimizer: Any, grads_and_vars: Sequence[Any]) -> Sequence[Any]:
  """Returns gradients of a replica whose sum over all replicas is the gradient of the update.

  See sum_gradients_before_changes, after which each replica has the sum already.

  Args:
    optimizer: the optimizer.
    grads_and_vars: the argument of its method `apply_gradients`.
  """
  is_sum = any(isinstance(each, (_SummingOptimizer, _SummingTrainOptimizer))
               for each in with_inner_optimizers(optimizer))
  return _divided_by_replicas(grads_and_vars) if is_sum else grads_and_vars


class _SummingOptimizer(optimizer_v2.OptimizerV2):
  """A base class of an optimizer of Keras; see sum_gradients_before_changes."""

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


def clip_global_norm(optimizer: tf.keras.optimizers.Optimizer, max_norm: float) -> None:
  """Makes an optimizer of Keras scale gradients down whose global norm exceeds `max_norm`.

  The norm is that of all gradients together, summed over all replicas and workers, without the
  factor of loss scaling. An infinite norm makes all gradients nan, so that loss scaling skips the
  step.

  Defect: Keras has `clipnorm`, which limits the norm of each gradient by itself and on each replica
  (tensorflow_core/python/keras/optimizer_v2/optimizer_v2.py:398).
  """
  # Not the optimizer in a LossScalingOptimizer, whose gradients are scaled.
  _replace_class(optimizer, _GlobalNormClipping, type(optimizer), max_norm=max_norm)


class _GlobalNormClipping:
  """A base class of an optimizer; see clip_global_norm."""
  max_norm: float

  def get_gradients(self, loss: tf.Tensor, params: Sequence[Any]) -> List[Any]:
    gradients = super().get_gradients(loss, params)  # type: ignore[misc]
    sums = [_sum_duplicate_rows(gradient)
            for gradient in _sum_over_replicas(list(zip(gradients, params)))]
    clipped, _ = tf.clip_by_global_norm(sums, self.max_norm)
    # The optimizer adds the gradients of all replicas.
    return [gradient for gradient, _ in _divided_by_replicas(zip(clipped, params))]


def average_weights(optimizer: tf.keras.optimizers.Optimizer, decay: float) -> None:
  """Makes an optimizer of Keras keep an exponential moving average of each weight, as a slot.

  No defect: `tf.train.ExponentialMovingAverage` does not support distribution strategies, which
  replicate slots. With an initial value of 0, the average after n updates would be too small by
  the factor 1 - decay^n, as the moments of Adam (Kingma and Ba 2015, arXiv:1412.6980, section 3).
  The slot is the corrected average: the first one equals the weight.

  Args:
    optimizer: the optimizer itself, not a LossScalingOptimizer around it.
    decay: the decay of the average.
  """
  _replace_class(optimizer, _WeightAveraging, type(optimizer), ema_decay=decay)


class _WeightAveraging:
  """A base class of an optimizer; see average_weights."""
  ema_decay: float
  _num_averaged: Any = None

  def _create_slots(self, var_list: Sequence[Any]) -> None:
    super()._create_slots(var_list)  # type: ignore[misc]
    for variable in var_list:
      self.add_slot(variable, AVERAGE_SLOT)  # type: ignore[attr-defined]
    # Not the global step, which also counts the steps that loss scaling skips.
    if self._num_averaged is None:
      self._num_averaged = self.add_weight(  # type: ignore[attr-defined]
          'num_averaged', (), tf.int64, 'zeros', trainable=False,
          aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)

  def _distributed_apply(self, distribution: Any, grads_and_vars: Any, *args: Any,
                         **options: Any) -> tf.Operation:
    grads_and_vars = list(grads_and_vars)
    update = super()._distributed_apply(  # type: ignore[misc]
        distribution, grads_and_vars, *args, **options)

    def add_to_average(weight: tf.Variable, rate: tf.Tensor) -> tf.Operation:
      average = self.get_slot(weight, AVERAGE_SLOT)  # type: ignore[attr-defined]
      return average.assign_add(tf.cast(rate, average.dtype.base_dtype) * (weight - average))

    with tf.control_dependencies([update]):
      count = tf.cast(self._num_averaged + 1, tf.float64)
      rate = (1 - self.ema_decay) / (1 - tf.pow(tf.constant(self.ema_decay, tf.float64), count))
      updates = [distribution.extended.update(variable, add_to_average, args=(rate,))
                 for _, variable in grads_and_vars]
    with tf.control_dependencies(updates):
      return self._num_averaged.assign_add(1).op


class MicroBatch(NamedTuple):
  """What the model computes of a part of the batch of a replica.

  Attributes:
    loss: the loss, from which tf.gradients computes the gradients.
    mean_loss: the value of the loss.
    outputs: the first output of the model, [B / N, ...].
    updates: operations that update statistics, such as those of batch normalization.
  """
  loss: tf.Tensor
  mean_loss: tf.Tensor
  outputs: tf.Tensor
  updates: Sequence[Any]


def accumulate_gradients(optimizer: tf.keras.optimizers.Optimizer, steps: int) -> None:
  """Makes an optimizer of Keras use the mean of the gradients of several micro-batches.

  No defect: Keras has no gradient accumulation. A loop computes the micro-batches one after the
  other, so that only the activations of one of them are in memory.

  Args:
    optimizer: the optimizer. In each graph, the caller sets the attribute `make_micro_batch` of its
      copy, see _GradientAccumulation.
    steps: the number of micro-batches.
  """
  _replace_class(optimizer, _GradientAccumulation, type(optimizer), accumulation_steps=steps)


def accumulates_gradients(optimizer: Any) -> bool:
  """Returns whether accumulate_gradients has changed the optimizer, or the original of a copy."""
  return isinstance(optimizer, _GradientAccumulation)


class _GradientAccumulation:
  """A base class of an optimizer; see accumulate_gradients.

  Attributes:
    make_micro_batch: a function that builds the micro-batch of an index, in the loop.
    loss, outputs: the mean loss and the first output of the whole batch, after get_gradients.
  """
  accumulation_steps: int
  make_micro_batch: Callable[[tf.Tensor], MicroBatch]

  def get_gradients(self, loss: tf.Tensor, params: Sequence[Any]) -> List[Any]:
    compute_gradients = super().get_gradients  # type: ignore[misc]
    is_sparse: List[bool] = []

    def add_micro_batch(index: tf.Tensor, mean_loss: tf.Tensor, outputs: tf.TensorArray,
                        sums: List[tf.Tensor], rows: List[tf.TensorArray]) -> Tuple[Any, ...]:
      micro_batch = self.make_micro_batch(index)
      gradients = compute_gradients(micro_batch.loss / self.accumulation_steps, params)
      is_sparse[:] = [isinstance(gradient, tf.IndexedSlices) for gradient in gradients]
      with tf.control_dependencies(micro_batch.updates):
        return (index + 1, mean_loss + micro_batch.mean_loss / self.accumulation_steps,
                outputs.write(index, micro_batch.outputs),
                [total + gradient for total, gradient in zip(sums, gradients)],
                [written.write(index, tf.cast(gradient.indices, tf.int64)) if sparse else written
                 for written, gradient, sparse in zip(rows, gradients, is_sparse)])

    def make_array(dtype: tf.DType) -> tf.TensorArray:
      return tf.TensorArray(dtype, self.accumulation_steps, infer_shape=False)

    _, self.loss, outputs, sums, rows = tf.while_loop(
        lambda index, *unused: index < self.accumulation_steps, add_micro_batch,
        (0, tf.zeros_like(loss), make_array(tf.float32),
         [tf.zeros(param.shape, param.dtype.base_dtype) for param in params],
         [make_array(tf.int64) for _ in params]), parallel_iterations=1, back_prop=False)
    self.outputs = outputs.concat()
    # Keras's momentum changes only the rows of a sparse gradient.
    return [_select_rows(total, tf.unique(written.concat()).y) if sparse else total
            for total, written, sparse in zip(sums, rows, is_sparse)]


def _select_rows(gradient: tf.Tensor, rows: tf.Tensor) -> tf.IndexedSlices:
  return tf.IndexedSlices(tf.gather(gradient, rows), rows, tf.shape(gradient, out_type=tf.int64))


class _SummingTrainOptimizer(tf.train.Optimizer):
  """A base class of an optimizer of `tf.train`; see sum_gradients_before_changes."""

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


def _sum_duplicate_rows(gradient: Any) -> Any:
  """Adds the rows of a sparse gradient that have the same index."""
  if not isinstance(gradient, tf.IndexedSlices):
    return gradient
  indices, positions = tf.unique(gradient.indices)
  rows = tf.unsorted_segment_sum(gradient.values, positions, tf.size(indices))
  return tf.IndexedSlices(rows, indices, gradient.dense_shape)


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
