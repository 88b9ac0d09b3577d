"""Mixins of an optimizer that change or record its gradients and updates.

compiling.compile_model chooses them, in the order in which they must be applied. Loss scaling,
which needs private names of TensorFlow, is in tf_patches/loss_scaling.py.
"""

import contextlib
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf

from estimator_train.checkpoints.restoring import AVERAGE_SLOT
from estimator_train.model import observation
from estimator_train.tf_patches.optimizers import (
  add_base_classes,
  divide_by_replicas,
  gradients_to_add,
  sum_over_replicas,
)

Feature = Tuple[type, Dict[str, Any]]  # A mixin of this module, and the values of its attributes.


def add_features(optimizer: Any, features: Sequence[Feature]) -> None:
  """Adds mixins to an optimizer of Keras or of `tf.train`.

  Args:
    features: the first one is the outermost: its methods call those of the second one.
  """
  add_base_classes(optimizer, first=[mixin for mixin, _ in features], **{
      name: value for _, attributes in features for name, value in attributes.items()})


class GradientNorm:
  """Registers the norm of the gradient over the global batch, for the hooks.

  The norm is that of the gradient without loss scaling, after any clipping, because
  `apply_gradients` receives this gradient.
  """

  def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
    grads_and_vars = list(grads_and_vars)
    result = super().apply_gradients(grads_and_vars, *args, **kwargs)  # type: ignore[misc]
    # This merge_call must come second. At its first merge_call, a replica waits while the next one
    # builds its model: operations that are added before would change its dropout masks.
    tf.distribute.get_replica_context().merge_call(
        _add_norm_of_sum, args=([pair for pair in gradients_to_add(self, grads_and_vars)
                                 if pair[0] is not None],))
    return result


def _add_norm_of_sum(strategy: tf.distribute.Strategy, grads_and_vars: Any) -> None:
  # The optimizer computes the same sums, but does not return them.
  sums = [strategy.experimental_local_results(gradient)
          for gradient in strategy.extended.batch_reduce_to(
              tf.distribute.ReduceOp.SUM, grads_and_vars)]
  # A collective operation completes only if all replicas run it. The norm uses the sums on the
  # first replica, so fetching the norm must also run the operations of the other replicas.
  with tf.control_dependencies([tf.convert_to_tensor(copy) for copies in sums
                                for copy in copies[1:]]):
    observation.add_gradient_norm(tf.global_norm([
        tf.cast(copies[0], tf.float32) for copies in sums]))


class GlobalNormClipping:
  """Scales gradients down whose global norm exceeds `max_norm`.

  The norm is that of all gradients together, summed over all replicas and workers, without the
  factor of loss scaling: this mixin must be outside loss scaling. An infinite norm makes all
  gradients nan, so that loss scaling skips the step. Keras's `clipnorm` limits the norm of each
  gradient by itself, and on each replica.
  """
  max_norm: float

  def get_gradients(self, loss: tf.Tensor, params: Sequence[Any]) -> List[Any]:
    gradients = super().get_gradients(loss, params)  # type: ignore[misc]
    sums = [_sum_duplicate_rows(gradient)
            for gradient in sum_over_replicas(list(zip(gradients, params)))]
    clipped, _ = tf.clip_by_global_norm(sums, self.max_norm)
    # The optimizer adds the gradients of all replicas.
    return [gradient for gradient, _ in divide_by_replicas(zip(clipped, params))]


def _sum_duplicate_rows(gradient: Any) -> Any:
  """Adds the rows of a sparse gradient that have the same index."""
  if not isinstance(gradient, tf.IndexedSlices):
    return gradient
  indices, positions = tf.unique(gradient.indices)
  rows = tf.unsorted_segment_sum(gradient.values, positions, tf.size(indices))
  return tf.IndexedSlices(rows, indices, gradient.dense_shape)


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


class GradientAccumulation:
  """Uses the mean of the gradients of `accumulation_steps` micro-batches.

  A loop computes the micro-batches one after the other, so that only the activations of one of them
  are in memory.

  Attributes:
    make_micro_batch: builds the micro-batch of an index, in the loop. In each graph, the copy of
      the optimizer gets this attribute.
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


class WeightAveraging:
  """Keeps an exponential moving average of each weight with the decay `ema_decay`, as a slot.

  `tf.train.ExponentialMovingAverage` does not support distribution strategies, which replicate
  slots. With an initial value of 0, the average after n updates would be too small by the factor
  1 - decay^n, as the moments of Adam (Kingma and Ba 2015, arXiv:1412.6980, section 3). The slot is
  the corrected average: the first one equals the weight.
  """
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


class BackboneRate:
  """Multiplies the learning rate by `backbone_factor`, except for the weights `head_names`."""
  backbone_factor: float
  head_names: Set[str]
  _factor = 1.

  def _decayed_lr(self, dtype: tf.DType) -> tf.Tensor:
    return self._factor * super()._decayed_lr(dtype)  # type: ignore[misc]

  @contextlib.contextmanager
  def _use_rate_of(self, weight: tf.Variable) -> Iterator[None]:
    # The copies of a weight on other replicas are called NAME/replica_1 and so on.
    is_head = weight.op.name.split('/replica_')[0] in self.head_names
    self._factor = 1. if is_head else self.backbone_factor
    yield
    self._factor = 1.

  # `apply_state`, which has one learning rate for all weights, is not passed on. The optimizer then
  # calls _decayed_lr for each weight.
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
