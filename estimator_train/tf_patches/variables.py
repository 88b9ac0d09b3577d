"""Makes the variables of a Keras model in other graphs.

Private API: neither the handle of a variable nor the classes of a strategy's variables have public
names.
"""

import functools
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.python.distribute import values as distribute_values
from tensorflow.python.eager import context
from tensorflow.python.framework import ops
from tensorflow.python.ops import (
  gen_lookup_ops,
  gen_resource_variable_ops,
  resource_variable_ops,
)

from estimator_train.errors import InvalidValue
from estimator_train.tf_patches import graphs, saved_weights
from estimator_train.tf_patches.compiled_models import trained_weights

# The methods of variables, by the operations on their handles.
_ASSIGNMENTS = {'AssignVariableOp': 'assign', 'AssignAddVariableOp': 'assign_add',
                'AssignSubVariableOp': 'assign_sub'}
# Prefixes of the types of operations that change a variable that is no resource.
_REFERENCE_CHANGES = ('Assign', 'Scatter', 'Count')


class _Variable(NamedTuple):
  """A variable of the graph of a model.

  Attributes:
    original: the variable.
    kind: `weight` of the model, `metric` for the state of a metric, `step` for the global step,
      `other` for a variable that is no part of the model.
    is_trained: whether training changes it.
    is_reference: whether operations of the part change the variable by its reference.
    value: the initial value of a variable of the kind `metric` or `other`.
  """
  original: Any
  kind: str
  is_trained: bool
  is_reference: bool = False
  value: Optional[np.ndarray] = None


class Assignment(NamedTuple):
  """An assignment to a variable that its strategy must make, to change it on all replicas.

  Attributes:
    handle_name: the name of the variable's handle in the graph of the model.
    method: the method of the variable.
    value: the argument of the method, in the graph of the model.
  """
  handle_name: str
  method: str
  value: tf.Tensor


class OriginalVariables:
  """The variables of the graph of a model; must be constructed in this graph."""

  def __init__(self, model: tf.keras.Model, graph: tf.Graph,
               values: saved_weights.ValueReader) -> None:
    self._model, self._graph, self._values = model, graph, values
    self._captured: Dict[str, Callable[[], tf.Tensor]] = {}
    self._by_handle: Dict[str, _Variable] = {}
    trained = {id(weight) for weights in trained_weights(model) for weight in weights}
    for weight in model.weights:
      self._add(_Variable(weight, 'weight', id(weight) in trained))
    steps = [*graph.get_collection(tf.GraphKeys.GLOBAL_STEP),
             getattr(getattr(model, 'optimizer', None), '_iterations', None)]
    for step in steps:
      if step is not None and hasattr(step, 'handle'):
        self._add(_Variable(step, 'step', False))
    for variable in (*graph.get_collection(tf.GraphKeys.GLOBAL_VARIABLES),
                     *graph.get_collection(tf.GraphKeys.LOCAL_VARIABLES)):
      self._add(_Variable(variable, 'other', False))

  def _add(self, variable: _Variable) -> None:
    self._by_handle.setdefault(self.handle(variable.original).name, variable)

  def add_metrics(self, metric_variables: Iterable[Any]) -> None:
    """Adds the variables of metrics. Each evaluation starts with their initial values."""
    for variable in metric_variables:
      self._by_handle[self.handle(variable).name] = _Variable(variable, 'metric', False)

  def handle(self, variable: Any) -> tf.Tensor:
    """Returns the handle of a variable in the graph of the model, or its reference."""
    handle = variable.handle if hasattr(variable, 'handle') else variable._ref()
    # Keras's graph captures the variables of eager mode.
    return self._graph.capture(handle) if isinstance(handle, ops.EagerTensor) else handle

  @property
  def handle_op_names(self) -> Set[str]:
    """The names of the operations that make the handles, or represent captured tensors."""
    return {name.partition(':')[0] for name in self._by_handle} | {
        tensor.op.name for _, tensor in self._captured_pairs()}

  def _captured_pairs(self) -> List[Tuple[Any, tf.Tensor]]:
    """Returns pairs of a tensor outside of Keras's graph of eager mode and its placeholder."""
    captures: Any = getattr(self._graph, 'captures', None) or {}
    return list(captures.items() if hasattr(captures, 'items') else captures)

  def keep_used(self, subgraph: graphs.Subgraph) -> None:
    """Keeps only the weights and the variables that a subgraph uses, and reads initial values."""
    used = {name: variable for name, variable in self._by_handle.items()
            if variable.kind == 'weight' or name.partition(':')[0] in subgraph.replaced}
    self._by_handle = used
    for node in subgraph.nodes.values():
      name = graphs.tensor_name(node.input[0]) if node.input else ''
      if node.op.startswith(_REFERENCE_CHANGES) and name in used:
        used[name] = used[name]._replace(is_reference=not hasattr(used[name].original, 'handle'))
    readers: Dict[str, Any] = {'other': self._values.read, 'metric': self._initial_values}
    for kind, read in readers.items():
      chosen = {name: variable for name, variable in used.items() if variable.kind == kind}
      for (name, variable), value in zip(
          chosen.items(), read([variable.original for variable in chosen.values()])):
        used[name] = variable._replace(value=value)
    for outside, inside in self._captured_pairs():
      if inside.op.name in subgraph.replaced and inside.name not in used:
        self._captured[inside.name] = _capture(outside, [
            node for node in subgraph.nodes.values() if inside.op.name in node.input])

  def _initial_values(self, variables: Sequence[Any]) -> List[np.ndarray]:
    if variables and isinstance(getattr(variables[0], 'handle', None), ops.EagerTensor):
      with context.eager_mode():
        for metric in self._model.metrics:
          metric.reset_states()
        return [variable.numpy() for variable in variables]
    return self._values.evaluate([variable.initial_value for variable in variables])

  def make(self, weight_names: Sequence[str], weights_path: Optional[str]) -> 'ImportedVariables':
    """Makes the variables in the default graph; see ImportedVariables."""
    names = dict(zip(map(id, self._model.weights), weight_names))
    return ImportedVariables(self._by_handle, self._captured, names, weights_path)


def _capture(tensor: Any, consumers: Sequence[Any]) -> Callable[[], tf.Tensor]:
  """Returns a function that makes the counterpart of a tensor of eager mode in the default graph.

  Args:
    tensor: a tensor with a value, or the handle of a variable or lookup table.
    consumers: the nodes that use the tensor.
  """
  with context.eager_mode():
    if tensor.dtype != tf.resource:
      return functools.partial(tf.constant, tensor.numpy(), tensor.dtype)
    is_initialized = not any(node.op == 'LookupTableImportV2' for node in consumers)
    for node in consumers:
      if node.op.startswith('LookupTable'):
        types = tf.as_dtype(node.attr['Tin'].type), tf.as_dtype(node.attr['Tout'].type)
        if not is_initialized:  # A node of the graph initializes it.
          return functools.partial(gen_lookup_ops.hash_table_v2, *types)
        keys, values = gen_lookup_ops.lookup_table_export_v2(tensor, *types)
        return functools.partial(_make_table, keys.numpy(), values.numpy(), *types)
    shape_and_type = resource_variable_ops.get_eager_safe_handle_data(tensor).shape_and_type
    return functools.partial(_make_constant_variable, gen_resource_variable_ops.read_variable_op(
        tensor, shape_and_type[0].dtype).numpy())


def _make_table(keys: np.ndarray, values: np.ndarray, key_type: tf.DType,
                value_type: tf.DType) -> tf.Tensor:
  table = gen_lookup_ops.hash_table_v2(key_type, value_type)
  tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, gen_lookup_ops.lookup_table_import_v2(
      table, tf.constant(keys, key_type), tf.constant(values, value_type)))
  return table


def _make_constant_variable(value: np.ndarray) -> tf.Tensor:
  return tf.Variable(value, trainable=False, use_resource=True,
                     collections=[tf.GraphKeys.LOCAL_VARIABLES]).handle


class ImportedVariables:
  """Variables in the default graph that replace the variables of a part of a model's graph.

  Args:
    by_handle: the variables of the part, by the names of their handles.
    captured: for each other tensor that Keras's graph of eager mode captures, by name, a function
      that makes its counterpart.
    weight_names: the names of the weights, by the ids of the originals.
    weights_path: the path of a checkpoint with the initial values of the weights; None for zeros.

  Attributes:
    by_id: the variables, by the ids of the originals.
  """

  def __init__(self, by_handle: Dict[str, _Variable], captured: Dict[str, Callable[[], tf.Tensor]],
               weight_names: Dict[int, str], weights_path: Optional[str]) -> None:
    self._captured, self._weights_path = captured, weights_path
    self._reference_names = {name for name, variable in by_handle.items()
                             if not hasattr(variable.original, 'handle')}
    self._by_handle: Dict[str, Any] = {}
    self.by_id: Dict[int, Any] = {}
    for handle_name, variable in by_handle.items():
      made = self._make(variable, weight_names.get(
          id(variable.original), variable.original.name.partition(':')[0]))
      self._by_handle[handle_name] = self.by_id[id(variable.original)] = made

  def _make(self, variable: _Variable, name: str) -> Any:
    original = variable.original
    if variable.kind == 'step':
      return tf.train.get_or_create_global_step()
    dtype, shape = original.dtype.base_dtype, original.shape
    if variable.is_reference and tf.distribute.has_strategy():
      raise InvalidValue('a distribution strategy requires resource variables', name,
                         'give use_resource=True to tf.Variable, or call layer.add_weight')

    def initial_value() -> tf.Tensor:
      if variable.kind != 'weight':
        return tf.constant(variable.value, dtype)
      return saved_weights.restored_value(self._weights_path, name, shape, dtype)

    with tf.name_scope(None):
      made = tf.Variable(
          initial_value, variable.is_trained, name=name, dtype=dtype,
          use_resource=not variable.is_reference,
          constraint=original.constraint, aggregation=original.aggregation,
          synchronization=original.synchronization, collections=[
              tf.GraphKeys.LOCAL_VARIABLES, tf.GraphKeys.METRIC_VARIABLES]
          if variable.kind == 'metric' else None)
    made_name = made.name.partition(':')[0]
    if variable.kind == 'weight' and made_name != name:
      raise InvalidValue(
          'an input_fn must not give the name of a weight to a scope or an operation',
          'a weight of the model would have the name ' + made_name,
          'rename the scope, the operation or the layer')
    return made

  def replacements(self) -> Dict[str, tf.Tensor]:
    """Returns the tensors that replace handles and captured tensors, by name."""
    found = {name: make() for name, make in self._captured.items()}
    for name, variable in self._by_handle.items():
      local = variable.get() if hasattr(variable, 'get') else variable
      if name in self._reference_names:  # The value takes the place of the reference.
        found[name] = tf.convert_to_tensor(local) if hasattr(local, 'handle') else local._ref()
      else:
        found[name] = local.handle
    return found

  def split_updates(self, updates: Sequence[tf.Operation], subgraph: graphs.Subgraph,
            fed_names: Set[str]) -> Tuple[List[tf.Operation], List[Assignment]]:
    """Splits updates into operations to run, and assignments that a strategy must make.

    The operations to run may include assignments of each replica to its own copy of a variable, if
    the strategy keeps the copies apart, or if all replicas assign the same value.

    Args:
      fed_names: the names of the operations that a batch replaces.

    Raises:
      InvalidValue: the strategy must make an assignment that is not an update by itself.
    """
    nodes = subgraph.nodes
    assigned = {node.name for node in nodes.values() if node.op in _ASSIGNMENTS
                and _needs_strategy(self._by_handle.get(graphs.tensor_name(node.input[0])))
                and _differs_between_replicas(node.name, nodes, fed_names)}
    kept = [update for update in updates if update.name in nodes]
    if not assigned:
      return kept, []
    remaining, assignments, made = [], [], set()
    for update in kept:
      names = _assignments_in(update.name, nodes)
      if names and names <= assigned:
        made |= names
      else:
        remaining.append(update)
    if assigned - made:
      node = nodes[min(assigned - made)]
      raise InvalidValue(
          'with a distribution strategy, a layer must assign to variables by add_update',
          '{} is assigned to by {}'.format(
              self._by_handle[graphs.tensor_name(node.input[0])].name.partition(':')[0], node.name),
          'call self.add_update(variable.assign(value), inputs=True) in the call of the layer, or '
          'train without a strategy')
    graph = updates[0].graph
    for name in sorted(made):
      node = nodes[name]
      assignments.append(Assignment(
          graphs.tensor_name(node.input[0]), _ASSIGNMENTS[node.op],
          graph.as_graph_element(graphs.tensor_name(node.input[1]))))
    return remaining, assignments

  def updated_copies(self, subgraph: graphs.Subgraph) -> List[Any]:
    """Returns the float variables whose copies a part changes separately on each replica."""
    found = [self._by_handle.get(graphs.tensor_name(node.input[0]))
             for node in subgraph.nodes.values() if node.op in _ASSIGNMENTS]
    return [variable for variable in dict.fromkeys(found)
            if isinstance(variable, distribute_values.SyncOnReadVariable)
            and variable.dtype.is_floating]

  def assign(self, assignments: Sequence[Assignment], imported: graphs.Import) -> List[Any]:
    """Lets the strategy make the assignments, and returns their operations."""
    return [graphs.operation_of(getattr(self._by_handle[assignment.handle_name], assignment.method)(
        imported.find(assignment.value))) for assignment in assignments]


def _needs_strategy(variable: Any) -> bool:
  return tf.distribute.has_strategy() and isinstance(
      variable, (distribute_values.MirroredVariable, distribute_values.AggregatingVariable)
  ) and not isinstance(variable, distribute_values.SyncOnReadVariable)


def _differs_between_replicas(name: str, nodes: graphs.Nodes, fed_names: Set[str]) -> bool:
  """Returns whether a node depends on the batch or on random numbers of a replica."""
  found, pending = {name}, [name]
  while pending:
    current = pending.pop()
    if current in fed_names or current in nodes and 'seed' in nodes[current].attr:
      return True
    sources = {graphs.operation_name(source) for source in (
        nodes[current].input if current in nodes else ())} - found
    found |= sources
    pending += sources
  return False


def _assignments_in(name: str, nodes: graphs.Nodes) -> Set[str]:
  """Returns the assignments of which an update consists; empty if it has other operations."""
  node = nodes.get(name)
  if node is None or node.op in _ASSIGNMENTS:
    return {name}
  if node.op == 'ReadVariableOp' or node.op in ('Identity', 'NoOp'):
    sources = [source for source in node.input if source[0] == '^' or node.op == 'Identity']
    return {found for source in sources
            for found in _assignments_in(graphs.operation_name(source), nodes)}
  return set()
