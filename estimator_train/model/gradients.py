"""Mixins of an optimizer that change or record its gradients and updates.

compiling.compile_model chooses the mixins and their order. Loss scaling needs private names of
TensorFlow, and is therefore in tf_patches/loss_scaling.py.
"""

import contextlib
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf

from estimator_train.checkpoints.restoring import AVERAGE_SLOT
from estimator_train.model import observation
from estimator_train.tf_patches.optimizers import (
  add_base_classes,
  divide_by_replicas,
  gradients_for_sum,
  sum_over_replicas,
)

# A mixin class of this module, and the values of its attributes.
MixinAndAttributes = Tuple[type, Dict[str, Any]]


def add_mixins(optimizer: Any, mixins: Sequence[MixinAndAttributes]) -> None:
  """Adds mixins to an optimizer of Keras or of `tf.train`.

  Args:
    mixins: the outermost mixin first. Its methods call the methods of the second mixin.
  """
  add_base_classes(optimizer, first=[mixin_class for mixin_class, _ in mixins], **{
      name: value for _, attributes in mixins for name, value in attributes.items()})


class GradientNormRecording:
  """Records the norm of the gradient over the global batch, for the hooks.

  The gradient is the one that `apply_gradients` gets: clipped, and without the factor of loss
  scaling.
  """

  def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
    grads_and_vars = list(grads_and_vars)
    result = super().apply_gradients(grads_and_vars, *args, **kwargs)  # type: ignore[misc]
    # This must not be the first merge_call of a replica. While a replica waits in its first
    # merge_call, the next replica builds its model, and operations that are added before that
    # would change the dropout masks of the next replica.
    tf.distribute.get_replica_context().merge_call(
        _record_norm_of_sum, args=([pair for pair in gradients_for_sum(self, grads_and_vars)
                                 if pair[0] is not None],))
    return result


def _record_norm_of_sum(strategy: tf.distribute.Strategy, grads_and_vars: Any) -> None:
  # The optimizer computes these sums, too, but does not return them.
  sums = [strategy.experimental_local_results(gradient)
          for gradient in strategy.extended.batch_reduce_to(
              tf.distribute.ReduceOp.SUM, grads_and_vars)]
  # A collective operation completes only if all replicas run it. The norm is computed from the sums
  # on the first replica. The control dependencies make the other replicas compute their sums, too.
  with tf.control_dependencies([tf.convert_to_tensor(copy) for copies in sums
                                for copy in copies[1:]]):
    observation.add_gradient_norm(tf.global_norm([
        tf.cast(copies[0], tf.float32) for copies in sums]))


class GlobalNormClipping:
  """Scales all gradients down if their global norm exceeds `max_norm`.

  The global norm is computed over all gradients together, after they have been summed over all
  replicas and workers. This mixin must be outside of loss scaling, so that it gets gradients
  without the factor of the loss scale. An infinite norm makes all gradients nan, so that loss
  scaling skips the step. Keras's `clipnorm` instead limits the norm of each gradient on each
  replica.
  """
  max_norm: float

  def get_gradients(self, loss: tf.Tensor, params: Sequence[Any]) -> List[Any]:
    gradients = super().get_gradients(loss, params)  # type: ignore[misc]
    sums = [_sum_duplicate_rows(gradient)
            for gradient in sum_over_replicas(list(zip(gradients, params)))]
    clipped, _ = tf.clip_by_global_norm(sums, self.max_norm)
    # Each replica returns an equal part of the clipped sum, because the optimizer adds these parts.
    return [gradient for gradient, _ in divide_by_replicas(zip(clipped, params))]


def _sum_duplicate_rows(gradient: Any) -> Any:
  if not isinstance(gradient, tf.IndexedSlices):
    return gradient
  indices, positions = tf.unique(gradient.indices)
  rows = tf.unsorted_segment_sum(gradient.values, positions, tf.size(indices))
  return tf.IndexedSlices(rows, indices, gradient.dense_shape)


class MicroBatchResult(NamedTuple):
  """What the model computes from a micro-batch, which is a part of the batch of a replica.

  Attributes:
    loss: the loss of the micro-batch, as a tensor from which `tf.gradients` can compute gradients.
    loss_value: the same number, as a tensor from which it cannot.
    outputs: the first output of the model, [B / accumulation_steps, ...].
    updates: operations that update statistics, such as those of batch normalization.
  """
  loss: tf.Tensor
  loss_value: tf.Tensor
  outputs: tf.Tensor
  updates: Sequence[Any]


class GradientAccumulation:
  """Averages the gradients of `accumulation_steps` micro-batches.

  A loop computes one micro-batch after the other, so that only the activations of one micro-batch
  are in memory.

  Attributes:
    compute_micro_batch: adds the operations on the micro-batch with the given index to the loop.
      ModelFn sets this attribute of the optimizer in each graph.
    loss: the mean loss of the batch; exists after get_gradients.
    outputs: the first output of the model for the batch; exists after get_gradients.
  """
  accumulation_steps: int
  compute_micro_batch: Callable[[tf.Tensor], MicroBatchResult]

  def get_gradients(self, loss: tf.Tensor, params: Sequence[Any]) -> List[Any]:
    compute_gradients = super().get_gradients  # type: ignore[misc]
    is_sparse: List[bool] = []

    def add_micro_batch(index: tf.Tensor, loss_value: tf.Tensor, outputs: tf.TensorArray,
                        sums: List[tf.Tensor],
                        row_indices: List[tf.TensorArray]) -> Tuple[Any, ...]:
      result = self.compute_micro_batch(index)
      gradients = compute_gradients(result.loss / self.accumulation_steps, params)
      is_sparse[:] = [isinstance(gradient, tf.IndexedSlices) for gradient in gradients]
      with tf.control_dependencies(result.updates):
        return (index + 1, loss_value + result.loss_value / self.accumulation_steps,
                outputs.write(index, result.outputs),
                [total + gradient for total, gradient in zip(sums, gradients)],
                [indices.write(index, tf.cast(gradient.indices, tf.int64)) if sparse else indices
                 for indices, gradient, sparse in zip(row_indices, gradients, is_sparse)])

    def make_tensor_array(dtype: tf.DType) -> tf.TensorArray:
      return tf.TensorArray(dtype, self.accumulation_steps, infer_shape=False)

    _, self.loss, outputs, sums, row_indices = tf.while_loop(
        lambda index, *unused: index < self.accumulation_steps, add_micro_batch,
        (0, tf.zeros_like(loss), make_tensor_array(tf.float32),
         [tf.zeros(param.shape, param.dtype.base_dtype) for param in params],
         [make_tensor_array(tf.int64) for _ in params]), parallel_iterations=1, back_prop=False)
    self.outputs = outputs.concat()
    # The sum of sparse gradients becomes sparse again. For a sparse gradient, Keras's momentum
    # changes only the rows of the gradient.
    return [_to_sparse(total, tf.unique(indices.concat()).y) if sparse else total
            for total, indices, sparse in zip(sums, row_indices, is_sparse)]


def _to_sparse(gradient: tf.Tensor, row_indices: tf.Tensor) -> tf.IndexedSlices:
  return tf.IndexedSlices(tf.gather(gradient, row_indices), row_indices,
                          tf.shape(gradient, out_type=tf.int64))


class WeightAveraging:
  """Keeps an exponential moving average of each weight with the decay `ema_decay`, as a slot.

  A slot works with distribution strategies, which `tf.train.ExponentialMovingAverage` does not
  support. The slot starts at 0. After n updates, a plain average would therefore be too small by
  the factor 1 - decay^n, like the moments of Adam (Kingma and Ba 2015, arXiv:1412.6980, section 3).
  The slot contains the corrected average. After the first update, it equals the weight.
  """
  ema_decay: float
  _num_updates: Any = None

  def _create_slots(self, var_list: Sequence[Any]) -> None:
    super()._create_slots(var_list)  # type: ignore[misc]
    for variable in var_list:
      self.add_slot(variable, AVERAGE_SLOT)  # type: ignore[attr-defined]
    # The global step cannot be used, because it also counts the steps that loss scaling skips.
    if self._num_updates is None:
      self._num_updates = self.add_weight(  # type: ignore[attr-defined]
          'num_averaged', (), tf.int64, 'zeros', trainable=False,
          aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)

  def _distributed_apply(self, distribution: Any, grads_and_vars: Any, *args: Any,
                         **options: Any) -> tf.Operation:
    grads_and_vars = list(grads_and_vars)
    update = super()._distributed_apply(  # type: ignore[misc]
        distribution, grads_and_vars, *args, **options)

    def update_average(weight: tf.Variable, weight_of_new_value: tf.Tensor) -> tf.Operation:
      average = self.get_slot(weight, AVERAGE_SLOT)  # type: ignore[attr-defined]
      return average.assign_add(
          tf.cast(weight_of_new_value, average.dtype.base_dtype) * (weight - average))

    with tf.control_dependencies([update]):
      count = tf.cast(self._num_updates + 1, tf.float64)
      weight_of_new_value = (1 - self.ema_decay) / (
          1 - tf.pow(tf.constant(self.ema_decay, tf.float64), count))
      updates = [distribution.extended.update(variable, update_average, args=(weight_of_new_value,))
                 for _, variable in grads_and_vars]
    with tf.control_dependencies(updates):
      return self._num_updates.assign_add(1).op


class BackboneRateScaling:
  """Multiplies the learning rate of all weights by `backbone_factor`, except those of the head."""
  backbone_factor: float
  head_weight_names: Set[str]
  _rate_factor = 1.

  def _decayed_lr(self, dtype: tf.DType) -> tf.Tensor:
    return self._rate_factor * super()._decayed_lr(dtype)  # type: ignore[misc]

  @contextlib.contextmanager
  def _use_rate_of(self, weight: tf.Variable) -> Iterator[None]:
    # The copies of a weight on other replicas are called NAME/replica_1 and so on.
    is_head = weight.op.name.split('/replica_')[0] in self.head_weight_names
    self._rate_factor = 1. if is_head else self.backbone_factor
    yield
    self._rate_factor = 1.

  # `apply_state` has one learning rate for all weights. The methods below omit it, so that the
  # optimizer calls _decayed_lr for each weight.
  def _resource_apply_dense(self, grad: tf.Tensor, var: tf.Variable,
                            apply_state: Any = None) -> tf.Operation:
    del apply_state
    with self._use_rate_of(var):
      return super()._resource_apply_dense(grad, var)  # type: ignore[misc]

  def _resource_apply_sparse_duplicate_indices(self, grad: tf.Tensor, var: tf.Variable,
                                               indices: tf.Tensor,
                                               apply_state: Any = None) -> tf.Operation:
    del apply_state
    with self._use_rate_of(var):
      return super()._resource_apply_sparse_duplicate_indices(  # type: ignore[misc]
          grad, var, indices)
