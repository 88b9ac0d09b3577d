"""Makes a `MultiWorkerMirroredStrategy` of TensorFlow 1.15 on selected devices."""

import weakref
from typing import Any, Callable, List, Optional, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.python.distribute import (
    collective_all_reduce_strategy,
    cross_device_ops,
    distribute_lib,
    input_lib,
    mirrored_strategy,
)

# Sums arrays over all workers. Called with the number of the operation and the arrays.
AllReduce = Callable[[int, Sequence[np.ndarray]], List[np.ndarray]]


def make_strategy(devices: Tuple[str, ...], communication: str,
                  all_reduce: Optional[AllReduce] = None) -> tf.distribute.Strategy:
  """Makes the strategy of this worker in the cluster of TF_CONFIG.

  See MultiWorkerMirroredStrategy.

  Args:
    devices: the devices of this worker, such as `/gpu:0`. All workers must have the same number of
      devices.
    communication: the implementation of the collective operations: AUTO, RING or NCCL.
    all_reduce: used instead of the collective operations; see PythonAllReduce.
  """
  return MultiWorkerMirroredStrategy(
      tuple('/device:' + name[1:].upper() for name in devices),
      cross_device_ops.CollectiveCommunication(communication), all_reduce)


class MultiWorkerMirroredStrategy(tf.distribute.experimental.MultiWorkerMirroredStrategy):
  """TensorFlow's strategy on the given devices.

  Defect: TensorFlow's strategy uses all GPUs, or one CPU device, and no argument selects other
  devices (tensorflow_core/python/distribute/collective_all_reduce_strategy.py:277 to 283). Symptom:
  `--num_gpus` and `--num_cpu_replicas` have no effect in a cluster. This class has the name of
  TensorFlow's class, because Estimator recognizes the strategy by the name of its class
  (tensorflow_estimator/python/estimator/estimator.py:1407).
  """

  def __init__(self, devices: Tuple[str, ...],
               communication: cross_device_ops.CollectiveCommunication,
               all_reduce: Optional[AllReduce] = None) -> None:
    distribute_lib.StrategyV1.__init__(
        self, _Extended(self, devices, communication, all_reduce))


class _Extended(collective_all_reduce_strategy.CollectiveAllReduceExtended):
  """Implements the strategy; replaces the devices that the base class has selected."""

  def __init__(self, strategy: tf.distribute.Strategy, devices: Tuple[str, ...],
               communication: cross_device_ops.CollectiveCommunication,
               all_reduce: Optional[AllReduce]) -> None:
    self._selected_devices, self._all_reduce = devices, all_reduce
    super().__init__(strategy, communication)

  def _initialize_multi_worker(self, cluster_resolver: Any) -> None:
    super()._initialize_multi_worker(cluster_resolver)
    # The same statements as in the base class, but with the selected devices.
    arguments = {'num_workers': self._num_workers,
                 'num_gpus_per_worker': len(self._selected_devices),
                 'collective_keys': self._collective_keys}
    self._cross_device_ops = (
        cross_device_ops.CollectiveAllReduce(**arguments) if self._all_reduce is None else
        PythonAllReduce(self._all_reduce, **arguments))
    worker = self._worker_device
    mirrored_strategy.MirroredExtended._initialize_local(
        self, tuple(worker + name for name in self._selected_devices))
    self._input_workers = input_lib.InputWorkers(
        self._device_map, [(worker, self.worker_devices)])
    self._default_device = worker


class PythonAllReduce(cross_device_ops.CollectiveAllReduce):
  """Reduces dense values over all workers by a Python function.

  Defect: a collective operation sends half of an array as one message, whose copies into and out of
  messages do not overlap with its transfer
  (tensorflow/core/distributed_runtime/rpc/grpc_worker_service.cc, C++). Symptom: workers wait
  longer for large gradients; see docs/performance.md.

  The operations of a graph are executed one after another, in the order in which they were added.
  Sparse values, and values in conditions and loops, are reduced by collective operations.

  Args:
    all_reduce: the function, which is called in the same order on all workers.
    arguments: the arguments of the base class.
  """

  def __init__(self, all_reduce: AllReduce, **arguments: Any) -> None:
    super().__init__(**arguments)
    self._all_reduce = all_reduce
    # The number of operations in each graph, and the name of the last one.
    self._last_operations: Any = weakref.WeakKeyDictionary()

  def _do_batch_all_reduce_dense(self, reduce_op: tf.distribute.ReduceOp,
                                 per_replica_values: Sequence[Any]) -> List[Any]:
    graph = tf.get_default_graph()
    if graph._get_control_flow_context() is not None:  # pylint: disable=protected-access
      return super()._do_batch_all_reduce_dense(reduce_op, per_replica_values)
    devices = per_replica_values[0].devices
    with tf.device(devices[0]):
      sums = self._reduce(graph, [value.values[0] if len(devices) == 1 else tf.add_n(value.values)
                                  for value in per_replica_values])
    copies = []
    for device in devices:
      with tf.device(device):
        copies.append([(tf.identity(total), None) for total in sums])
    return cross_device_ops._ungroup_and_make_mirrored(
        copies, per_replica_values[0], reduce_op, num_between_graph_workers=self._num_workers)

  def _reduce(self, graph: tf.Graph, tensors: Sequence[tf.Tensor]) -> List[tf.Tensor]:
    """Returns the sums of tensors over all workers, after the previous operation of the graph."""
    number, last_name = self._last_operations.get(graph, (0, None))
    after = [] if last_name is None else [graph.get_operation_by_name(last_name)]
    with tf.control_dependencies(after):
      sums = tf.py_func(lambda *arrays: self._all_reduce(number, arrays), tensors,
                        [tensor.dtype for tensor in tensors], name='ring_all_reduce')
    self._last_operations[graph] = number + 1, sums[0].op.name
    for total, tensor in zip(sums, tensors):
      total.set_shape(tensor.shape)
    return sums
