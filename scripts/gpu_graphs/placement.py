"""Places a graph on GPUs that do not exist.

TensorFlow's own master places the graph. Its workers are stand-ins, gRPC servers in this process.
They list the devices of a host with GPUs, and record the graphs that the master registers. They
reject the step, so that no operation is executed.
"""

import concurrent.futures
import contextlib
import socket

import grpc
import tensorflow.compat.v1 as tf
from tensorflow.core.framework import device_attributes_pb2

MASTER_JOB = 'gpu_graphs_master'
UNLIMITED = [('grpc.max_receive_message_length', -1), ('grpc.max_send_message_length', -1)]
GPU_MEMORY = 16 << 30
_REJECTION = 'this worker only records graphs'
_NO_OPTIMIZATION = -1  # tf.OptimizerOptions.L0, whose name differs between versions.


def place(graph, fetches, feeds=(), num_gpus=1, tasks=(('localhost', 0),)):
  """Returns the nodes that a step needs, each with the device that TensorFlow has assigned.

  The graph is pruned and placed, but not optimized.

  Args:
    graph: a tf.Graph. Devices without a job belong to the first of the tasks.
    fetches: the tensors and operations that the step fetches.
    feeds: the tensors that the step feeds.
    num_gpus: the number of GPUs of each task.
    tasks: pairs (job, index).

  Returns:
    Dict from the name of a node to its tf.NodeDef.
  """
  graph_def = graph.as_graph_def()
  fed = {feed.op.name for feed in feeds}
  for node in graph_def.node:
    # A session has the values that are fed in host memory.
    node.device = complete_device('/cpu:0' if node.name in fed else node.device, *tasks[0])
  with _stand_ins(tasks, num_gpus) as (target, recorded), tf.Graph().as_default():
    tf.import_graph_def(graph_def, name='')
    config = tf.ConfigProto(allow_soft_placement=True)
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = _NO_OPTIMIZATION
    with tf.Session(target, config=config) as session:
      try:
        session.run([fetch.name for fetch in fetches])
      except tf.errors.AbortedError as error:
        if _REJECTION not in str(error):
          raise
  return _join_partitions([node for part in recorded for node in part.node],
                          {node.name for node in graph_def.node})


def _join_partitions(nodes, names):
  """Returns the nodes with the given names by name, without the nodes that send and receive.

  TensorFlow adds pairs of `_Send` and `_Recv` wherever a tensor crosses between devices or between
  host and device memory, and for fetches.
  """
  added = {node.name: node for node in nodes if node.name not in names}
  sent = {node.attr['tensor_name'].s: node for node in nodes if node.op in ('_Send', '_HostSend')}
  found = {node.name: node for node in nodes if node.name in names}

  def resolve(source):
    """Returns the input of a node in the original graph; None for one that has no counterpart."""
    is_control = source[0] == '^'
    node = added.get(source.lstrip('^').partition(':')[0])
    if node is None:
      return source
    if node.op in ('_Recv', '_HostRecv'):
      node = sent[node.attr['tensor_name'].s]
    # Of the other added nodes, such as constants without a meaning, there are only control inputs.
    resolved = resolve(node.input[0]) if node.input else None
    return resolved and ('^' + resolved.lstrip('^').partition(':')[0] if is_control else resolved)

  for node in list(found.values()):
    inputs = [resolve(source) for source in node.input]
    control = sorted({source for source in inputs if source and source[0] == '^'})
    node.input[:] = [source for source in inputs if source and source[0] != '^'] + control
  return found


def complete_device(device, job, index):
  """Adds the job, the replica and the task to the name of a device that lacks them."""
  spec = tf.DeviceSpec.from_string(device)
  defaults = tf.DeviceSpec(replica=0, task=0) if spec.job else (
      tf.DeviceSpec(job=job, replica=0, task=index))
  return defaults.make_merged_spec(spec).to_string()


@contextlib.contextmanager
def _stand_ins(tasks, num_gpus):
  """Starts a master and a stand-in for each task; yields the target and the recorded graphs."""
  recorded = []
  with contextlib.ExitStack() as stack:
    cluster = {}
    for job, index in tasks:
      server = grpc.server(concurrent.futures.ThreadPoolExecutor(8), options=UNLIMITED)
      server.add_generic_rpc_handlers([_StandIn(job, index, num_gpus, recorded)])
      cluster.setdefault(job, {})[index] = '127.0.0.1:{}'.format(
          server.add_insecure_port('127.0.0.1:0'))
      server.start()
      stack.callback(server.stop, None)
    master = tf.train.Server(
        tf.train.ClusterSpec(dict(cluster, **{MASTER_JOB: ['localhost:0']})),  # Any free port.
        job_name=MASTER_JOB, task_index=0)
    yield master.target, recorded


def free_port():
  with socket.socket() as listener:
    listener.bind(('127.0.0.1', 0))
    return listener.getsockname()[1]


class _StandIn(grpc.GenericRpcHandler):
  """Answers the requests of a master to the worker of a task.

  TensorFlow's Python package does not contain the messages of tensorflow/core/protobuf/worker.proto
  and so their fields are read and written here.
  """

  def __init__(self, job, index, num_gpus, recorded):
    self._recorded = recorded
    self._devices = [_describe_device(job, index, 'CPU', 0)] + [
        _describe_device(job, index, 'GPU', gpu) for gpu in range(num_gpus)]

  def service(self, handler_call_details):
    answer = getattr(self, '_' + handler_call_details.method.rpartition('/')[2],
                     lambda request, context: b'')
    return grpc.unary_unary_rpc_method_handler(answer)

  def _GetStatus(self, request, context):  # noqa: N802
    # GetStatusResponse: repeated DeviceAttributes device_attributes = 1
    return b''.join(b'\x0a' + to_varint(len(device)) + device for device in self._devices)

  def _RegisterGraph(self, request, context):  # noqa: N802
    # RegisterGraphRequest: GraphDef graph_def = 2
    self._recorded += [tf.GraphDef.FromString(value) for number, value in read_fields(request)
                       if number == 2]
    return b'\x0a\x01g'  # RegisterGraphResponse: string graph_handle = 1

  def _RunGraph(self, request, context):  # noqa: N802
    context.abort(grpc.StatusCode.ABORTED, _REJECTION)

  _RecvTensor = _RunGraph


def _describe_device(job, index, kind, number):
  name = '/job:{}/replica:0/task:{}/device:{}:{}'.format(job, index, kind, number)
  return device_attributes_pb2.DeviceAttributes(
      name=name, device_type=kind, memory_limit=GPU_MEMORY, incarnation=1 + hash(name) % 2 ** 60,
      physical_device_desc='device: {}, name: V100, compute capability: 7.0'.format(number)
  ).SerializeToString()


def to_varint(number):
  """Returns a number in the variable-length encoding of protocol buffers."""
  encoded = bytearray()
  while number > 127:
    encoded.append(number & 127 | 128)
    number >>= 7
  return bytes(encoded + bytearray([number]))


def read_fields(message):
  """Yields the number and the value of each field of a serialized protocol buffer.

  The fields must be numbers of variable length, or strings, bytes and messages.
  """
  position = 0

  def read_varint():
    nonlocal position
    value = shift = 0
    while True:
      byte = message[position]
      position += 1
      value |= (byte & 127) << shift
      shift += 7
      if byte < 128:
        return value

  while position < len(message):
    key = read_varint()
    value = read_varint()
    if key & 7 == 2:
      length, value = value, message[position:position + value]
      position += length
    yield key >> 3, value
