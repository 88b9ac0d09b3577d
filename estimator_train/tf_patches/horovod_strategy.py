"""Makes a distribution strategy that exchanges gradients by Horovod."""

from typing import Any, List, Sequence, Tuple

import tensorflow.compat.v1 as tf
from tensorflow.python.distribute import distribute_lib, mirrored_strategy, values


class HorovodStrategy(tf.distribute.Strategy):
  """A strategy with one replica in each process that Horovod connects.

  Not a workaround for a defect: TensorFlow has no public class from which a strategy for several
  processes can be derived. Unlike Horovod's own `DistributedOptimizer`, a strategy also reduces the
  loss, the accuracy and the gradient norm, and works with every optimizer.

  Horovod must have been initialized.

  Args:
    device: the device of this process, such as `/gpu:0`.
  """

  def __init__(self, device: str) -> None:
    distribute_lib.StrategyV1.__init__(self, _Extended(self, device))


class _Extended(mirrored_strategy.MirroredExtended):
  """Implements the strategy: MirroredStrategy on one device, with another all-reduce.

  Keras divides the loss by `_num_replicas_in_sync` (keras/engine/training_utils.py), so the sums of
  the gradients over all processes are those of the mean loss over the global batch.
  """

  def __init__(self, strategy: tf.distribute.Strategy, device: str) -> None:
    super().__init__(strategy, [device], cross_device_ops=_HorovodAllReduce())

  @property
  def _num_replicas_in_sync(self) -> int:
    return int(_horovod().size())

  @property
  def experimental_between_graph(self) -> bool:
    return True

  def _reduce_to(self, reduce_op: tf.distribute.ReduceOp, value: Any, destinations: Any) -> Any:
    # With one device, TensorFlow passes tensors without a wrapper. For the base class, such a value
    # would be the same on all replicas.
    if isinstance(value, tf.Tensor):
      return self._get_cross_device_ops().reduce(reduce_op, value, destinations=destinations)
    return super()._reduce_to(reduce_op, value, destinations)


class _HorovodAllReduce(tf.distribute.CrossDeviceOps):
  """Reduces values over all processes. Each value of a process has one component."""

  @property
  def _num_between_graph_workers(self) -> int:
    return int(_horovod().size())

  def reduce_implementation(self, reduce_op: tf.distribute.ReduceOp, per_replica_value: Any,
                            destinations: Any) -> Any:
    horovod = _horovod()
    operation = horovod.Sum if reduce_op == tf.distribute.ReduceOp.SUM else horovod.Average
    value, = per_replica_value.values
    with tf.device(value.device):
      reduced = horovod.allreduce(value, op=operation)
    return values.regroup(per_replica_value.device_map, (reduced,), wrap_class=values.Mirrored)

  def batch_reduce_implementation(self, reduce_op: tf.distribute.ReduceOp,
                                  value_destination_pairs: Sequence[Tuple[Any, Any]]) -> List[Any]:
    return [self.reduce_implementation(reduce_op, value, destination)
            for value, destination in value_destination_pairs]


def broadcast_variables() -> tf.Operation:
  """Returns an operation that copies the variables of rank 0 to all other ranks.

  Not a workaround for a defect: Horovod's function assigns to a strategy's variables outside the
  strategy, which TensorFlow refuses; this function assigns to their components.
  """
  components = [component for variable in tf.global_variables()
                for component in getattr(variable, 'values', None) or (variable,)]
  return tf.group(*[tf.assign(component, _horovod().broadcast(component, 0))
                    for component in components])


def _horovod() -> Any:
  """Returns the module `horovod.tensorflow`, which few users have installed."""
  import horovod.tensorflow
  return horovod.tensorflow
