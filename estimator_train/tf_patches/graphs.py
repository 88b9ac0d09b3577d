"""Extracts parts of a graph, imports them into another graph, and orders operations.

No defect: the public `tf.import_graph_def` imports all nodes of a GraphDef. It neither selects
nodes nor makes two imports independent of each other.
"""

from typing import Any, Callable, Dict, Iterable, List, Mapping, NamedTuple, Sequence, Set, Tuple

import tensorflow.compat.v1 as tf
from tensorflow.python.framework import kernels

NodeDef = Any  # A tf.NodeDef.
Nodes = Dict[str, NodeDef]
# The difference between the second seeds of an operation on two successive replicas. It exceeds the
# number of operations, so no two seeds are equal.
_SEED_STEP = 1000003


class Subgraph(NamedTuple):
  """Nodes of a graph, in the order of their creation, that can be imported several times.

  Attributes:
    replaced_names: the names of operations that the nodes use, but that an import replaces.
    table_initializers: the names of the nodes that initialize lookup tables.
    library: the functions of the graph.
  """
  nodes: Nodes
  replaced_names: Set[str]
  table_initializers: List[str]
  library: Any
  versions: Any


def extract_subgraph(graph: tf.Graph, operations: Iterable[tf.Operation],
                     replaced_names: Set[str], constants: Mapping[str, bool]) -> Subgraph:
  """Returns the nodes that are necessary to run operations.

  Args:
    replaced_names: the names of operations whose results an import replaces.
    constants: the values of scalar boolean operations, by name. Branches of a tf.cond that these
      values exclude are omitted.
  """
  graph_def = graph.as_graph_def()
  all_nodes = {node.name: node for node in graph_def.node}
  # Adds the initializers of the tables that are used, because no operation depends on them.
  initializers: Dict[str, List[str]] = {}
  for initializer in graph.get_collection(tf.GraphKeys.TABLE_INITIALIZERS):
    for tensor in initializer.inputs:
      initializers.setdefault(tensor.op.name, []).append(initializer.name)
  names = [operation.name for operation in operations]
  nodes, used_names = _select_ancestors(all_nodes, names, replaced_names, initializers)
  if constants:
    _remove_excluded_branches(nodes, constants)
    nodes, used_names = _select_ancestors(nodes, names, replaced_names, initializers)
  copies = {}
  for name, node in nodes.items():
    copies[name] = tf.NodeDef()
    copies[name].CopyFrom(node)
    copies[name].input[:] = [source for source in node.input
                             if not (source[0] == '^' and source[1:] in replaced_names)]
    _remove_colocation_with_missing(copies[name], nodes)
  used_initializers = [name for names in initializers.values() for name in names if name in nodes]
  return Subgraph(copies, used_names, used_initializers, graph_def.library, graph_def.versions)


def _select_ancestors(nodes: Nodes, names: Iterable[str], replaced_names: Set[str],
                      initializers: Mapping[str, List[str]]) -> Tuple[Nodes, Set[str]]:
  """Returns the named nodes with all nodes on which they depend, and the replaced names in use.

  Args:
    initializers: the names of the operations that initialize a lookup table, by its name.
  """
  selected_names, used_names, pending = set(), set(), list(names)
  while pending:
    name = pending.pop()
    if name in replaced_names:
      used_names.add(name)
    elif name in nodes and name not in selected_names:  # It can be in an excluded branch.
      selected_names.add(name)
      pending += [operation_name(source) for source in nodes[name].input]
      pending += initializers.get(name, ())
  return {name: node for name, node in nodes.items() if name in selected_names}, used_names


def operation_name(source: str) -> str:
  """Returns the name of the operation of an input of a node, such as `^name` or `name:1`."""
  return source.lstrip('^').partition(':')[0]


def tensor_name(source: str) -> str:
  """Returns the name of the tensor of an input of a node, where `name` stands for `name:0`."""
  return source if ':' in source else source + ':0'


def _remove_colocation_with_missing(node: NodeDef, nodes: Nodes) -> None:
  """Removes constraints that place a node on the device of a node that is not imported."""
  if '_class' in node.attr:
    constraints = [constraint for constraint in node.attr['_class'].list.s
                   if constraint.partition(b'@')[2].decode() in nodes]
    del node.attr['_class'].list.s[:]
    node.attr['_class'].list.s.extend(constraints)
    if not constraints:
      del node.attr['_class']


def _remove_excluded_branches(nodes: Nodes, constants: Mapping[str, bool]) -> None:
  """Removes the branches that conditions on constants exclude.

  A node is live if all its inputs are live. As at run time, a `Merge` is live if one of its inputs
  is live. In the inputs of live nodes, the input of a `Switch` on a constant takes the place of the
  `Switch`. A `Merge` with one live input becomes an `Identity`. If this input is zero, as is the
  gradient of a branch that is not taken, it is left out of sums, because it has the size of a batch
  of activations.

  Args:
    nodes: the nodes that this function changes. They contain the inputs of all nodes, except
      constants and replaced operations.
    constants: the values of the boolean constants, by the name of the operation.
  """
  if any(_parse_input(source)[1] and nodes[operation_name(source)].op == 'Merge'
         for node in nodes.values() for source in node.input if operation_name(source) in nodes):
    return  # A node uses the index of the live input of a Merge, which would change.
  values = dict(constants)  # The values of identities of the constants are added below.
  aliases: Dict[Tuple[str, int], Tuple[str, int]] = {}  # The inputs of the switches, by output.
  excluded_outputs: Set[Tuple[str, int]] = set()
  live: Set[str] = set()
  names = set(nodes)
  consumers: Dict[str, List[str]] = {}
  for node in nodes.values():
    for name in {operation_name(source) for source in node.input}:
      consumers.setdefault(name, []).append(node.name)

  def is_live(source: str) -> bool:
    name, index = _parse_input(source)
    return (name in live or name not in names) and (name, index) not in excluded_outputs

  pending = list(nodes)
  while pending:
    node = nodes[pending.pop()]
    states = [is_live(source) for source in node.input]
    if node.name in live or not (any(states) if node.op == 'Merge' else all(states)):
      continue
    live.add(node.name)
    inputs = [_resolve(_parse_input(source), aliases) for source in node.input if source[0] != '^']
    if node.op == 'Identity' and inputs[0][0] in values:
      values[node.name] = values[inputs[0][0]]
    if node.op == 'Switch' and inputs[1][0] in values:
      live_output = int(values[inputs[1][0]])
      aliases[node.name, live_output] = inputs[0]
      excluded_outputs.add((node.name, 1 - live_output))
      if inputs[0][0] in values:  # The input of the Switch is the predicate itself.
        values[node.name] = values[inputs[0][0]]
    pending += consumers.get(node.name, ())
  switches = {name for name, _ in aliases}
  zeros: Set[str] = set()
  for name in list(nodes):
    if name not in live or name in switches:
      del nodes[name]
  for name, node in nodes.items():
    sources = [source for source in node.input if is_live(source)]
    if not any(operation_name(source) in switches for source in sources) and (
        len(sources) == len(node.input)):
      continue
    new_node = nodes[name] = tf.NodeDef()
    new_node.CopyFrom(node)
    if node.op == 'Merge' and sum(source[0] != '^' for source in sources) == 1 < (
        sum(source[0] != '^' for source in node.input)):
      new_node.op = 'Identity'
      del new_node.attr['N']
      if _is_zero(nodes, next(source for source in sources if source[0] != '^')):
        zeros.add(name)
    # A control input on a switch has no effect without the switch.
    new_node.input[:] = [
        source if source[0] == '^' else _format_input(_resolve(_parse_input(source), aliases))
        for source in sources if source[0] != '^' or operation_name(source) not in switches]
  _leave_out_of_sums(nodes, zeros)


def _leave_out_of_sums(nodes: Nodes, zeros: Set[str]) -> None:
  """Removes the outputs of the operations `zeros` from the sums that also have other terms."""
  for name, node in nodes.items():
    terms = [source for source in node.input if source[0] != '^']
    kept = [source for source in terms if operation_name(source) not in zeros]
    if node.op == 'AddN' and kept and len(kept) < len(terms):
      new_node = nodes[name] = tf.NodeDef()
      new_node.CopyFrom(node)
      new_node.input[:] = kept + [source for source in node.input if source[0] == '^']
      new_node.attr['N'].i = len(kept)
      if len(kept) == 1:
        new_node.op = 'Identity'
        del new_node.attr['N']


def _is_zero(nodes: Nodes, source: str) -> bool:
  """Returns whether an input of a node is a tensor that is filled with the constant 0."""
  node = nodes.get(operation_name(source))
  value = nodes.get(operation_name(node.input[1])) if node is not None and (
      node.op == 'Fill') else None
  return value is not None and value.op == 'Const' and not tf.make_ndarray(
      value.attr['value'].tensor).any()


def _parse_input(source: str) -> Tuple[str, int]:
  """Returns the operation, and the index of its output, to which an input of a node refers."""
  name, _, index = source.lstrip('^').partition(':')
  return name, int(index or 0)


def _format_input(output: Tuple[str, int]) -> str:
  return '{}:{}'.format(*output) if output[1] else output[0]


def _resolve(output: Tuple[str, int],
             aliases: Mapping[Tuple[str, int], Tuple[str, int]]) -> Tuple[str, int]:
  while output in aliases:
    output = aliases[output]
  return output


class ImportedSubgraph:
  """The import of a Subgraph into the default graph.

  Each import has its own loops, and its own random numbers in each replica.

  Args:
    replacements: the tensors of the default graph by the names of the tensors they replace.
    fetches: the names of the tensors and operations that `find_counterparts` can return.
  """

  def __init__(self, subgraph: Subgraph, replacements: Mapping[str, tf.Tensor],
               fetches: Iterable[str]) -> None:
    self._replacements = dict(replacements)
    graph_def = tf.GraphDef(library=subgraph.library, versions=subgraph.versions)
    graph_def.node.extend(subgraph.nodes.values())
    self._separate_from_other_imports(graph_def, 'model')
    names = [name for name in dict.fromkeys([*fetches, *subgraph.table_initializers])
             if name not in self._replacements]
    used_names = {tensor_name(source) for node in graph_def.node for source in node.input}
    imported = tf.import_graph_def(
        graph_def,
        {name: tensor for name, tensor in self._replacements.items() if name in used_names},
        names, name='model')
    self._imported = dict(zip(names, imported))
    for name in subgraph.table_initializers:
      tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, self._imported[name])

  def _separate_from_other_imports(self, graph_def: tf.GraphDef, name: str) -> None:
    """Makes the nodes of this import independent of the nodes of other imports."""
    graph = tf.get_default_graph()
    # Two loops must not share a frame, and import_graph_def does not rename the frames.
    prefix = graph.unique_name(name, mark_as_used=False)
    devices = {name: tensor.device for name, tensor in self._replacements.items()
               if tensor.dtype == tf.resource and tensor.device}
    context = tf.distribute.get_replica_context()
    replica = int(tf.get_static_value(context.replica_id_in_sync_group) or 0) if context else 0
    for index, node in enumerate(graph_def.node):
      for source in node.input:
        # An operation on a variable runs where the variable is.
        device = devices.get(tensor_name(source))
        if device:
          node.device = device
      if 'frame_name' in node.attr:
        node.attr['frame_name'].s = '{}/{}'.format(
            prefix, node.attr['frame_name'].s.decode()).encode()
      if 'seed' in node.attr and 'seed2' in node.attr:
        seeds = node.attr['seed'].i, node.attr['seed2'].i
        if seeds == (0, 0) and graph.seed is not None:
          seeds = graph.seed, index + 1
        if seeds != (0, 0):
          node.attr['seed'].i, node.attr['seed2'].i = (
              seeds[0], (seeds[1] + _SEED_STEP * replica) % 2 ** 31)

  def find_counterparts(self, structure: Any) -> Any:
    """Returns the counterparts of tensors and operations of the subgraph; see _map_fetches."""
    return _map_fetches(self._find_counterpart, structure)

  def _find_counterpart(self, original: Any) -> Any:
    if original.name in self._replacements:
      return self._replacements[original.name]
    counterpart = self._imported[original.name]
    if isinstance(counterpart, tf.Tensor) and counterpart.shape.ndims is None:
      counterpart.set_shape(original.shape)  # An import loses the shapes of outputs of loops.
    return counterpart


def fetch_names(structure: Any) -> List[str]:
  """Returns the names of the tensors and operations in a structure; see _map_fetches."""
  names = []

  def add_name(fetch: Any) -> Any:
    names.append(fetch.name)
    return fetch

  _map_fetches(add_name, structure)
  return names


def _map_fetches(function: Callable[[Any], Any], structure: Any) -> Any:
  """Applies a function to the tensors and operations in a structure of lists, tuples and dicts.

  Other values in the structure are returned unchanged.
  """
  if isinstance(structure, (tf.Tensor, tf.Operation)):
    return function(structure)
  if isinstance(structure, (tf.SparseTensor, tf.RaggedTensor)):
    return tf.nest.map_structure(function, structure, expand_composites=True)
  if isinstance(structure, dict):
    return {key: _map_fetches(function, value) for key, value in structure.items()}
  if isinstance(structure, tf.IndexedSlices):
    return tf.IndexedSlices(*(_map_fetches(function, tensor) for tensor in (
        structure.values, structure.indices, structure.dense_shape)))
  if isinstance(structure, (list, tuple)):
    mapped = [_map_fetches(function, value) for value in structure]
    return type(structure)(*mapped) if hasattr(structure, '_fields') else mapped
  return structure


def find_ancestors(operations: Iterable[tf.Operation],
                   with_control_inputs: bool = True) -> Set[tf.Operation]:
  """Returns the given operations and all operations on which they depend."""
  ancestors: Set[tf.Operation] = set()
  pending = list(operations)
  while pending:
    operation = pending.pop()
    if operation not in ancestors:
      ancestors.add(operation)
      pending += [tensor.op for tensor in operation.inputs]
      if with_control_inputs:
        pending += operation.control_inputs
  return ancestors


def requires_gpu(graph: tf.Graph) -> bool:
  """Returns whether a graph has operations with kernels for GPUs only, such as CudnnRNN.

  Private API: `get_registered_kernels_for_op` (tensorflow_core/python/framework/kernels.py:36),
  because the public `tf.test` lists no kernels.
  """
  for kind in {operation.type for operation in graph.get_operations()}:
    devices = {kernel.device_type for kernel in kernels.get_registered_kernels_for_op(kind).kernel}
    if 'GPU' in devices and not devices & {'CPU', 'DEFAULT'}:
      return True
  return False


def operation_of(value: Any) -> Any:
  """Returns the operation of a tensor or variable. Returns other values unchanged."""
  return value.op if hasattr(value, 'op') else value


def run_before(first: tf.Operation, operations: Sequence[tf.Operation]) -> None:
  """Makes operations that are already in the graph wait for the operation `first`.

  Private API: `_add_control_input` (tensorflow_core/python/framework/ops.py:2089), because the
  public `tf.control_dependencies` only applies to new operations.
  """
  for operation in operations:
    operation._add_control_input(first)


def is_in_control_flow(operation: tf.Operation) -> bool:
  """Returns whether an operation belongs to a condition or a loop.

  Private API: `_get_control_flow_context` (tensorflow_core/python/framework/ops.py:2247), because
  no public function returns the context.
  """
  return operation._get_control_flow_context() is not None
