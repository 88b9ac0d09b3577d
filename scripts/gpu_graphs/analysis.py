"""The work of a step in a placed graph: operations without GPU kernels, transfers, all-reduces."""

import contextlib
from collections import Counter
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence

import tensorflow.compat.v1 as tf

from estimator_train.tf_patches.graphs import find_ancestors, operation_of
from gpu_graphs import kernels

HOST = 'host'
# Operations that yield a batch of the input pipeline. On a GPU, the batch was sent in advance.
ITERATORS = ('IteratorGetNext', 'IteratorGetNextAsOptional', 'IteratorGetNextSync',
             'MultiDeviceIteratorGetNextFromShard')
ALL_REDUCES = ('NcclAllReduce', 'CollectiveReduce', 'HorovodAllreduce')
# Operations on the CPU for which a GPU was requested, with the reason why they may be there. The
# names are those of `describe`.
_HANDLE = 'a handle of the input pipeline, which is on the host'
EXCEPTIONS = {
    'MultiDeviceIteratorToStringHandle string': _HANDLE,
    'MultiDeviceIteratorFromStringHandle resource': _HANDLE,
    'Const string': 'a text, such as the message of an assertion',
    'PadV2 int64': 'the number of outputs in a prediction, 8 bytes',
}


class Transfer(NamedTuple):
  """A tensor that one device or the host sends to another.

  Attributes:
    source, target: HOST, or a GPU such as `GPU:0`.
    num_bytes: None if the shape is unknown.
    consumer: the type of an operation that uses the tensor, or `fetch`.
  """
  tensor: tf.Tensor
  source: str
  target: str
  num_bytes: Optional[int]
  consumer: str

  @property
  def is_batch(self) -> bool:
    return self.source == HOST and self.tensor.op.type in (*ITERATORS, 'Placeholder')


class Step:
  """The operations of a step, with their devices.

  Args:
    nodes: the nodes with complete devices.
    fetches: the names of the tensors and operations that the step fetches.
    library: the functions of the graph.
    original: the graph that was built, which knows shapes that are lost in the nodes, such as
      those of outputs of loops.
    batch_size: the number of examples of a replica, the value of an unknown first dimension.
  """

  def __init__(self, nodes: Iterable[Any], fetches: Sequence[str], library: Any,
               original: tf.Graph, batch_size: int) -> None:
    self.graph_def = tf.GraphDef(node=nodes, library=library)
    self.graph_def.versions.producer = tf.version.GRAPH_DEF_VERSION
    self.fetches, self.original, self.batch_size = list(fetches), original, batch_size
    self.devices = {node.name: short_device(node.device) for node in self.graph_def.node}
    with tf.Graph().as_default() as graph:
      tf.import_graph_def(self.graph_def, name='')
    self.graph = graph
    self._fetched = [graph.as_graph_element(name) for name in self.fetches]
    self.operations = find_ancestors(map(operation_of, self._fetched))

  def with_static_batch(self) -> 'Step':
    """Returns the step for batches whose size is known, which memory estimates require."""
    graph_def = tf.GraphDef()
    graph_def.CopyFrom(self.graph_def)
    for node in graph_def.node:
      for shape in node.attr['output_shapes'].list.shape if node.op in ITERATORS else ():
        if shape.dim and shape.dim[0].size < 0:
          shape.dim[0].size = self.batch_size
    return Step(graph_def.node, self.fetches, graph_def.library, self.original, self.batch_size)

  def operations_on(self, device: str) -> List[tf.Operation]:
    return [operation for operation in self.graph.get_operations()
            if operation in self.operations and self.devices[operation.name] == device]

  def gpus(self) -> List[str]:
    return sorted({self.devices[operation.name] for operation in self.operations} - {HOST})

  def without_kernel(self) -> Counter:
    """Counts the operations on a GPU that have no kernel for GPUs."""
    return Counter(describe(operation) for operation in self.operations
                   if self.devices[operation.name] != HOST
                   and kernels.find_kernel(operation, 'GPU') is None)

  def transfers(self) -> List[Transfer]:
    """Returns the tensors that cross between the host and GPUs, or between GPUs.

    They comprise the batches that the input pipeline has sent to a GPU in advance.
    """
    memory = {operation: kernels.tensors_in_host_memory(
        operation, 'CPU' if self.devices[operation.name] == HOST else 'GPU')
              for operation in self.operations}
    found: Dict[Any, Transfer] = {}

    def add(tensor: tf.Tensor, target: str, consumer: str) -> None:
      if tensor.dtype.base_dtype in (tf.string, tf.resource, tf.variant):
        return
      in_host_memory = memory[tensor.op][1][tensor.value_index]
      source = HOST if in_host_memory else self.devices[tensor.op.name]
      if source != target:
        found.setdefault((tensor.name, target), Transfer(
            tensor, source, target, self.size(tensor), consumer))

    for operation in self.operations:
      device = self.devices[operation.name]
      for tensor, needs_host in zip(operation.inputs, memory[operation][0]):
        add(tensor, HOST if needs_host else device, operation.type)
      if operation.type in ITERATORS and device != HOST:
        for tensor in operation.outputs:
          found[tensor.name, 'prefetched'] = Transfer(
              tensor, HOST, device, self.size(tensor), 'prefetched')
    for fetch in self._fetched:
      if isinstance(fetch, tf.Tensor):
        add(fetch, HOST, 'fetch')
    return list(found.values())

  def all_reduces(self) -> Dict[str, List[Optional[int]]]:
    """Returns the sizes in bytes of the tensors that one replica sums with all others, by type."""
    found: Dict[str, List[Optional[int]]] = {}
    gpus = self.gpus()
    for operation in self.operations:
      if operation.type in ALL_REDUCES and self.devices[operation.name] in (gpus[0], HOST):
        found.setdefault(operation.type, []).append(self.size(operation.inputs[0]))
    return {kind: sorted(sizes, key=lambda size: size or 0) for kind, sizes in found.items()}

  def size(self, tensor: tf.Tensor) -> Optional[int]:
    """Returns the size of a tensor in bytes; None if the shape is unknown."""
    shape = self.shape(tensor)
    if shape is None:
      return None
    size = tensor.dtype.base_dtype.size
    for dimension in shape:
      size *= dimension
    return size

  def shape(self, tensor: tf.Tensor) -> Optional[List[int]]:
    """Returns the shape of a tensor; None if it is unknown."""
    shape = tensor.shape
    if not shape.is_fully_defined():
      with contextlib.suppress(KeyError, ValueError):
        shape = shape.merge_with(self.original.get_tensor_by_name(tensor.name).shape)
    if shape.ndims is None or None in shape.as_list()[1:]:
      return None
    return [self.batch_size if dimension is None else dimension for dimension in shape.as_list()]


def soft_placed(graph: tf.Graph, nodes: Dict[str, Any], usual: Sequence[Any],
                feeds: Sequence[tf.Tensor] = ()) -> Dict[str, Counter]:
  """Counts the operations on the CPU for which a GPU was requested, except EXCEPTIONS and feeds.

  Args:
    graph: the graph, whose operations have the requested devices.
    nodes: the nodes with the assigned devices, by name.
    usual: what usual steps fetch.

  Returns:
    Two Counters by type of operation and types of outputs: `usual` for usual steps, and `summaries`
    for operations that only steps with summaries run.
  """
  found: Dict[str, Counter] = {'usual': Counter(), 'summaries': Counter()}
  in_usual_steps, fed = find_ancestors(map(operation_of, usual)), {feed.op for feed in feeds}
  for operation in graph.get_operations():
    if operation.name in nodes and 'GPU' in operation.device.upper() and (
        short_device(nodes[operation.name].device) == HOST) and operation not in fed and (
            describe(operation) not in EXCEPTIONS):
      found['usual' if operation in in_usual_steps else 'summaries'][describe(operation)] += 1
  return found


def short_device(name: str) -> str:
  """Returns HOST for a CPU, and `GPU:0`, or `worker:1 GPU:0` for the GPU of a task of a cluster."""
  spec = tf.DeviceSpec.from_string(name)
  if spec.device_type == 'CPU':
    return HOST
  task = '' if spec.job == 'localhost' else '{}:{} '.format(spec.job, spec.task)
  return '{}{}:{}'.format(task, spec.device_type, spec.device_index)


def describe(operation: tf.Operation) -> str:
  """Returns the type of an operation and the types of its outputs."""
  types = sorted({tensor.dtype.base_dtype.name for tensor in operation.outputs})
  return ' '.join([operation.type, *types])
