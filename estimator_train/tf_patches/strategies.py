"""Makes distribution strategies, describes their devices, and averages variables over replicas."""

from typing import Any, Callable, Iterator, List, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf
from tensorflow.python.client import device_lib
from tensorflow.python.distribute import (
  collective_all_reduce_strategy,
  cross_device_ops,
  cross_device_utils,
  distribute_lib,
  input_lib,
  mirrored_strategy,
  values,
)
from tensorflow.python.ops import collective_ops

_HIERARCHICAL_COPY = cross_device_utils.aggregate_gradients_using_hierarchical_copy


def gpu_descriptions(config: tf.ConfigProto) -> List[str]:
  """Returns TensorFlow's description of each GPU, which includes its compute capability.

  Private API: `list_local_devices` (tensorflow_core/python/client/device_lib.py:25), because the
  public `tf.config.experimental.list_physical_devices` only returns names and types. Without the
  compute capability, the program could not warn that `--dtype=mixed` uses float32 on an older GPU.

  Args:
    config: the configuration of the run's sessions. This call creates devices with this
      configuration.
  """
  return [device.physical_device_desc for device in device_lib.list_local_devices(config)
          if device.device_type == 'GPU']


def choose_all_reduce(devices: Sequence[str], config: tf.ConfigProto) -> Any:
  """Returns the all-reduce that TensorFlow selects for the devices of one process.

  Private API: `choose_the_best` (tensorflow_core/python/distribute/cross_device_ops.py:1184).

  Defect: MirroredStrategy calls this function without a configuration
  (tensorflow_core/python/distribute/mirrored_strategy.py:421), so it creates all GPUs with default
  options, which apply to the whole process. Symptom: the run takes all memory of all GPUs, although
  its sessions let the memory grow.

  Args:
    config: the configuration of the run's sessions.
  """
  return cross_device_ops.choose_the_best(devices, config)


def make_central_storage_strategy(devices: Sequence[str], parameter_device: str) -> Any:
  """Makes a usable CentralStorageStrategy; see patch_aggregating_variables."""
  patch_aggregating_variables()
  return tf.distribute.experimental.CentralStorageStrategy(devices, parameter_device)


def patch_aggregating_variables() -> None:
  """Makes the variables of every CentralStorageStrategy usable, also if the user has made it.

  Defect: with more than one replica, the variables of the strategy are `AggregatingVariable`s
  (tensorflow_core/python/distribute/values.py:1471), which wrap the real variables. The
  wrapper forwards attributes by `__getattr__` (line 1489). Python calls `__getattr__` only for
  missing attributes. Attributes that the wrapper's base class defines are therefore not forwarded.
  `trainable` raises NotImplementedError (tensorflow_core/python/ops/variables.py:477), and initial
  weights from a checkpoint are set on the wrapper, where nothing reads the weights. Symptom: no
  Keras layer can be built; if layers could be built, training would start from random weights.
  """
  for name in ('trainable', '_initializer_op', '_initial_value'):
    setattr(values.AggregatingVariable, name, _forwarded_property(name))


def _forwarded_property(name: str) -> property:
  """Returns a property that gets and sets the attribute `name` of the wrapped variable."""
  return property(lambda wrapper: getattr(wrapper.get(), name),
                  lambda wrapper, value: setattr(wrapper.get(), name, value))


def patch_hierarchical_copy() -> None:
  """Makes HierarchicalCopyAllReduce sum the gradients of an odd number of replicas.

  Defect: the algorithm adds two groups of n // 2 of the n gradients
  (tensorflow_core/python/distribute/cross_device_utils.py:84). Symptom: on three, five or seven
  replicas, the gradients of one replica are missing from the sum, without a message.
  """
  cross_device_utils.aggregate_gradients_using_hierarchical_copy = _sum_gradients


def _sum_gradients(devices: Sequence[str], gradients: Sequence[Any]) -> List[Any]:
  """Returns the pairs (summed gradient, variable) of each replica.

  Args:
    gradients: the pairs (gradient, variable) of each replica.
  """
  if len(devices) % 2 == 0:
    return _HIERARCHICAL_COPY(devices, gradients)
  summed = []
  for index, pairs in enumerate(zip(*gradients)):
    with tf.device(devices[index % len(devices)]):
      total = tf.add_n([gradient for gradient, _ in pairs])
    copies = []
    for device, (_, variable) in zip(devices, pairs):
      with tf.device(device):
        copies.append((tf.identity(total), variable))
    summed.append(copies)
  return list(zip(*summed))


def average_statistics_after(statistics: Sequence[Any], train_op: tf.Operation) -> tf.Operation:
  """Returns a training step that also averages the statistics of layers over all workers.

  Must be called in each replica. Statistics, for example those of batch normalization, are
  variables that each replica updates from its part of the batch.

  Defect: a checkpoint contains the mean of these variables over all replicas
  (tensorflow_core/python/distribute/values.py:1242), but only the chief writes checkpoints, and
  the other workers do not take part in its collective operation. Symptom: under
  MultiWorkerMirroredStrategy, a model with batch normalization hangs at its first checkpoint.
  This function instead adds the collective operation to each step. Moving averages are linear. A
  checkpoint therefore contains the same values as if the mean were computed only for it.

  Args:
    statistics: the variables that each replica updates; see ImportedVariables.updated_copies.
    train_op: the operation of a training step.
  """
  strategy = tf.distribute.get_strategy()
  if not statistics or not strategy.extended.experimental_between_graph:
    return train_op
  strategy.extended.read_var = lambda variable: tf.identity(variable.primary)
  with tf.control_dependencies([train_op]):
    # All statistics form one vector, because each collective operation waits for the network.
    vector = tf.concat([tf.reshape(tf.identity(variable.get()), [-1])
                        for variable in statistics], axis=0)
  means = tf.split(
      tf.distribute.get_replica_context().merge_call(
          lambda strategy, vectors: strategy.extended.reduce_to(
              tf.distribute.ReduceOp.MEAN, vectors, destinations=vectors), args=(vector,)),
      [variable.shape.num_elements() for variable in statistics])
  return tf.group(*[variable.get().assign(tf.reshape(mean, variable.shape))
                    for variable, mean in zip(statistics, means)])


class MultiWorkerMirroredStrategy(tf.distribute.experimental.MultiWorkerMirroredStrategy):
  """TensorFlow's strategy on the given devices.

  Defect: TensorFlow's strategy uses all GPUs, or one CPU device, and no argument selects other
  devices (tensorflow_core/python/distribute/collective_all_reduce_strategy.py:277 to 283). Symptom:
  `--num_gpus` and `--num_cpu_replicas` have no effect in a cluster. This class has the name of
  TensorFlow's class, because Estimator recognizes the strategy by the name of its class
  (tensorflow_estimator/python/estimator/estimator.py:1407).

  Args:
    devices: the devices of this worker, such as `/gpu:0`. All workers must have the same number of
      devices.
    communication: the implementation of the collective operations: AUTO, RING or NCCL.
  """

  def __init__(self, devices: Tuple[str, ...], communication: str) -> None:
    distribute_lib.StrategyV1.__init__(self, _MultiWorkerExtended(
        self, tuple('/device:' + name[1:].upper() for name in devices),
        cross_device_ops.CollectiveCommunication(communication)))


class _MultiWorkerExtended(collective_all_reduce_strategy.CollectiveAllReduceExtended):
  """Implements the strategy, and replaces the devices that the base class has selected."""

  def __init__(self, strategy: tf.distribute.Strategy, devices: Tuple[str, ...],
               communication: cross_device_ops.CollectiveCommunication) -> None:
    self._selected_devices = devices
    super().__init__(strategy, communication)

  def _initialize_multi_worker(self, cluster_resolver: Any) -> None:
    super()._initialize_multi_worker(cluster_resolver)
    # These are the statements of the base class, but with the selected devices.
    self._cross_device_ops = _PackedAllReduce(
        num_workers=self._num_workers, num_gpus_per_worker=len(self._selected_devices),
        collective_keys=self._collective_keys)
    worker = self._worker_device
    mirrored_strategy.MirroredExtended._initialize_local(
        self, tuple(worker + name for name in self._selected_devices))
    self._input_workers = input_lib.InputWorkers(
        self._device_map, [(worker, self.worker_devices)])
    self._default_device = worker

  def _update_config_proto(self, config_proto: tf.ConfigProto) -> tf.ConfigProto:
    """Returns the session configuration of TensorFlow's strategy without the scoped allocator.

    Defect: TensorFlow joins the all-reduces of several tensors by the scoped allocator
    (tensorflow_core/python/distribute/collective_all_reduce_strategy.py:439), which writes the sums
    into the memory of the tensors themselves, even if other operations have yet to read these
    tensors. Symptom: an operation that reads a gradient may get the sum over all workers instead,
    depending on the timing; a tf.cond around an all-reduce is such an operation. _PackedAllReduce
    joins the tensors instead.
    """
    updated = super()._update_config_proto(config_proto)
    rewrite_options = updated.graph_options.rewrite_options
    # The field is cleared, because TensorFlow enables the optimization also if the value is OFF.
    rewrite_options.ClearField('scoped_allocator_optimization')
    rewrite_options.ClearField('scoped_allocator_opts')
    return updated

  def _get_variable_creator_initial_value(
      self, replica_id: int, device: str, primary_var: Optional[tf.Variable],
      **kwargs: Any) -> Callable[[], tf.Tensor]:
    """Returns a function that makes the initial value of the chief on every worker.

    Defect: TensorFlow broadcasts initial values along a tree
    (tensorflow_core/python/distribute/collective_all_reduce_strategy.py:337). The chief waits only
    for its two children. It may therefore finish this `session.run` before slower workers ask it
    for the id of the step, and then answers with the id of its next step. Symptom: four or more
    workers hang while they initialize their variables. This function instead sums the value of
    the chief and zeros of the others. No worker can finish this sum before all have started it.
    """
    if replica_id or self._num_workers == 1:
      return super()._get_variable_creator_initial_value(
          replica_id=replica_id, device=device, primary_var=primary_var, **kwargs)

    def make_initial_value() -> tf.Tensor:
      with tf.device(device):
        value = kwargs['initial_value']
        value = tf.convert_to_tensor(value() if callable(value) else value, kwargs.get('dtype'))
        # TensorFlow cannot sum other types. Variables of other types start from constants.
        if value.dtype not in (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64):
          return value
        return collective_ops.all_reduce(
            value if self._is_chief else tf.zeros_like(value), self._num_workers,
            self._collective_keys.get_group_key([device]),
            self._collective_keys.get_variable_instance_key(), 'Add', 'Id')

    return make_initial_value


class _PackedAllReduce(cross_device_ops.CollectiveAllReduce):
  """Reduces several tensors as one vector, because each collective operation waits for the network.

  Only the collective operation reads the vector, so the defect of _update_config_proto does not
  occur.
  """

  def _do_batch_all_reduce_dense(self, reduce_op: tf.distribute.ReduceOp,
                                 per_replica_values: Sequence[Any]) -> List[Any]:
    reduced: List[Any] = [None] * len(per_replica_values)
    for positions in self._positions_of_packs(per_replica_values):
      pack = [per_replica_values[position] for position in positions]
      device_map, per_device = pack[0].device_map, list(zip(*[value.values for value in pack]))
      sums, = super()._do_batch_all_reduce_dense(
          reduce_op, [values.PerReplica(device_map, [_pack(tensors) for tensors in per_device])])
      # With one device, TensorFlow returns a tensor without a wrapper.
      vectors = getattr(sums, 'values', (sums,))
      unpacked = [_unpack(*pair) for pair in zip(vectors, per_device)]
      for position, copies in zip(positions, zip(*unpacked)):
        reduced[position] = values.regroup(device_map, copies, wrap_class=values.Mirrored)
    return reduced

  def _positions_of_packs(self, per_replica_values: Sequence[Any]) -> Iterator[List[int]]:
    """Yields the positions of values of one type, at most as many as TensorFlow joins."""
    for dtype in sorted({value.values[0].dtype for value in per_replica_values}, key=str):
      positions = [position for position, value in enumerate(per_replica_values)
                   if value.values[0].dtype == dtype]
      for start in range(0, len(positions), self._all_reduce_merge_scope):
        yield positions[start:start + self._all_reduce_merge_scope]


def _pack(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
  with tf.device(tensors[0].device):
    return tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], axis=0)


def _unpack(vector: tf.Tensor, tensors: Sequence[tf.Tensor]) -> List[tf.Tensor]:
  """Splits a vector into tensors that have the shapes of the given tensors."""
  with tf.device(vector.device):
    parts = tf.split(vector, [tf.size(tensor) for tensor in tensors])
    return [tf.reshape(part, tf.shape(tensor)) for part, tensor in zip(parts, tensors)]


class HorovodStrategy(tf.distribute.Strategy):
  """A strategy with one replica in each process that Horovod connects.

  No defect: TensorFlow has no public class from which a strategy for several processes can be
  derived. Unlike Horovod's own `DistributedOptimizer`, a strategy also reduces the loss, the
  accuracy and the gradient norm, and works with every optimizer.

  Horovod must have been initialized.

  Args:
    device: the device of this process, such as `/gpu:0`.
  """

  def __init__(self, device: str) -> None:
    distribute_lib.StrategyV1.__init__(self, _HorovodExtended(self, device))


class _HorovodExtended(mirrored_strategy.MirroredExtended):
  """Implements the strategy: MirroredStrategy on one device, with another all-reduce.

  Keras divides the loss by `_num_replicas_in_sync` (keras/engine/training_utils.py). The sums of
  the gradients over all processes are therefore the gradients of the mean loss of the global batch.
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
    # With one device, TensorFlow passes tensors without a wrapper. The base class would assume that
    # such a value is equal on all replicas, and would not reduce it.
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

  No defect: Horovod's function assigns to a strategy's variables outside the strategy, which
  TensorFlow refuses. This function assigns to the components of these variables.
  """
  components = [component for variable in tf.global_variables()
                for component in getattr(variable, 'values', None) or (variable,)]
  return tf.group(*[tf.assign(component, _horovod().broadcast(component, 0))
                    for component in components])


def _horovod() -> Any:
  """Returns the module `horovod.tensorflow`, which few users have installed."""
  import horovod.tensorflow
  return horovod.tensorflow
