"""GPU cards: how TensorFlow optimizes a graph for them, and the time of a step at peak."""

from collections import Counter
from typing import Any, Dict, NamedTuple, Optional

import tensorflow.compat.v1 as tf
from tensorflow.core.protobuf import device_properties_pb2, meta_graph_pb2
from tensorflow.python.grappler import cluster as clusters, item as items, tf_optimizer

from gpu_graphs.analysis import Step

_GIB = 1 << 30


class Card(NamedTuple):
  """A GPU card, with the figures that NVIDIA publishes in its data sheet.

  Attributes:
    architecture: the compute capability.
    float32, float16: the peak rates, in operations/sec; float16 with Tensor Cores, where it has
      them.
    bandwidth: of the memory, in bytes/sec.
    memory: in bytes.
  """
  name: str
  architecture: str
  float32: float
  float16: float
  bandwidth: float
  memory: int
  num_cores: int
  megahertz: int


CARDS = {card.name: card for card in (
    # https://images.nvidia.com/content/tesla/pdf/nvidia-tesla-p100-datasheet.pdf (SXM2)
    Card('P100', '6.0', 10.6e12, 21.2e12, 732e9, 16 * _GIB, 56, 1480),
    # https://images.nvidia.com/content/technologies/volta/pdf/tesla-volta-v100-datasheet-letter-fnl-web.pdf
    Card('V100', '7.0', 15.7e12, 125e12, 900e9, 16 * _GIB, 80, 1530),
    # https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/tesla-t4/t4-tensor-core-datasheet-951643.pdf
    Card('T4', '7.5', 8.1e12, 65e12, 320e9, 16 * _GIB, 40, 1590),
)}
CONVOLUTIONS = ('Conv2D', 'Conv2DBackpropInput', 'Conv2DBackpropFilter', 'DepthwiseConv2dNative',
                'DepthwiseConv2dNativeBackpropInput', 'DepthwiseConv2dNativeBackpropFilter')
MATMULS = ('MatMul', 'BatchMatMul', 'BatchMatMulV2')
# Operations that neither read nor write the elements of their tensors.
_WITHOUT_MEMORY_TRAFFIC = frozenset((
    'Bitcast', 'Const', 'Enter', 'Exit', 'ExpandDims', 'Identity', 'IdentityN',
    'IteratorGetNext', 'LoopCond', 'Merge', 'NextIteration', 'NoOp', 'ReadVariableOp', 'Reshape',
    'Shape', 'ShapeN', 'Size', 'Squeeze', 'StopGradient', 'Switch', 'VarHandleOp'))


class Optimized(NamedTuple):
  """A step after TensorFlow's optimization for cards.

  Attributes:
    peak_memory: the estimated peak of the memory of the first GPU, in bytes.
  """
  step: Step
  peak_memory: int


def optimize(step: Step, config: Any, card: Card) -> Optimized:
  """Optimizes the graph of a step as a session does on a host whose GPUs are such cards.

  Args:
    config: the tf.ConfigProto of the session.
  """
  cluster = clusters.Cluster(devices=[
      _describe_device(name, card) for name in sorted({
          node.device for node in step.graph_def.node})])
  meta_graph = meta_graph_pb2.MetaGraphDef(graph_def=step.graph_def)
  # Grappler keeps the nodes of this collection.
  meta_graph.collection_def['train_op'].node_list.value.extend(step.fetches)
  graph_def = tf_optimizer.OptimizeGraph(config, meta_graph, verbose=False, cluster=cluster)
  if not graph_def.node:  # TensorFlow logs the reason, and returns an empty graph.
    raise ValueError('the optimized graph has 2 GB or more')
  optimized = Step(graph_def.node, step.fetches, graph_def.library, step.original,
                   step.batch_size)
  meta_graph.graph_def.CopyFrom(graph_def)
  peaks = cluster.DeterminePeakMemoryUsage(items.Item(meta_graph))
  first_gpu = min((name for name in peaks if ':GPU:' in name), default=None)
  return Optimized(optimized, peaks[first_gpu][0] if first_gpu else 0)


def _describe_device(name: str, card: Card) -> Any:
  if 'CPU' in name.upper():
    properties = device_properties_pb2.DeviceProperties(
        type='CPU', frequency=2500, num_cores=8, memory_size=64 * _GIB)
  else:
    properties = device_properties_pb2.DeviceProperties(
        type='GPU', vendor='NVIDIA', model=card.name, frequency=card.megahertz,
        num_cores=card.num_cores, memory_size=card.memory, bandwidth=int(card.bandwidth / 1000),
        environment={'architecture': card.architecture, 'cuda': '10000', 'cudnn': '7600'})
  return device_properties_pb2.NamedDevice(name=name, properties=properties)


class Work(NamedTuple):
  """What the first GPU computes in a step. Operations in a loop count once.

  Attributes:
    multiplications: floating-point operations of convolutions and matrix products, by their type.
      A multiplication and an addition are two operations.
    traffic: the sizes of all inputs and outputs of all operations, in bytes.
    secs_at_peak: the sum over all operations of the larger of the time for their multiplications at
      the peak rate and the time for their inputs and outputs at the peak bandwidth. The
      Winograd algorithms of cuDNN require fewer multiplications than are counted.
    kinds: the number of operations, by type of operation and dtype.
    unknown: the number of convolutions and matrix products with unknown shapes.
  """
  multiplications: Dict[str, float]
  traffic: int
  secs_at_peak: float
  kinds: Dict[str, int]
  unknown: int

  @property
  def float16_share(self) -> float:
    total = sum(self.multiplications.values())
    return self.multiplications.get('float16', 0) / total if total else 0.


def measure_work(step: Step, card: Card) -> Work:
  multiplications: Counter = Counter()
  kinds: Counter = Counter()
  traffic, secs_at_peak, unknown = 0, 0., 0
  for operation in step.operations_on(step.gpus()[0]):
    dtype = operation.outputs[0].dtype.base_dtype.name if operation.outputs else ''
    kinds[operation.type + ' ' + dtype] += 1
    count = count_operations(step, operation)
    unknown += count is None
    multiplications[dtype] += count or 0
    num_bytes = 0
    if operation.type not in _WITHOUT_MEMORY_TRAFFIC:
      num_bytes = sum(step.size(tensor) or 0 for tensor in (*operation.inputs, *operation.outputs)
                      if tensor.dtype != tf.resource)
    traffic += num_bytes
    peak = card.float16 if dtype == 'float16' else card.float32
    secs_at_peak += max((count or 0) / peak, num_bytes / card.bandwidth)
  return Work({dtype: count for dtype, count in multiplications.items() if count}, traffic,
              secs_at_peak, dict(kinds), unknown)


def count_operations(step: Step, operation: tf.Operation) -> Optional[float]:
  """Returns the number of multiplications and additions of a convolution or a matrix product.

  It is 0 for other operations, and None if a shape is unknown.
  """
  if operation.type in MATMULS:
    first, output = step.shape(operation.inputs[0]), step.shape(operation.outputs[0])
    if first is None or output is None:
      return None
    transposed = operation.get_attr('transpose_a' if operation.type == 'MatMul' else 'adj_x')
    return 2. * _product(output) * first[-2 if transposed else -1]
  if operation.type in CONVOLUTIONS:
    inputs = [step.shape(tensor) for tensor in operation.inputs]
    output = step.shape(operation.outputs[0])
    # Forward: (input, filter). Backward: (shape, filter, gradient) or (input, shape, gradient).
    filters = output if operation.type.endswith('Filter') else inputs[1]
    values = output if len(inputs) == 2 else inputs[2]
    if filters is None or values is None:
      return None
    # Each output is a sum over the filter, without the dimension of the output channels.
    per_value = _product(filters[:2]) * (
        1 if operation.type.startswith('Depthwise') else filters[2])
    return 2. * _product(values) * per_value
  return 0.


def _product(numbers: Any) -> float:
  result = 1.
  for number in numbers:
    result *= number
  return result
