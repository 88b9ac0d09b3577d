"""Makes the variables of a Keras model in other graphs.

Private API: the handle of a variable and the classes of a strategy's variables have no public
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

# The methods of variables, by the types of the operations that they make.
_ASSIGNMENT_METHODS = {'AssignVariableOp': 'assign', 'AssignAddVariableOp': 'assign_add',
                       'AssignSubVariableOp': 'assign_sub'}
# Prefixes of the types of operations that change a variable that is not a resource variable.
_REFERENCE_CHANGES = ('Assign', 'Scatter', 'Count')


class _OriginalVariable(NamedTuple):
  """A variable of the graph of a model.

  Attributes:
    kind: `weight` of the model, `metric` for the state of a metric, `step` for the global step,
      `other` for a variable that does not belong to the model.
    is_trained: whether an optimizer changes it.
    is_reference: whether operations of the subgraph change it by its reference.
    value: the initial value; None unless the kind is `metric` or `other`.
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
    method: the name of the method of the variable.
    value: the argument of the method, in the graph of the model.
  """
  handle_name: str
  method: str
  value: tf.Tensor


class OriginalVariables:
  """The variables of the graph of a model. Must be constructed in this graph."""

  def __init__(self, model: tf.keras.Model, graph: tf.Graph,
               values: saved_weights.ValueReader) -> None:
    self._model, self._graph, self._values = model, graph, values
    self._captured: Dict[str, Callable[[], tf.Tensor]] = {}
    self._by_handle: Dict[str, _OriginalVariable] = {}
    trained = {id(weight) for weights in trained_weights(model) for weight in weights}
    for weight in model.weights:
      self._add(_OriginalVariable(weight, 'weight', id(weight) in trained))
    steps = [*graph.get_collection(tf.GraphKeys.GLOBAL_STEP),
             getattr(getattr(model, 'optimizer', None), '_iterations', None)]
    for step in steps:
      if step is not None and hasattr(step, 'handle'):
        self._add(_OriginalVariable(step, 'step', False))
    for variable in (*graph.get_collection(tf.GraphKeys.GLOBAL_VARIABLES),
                     *graph.get_collection(tf.GraphKeys.LOCAL_VARIABLES)):
      self._add(_OriginalVariable(variable, 'other', False))

  def _add(self, variable: _OriginalVariable) -> None:
    self._by_handle.setdefault(self.handle(variable.original).name, variable)

  def add_metrics(self, metric_variables: Iterable[Any]) -> None:
    """Adds the variables of metrics. Each evaluation starts from their initial values."""
    for variable in metric_variables:
      self._by_handle[self.handle(variable).name] = _OriginalVariable(variable, 'metric', False)

  def handle(self, variable: Any) -> tf.Tensor:
    """Returns the handle of a variable in the graph of the model, or its reference."""
    handle = variable.handle if hasattr(variable, 'handle') else variable._ref()
    # Keras's graph captures the variables of eager mode.
    return self._graph.capture(handle) if isinstance(handle, ops.EagerTensor) else handle

  @property
  def handle_op_names(self) -> Set[str]:
    """The names of the operations of the handles, and of the placeholders of captured tensors."""
    return {name.partition(':')[0] for name in self._by_handle} | {
        tensor.op.name for _, tensor in self._captured_pairs()}

  def _captured_pairs(self) -> List[Tuple[Any, tf.Tensor]]:
    """Returns the tensors outside of Keras's graph of eager mode, with their placeholders in it."""
    captures: Any = getattr(self._graph, 'captures', None) or {}
    return list(captures.items() if hasattr(captures, 'items') else captures)

  def remove_unused(self, subgraph: graphs.Subgraph) -> None:
    """Removes variables that a subgraph does not use, except weights. Reads the initial values."""
    used = {name: variable for name, variable in self._by_handle.items()
            if variable.kind == 'weight' or name.partition(':')[0] in subgraph.replaced_names}
    self._by_handle = used
    for node in subgraph.nodes.values():
      name = graphs.tensor_name(node.input[0]) if node.input else ''
      if node.op.startswith(_REFERENCE_CHANGES) and name in used:
        used[name] = used[name]._replace(is_reference=not hasattr(used[name].original, 'handle'))
    readers: Dict[str, Any] = {'other': self._values.read, 'metric': self._initial_values}
    for kind, read_values in readers.items():
      selected = {name: variable for name, variable in used.items() if variable.kind == kind}
      for (name, variable), value in zip(
          selected.items(), read_values([variable.original for variable in selected.values()])):
        used[name] = variable._replace(value=value)
    for tensor, placeholder in self._captured_pairs():
      if placeholder.op.name in subgraph.replaced_names and placeholder.name not in used:
        self._captured[placeholder.name] = _make_counterpart_function(tensor, [
            node for node in subgraph.nodes.values() if placeholder.op.name in node.input])

  def _initial_values(self, variables: Sequence[Any]) -> List[np.ndarray]:
    if variables and isinstance(getattr(variables[0], 'handle', None), ops.EagerTensor):
      with context.eager_mode():
        for metric in self._model.metrics:
          metric.reset_states()
        return [variable.numpy() for variable in variables]
    return self._values.evaluate([variable.initial_value for variable in variables])

  def make_variables(self, weight_names: Sequence[str],
                     weights_path: Optional[str]) -> 'ImportedVariables':
    names = dict(zip(map(id, self._model.weights), weight_names))
    return ImportedVariables(self._by_handle, self._captured, names, weights_path)


def _make_counterpart_function(tensor: Any, consumers: Sequence[Any]) -> Callable[[], tf.Tensor]:
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
  """Variables in the default graph that replace the variables of a subgraph of a model's graph.

  Args:
    by_handle: the variables of the subgraph, by the names of their handles.
    captured: the functions that make counterparts of the other tensors that Keras's graph of eager
      mode captures, by the names of their placeholders.
    weight_names: the names of the weights, by the ids of the originals.
    weights_path: the path of a checkpoint with the initial values of the weights; None for zeros.

  Attributes:
    by_id: the variables, by the ids of the originals.
  """

  def __init__(self, by_handle: Dict[str, _OriginalVariable],
               captured: Dict[str, Callable[[], tf.Tensor]], weight_names: Dict[int, str],
               weights_path: Optional[str]) -> None:
    self._captured, self._weights_path = captured, weights_path
    self._reference_names = {name for name, variable in by_handle.items()
                             if not hasattr(variable.original, 'handle')}
    self._by_handle: Dict[str, Any] = {}
    self.by_id: Dict[int, Any] = {}
    for handle_name, variable in by_handle.items():
      new_variable = self._make_variable(variable, weight_names.get(
          id(variable.original), variable.original.name.partition(':')[0]))
      self._by_handle[handle_name] = self.by_id[id(variable.original)] = new_variable

  def _make_variable(self, variable: _OriginalVariable, name: str) -> Any:
    original = variable.original
    if variable.kind == 'step':
      return tf.train.get_or_create_global_step()
    dtype, shape = original.dtype.base_dtype, original.shape
    if variable.is_reference and tf.distribute.has_strategy():
      raise InvalidValue('a distribution strategy requires resource variables', name,
                         'give use_resource=True to tf.Variable, or call layer.add_weight')

    def make_initial_value() -> tf.Tensor:
      if variable.kind != 'weight':
        return tf.constant(variable.value, dtype)
      return saved_weights.make_restored_value(self._weights_path, name, shape, dtype)

    with tf.name_scope(None):
      new_variable = tf.Variable(
          make_initial_value, variable.is_trained, name=name, dtype=dtype,
          use_resource=not variable.is_reference,
          constraint=original.constraint, aggregation=original.aggregation,
          synchronization=original.synchronization, collections=[
              tf.GraphKeys.LOCAL_VARIABLES, tf.GraphKeys.METRIC_VARIABLES]
          if variable.kind == 'metric' else None)
    new_name = new_variable.name.partition(':')[0]
    if variable.kind == 'weight' and new_name != name:
      raise InvalidValue(
          'an input_fn must not give the name of a weight to a scope or an operation',
          'a weight of the model would have the name ' + new_name,
          'rename the scope, the operation or the layer')
    return new_variable

  def make_replacements(self) -> Dict[str, tf.Tensor]:
    """Returns the tensors that replace handles and captured tensors, by name."""
    replacements = {name: make_counterpart() for name, make_counterpart in self._captured.items()}
    for name, variable in self._by_handle.items():
      local = variable.get() if hasattr(variable, 'get') else variable
      if name not in self._reference_names:
        replacements[name] = local.handle
      elif hasattr(local, 'handle'):  # The value takes the place of the reference.
        replacements[name] = tf.convert_to_tensor(local)
      else:
        replacements[name] = local._ref()
    return replacements

  def split_updates(
      self, updates: Sequence[tf.Operation], subgraph: graphs.Subgraph,
      fed_operation_names: Set[str]) -> Tuple[List[tf.Operation], List[Assignment]]:
    """Splits updates into operations to run, and assignments that a strategy must make.

    The operations to run may include assignments of each replica to its own copy of a variable, if
    the copies may differ, or if all replicas assign the same value.

    Args:
      fed_operation_names: the names of the operations that a batch replaces.

    Raises:
      InvalidValue: the strategy must make an assignment that is only a part of an update.
    """
    nodes = subgraph.nodes
    assigned_names = {
        node.name for node in nodes.values() if node.op in _ASSIGNMENT_METHODS
        and _must_be_assigned_by_strategy(self._by_handle.get(graphs.tensor_name(node.input[0])))
        and _differs_between_replicas(node.name, nodes, fed_operation_names)}
    used_updates = [update for update in updates if update.name in nodes]
    if not assigned_names:
      return used_updates, []
    remaining_updates, assignments, split_names = [], [], set()
    for update in used_updates:
      names = _find_assignments(update.name, nodes)
      if names and names <= assigned_names:
        split_names |= names
      else:
        remaining_updates.append(update)
    if assigned_names - split_names:
      node = nodes[min(assigned_names - split_names)]
      raise InvalidValue(
          'with a distribution strategy, a layer must assign to variables by add_update',
          '{} is assigned to by {}'.format(
              self._by_handle[graphs.tensor_name(node.input[0])].name.partition(':')[0], node.name),
          'call self.add_update(variable.assign(value), inputs=True) in the call of the layer, or '
          'train without a strategy')
    graph = updates[0].graph
    for name in sorted(split_names):
      node = nodes[name]
      assignments.append(Assignment(
          graphs.tensor_name(node.input[0]), _ASSIGNMENT_METHODS[node.op],
          graph.as_graph_element(graphs.tensor_name(node.input[1]))))
    return remaining_updates, assignments

  def updated_copies(self, subgraph: graphs.Subgraph) -> List[Any]:
    """Returns the float variables of which each replica updates its own copy."""
    updated = [self._by_handle.get(graphs.tensor_name(node.input[0]))
               for node in subgraph.nodes.values() if node.op in _ASSIGNMENT_METHODS]
    return [variable for variable in dict.fromkeys(updated)
            if isinstance(variable, distribute_values.SyncOnReadVariable)
            and variable.dtype.is_floating]

  def make_assignments(self, assignments: Sequence[Assignment],
                       imported: graphs.ImportedSubgraph) -> List[Any]:
    return [graphs.operation_of(getattr(self._by_handle[assignment.handle_name], assignment.method)(
        imported.find_counterparts(assignment.value))) for assignment in assignments]


def _must_be_assigned_by_strategy(variable: Any) -> bool:
  return tf.distribute.has_strategy() and isinstance(
      variable, (distribute_values.MirroredVariable, distribute_values.AggregatingVariable)
  ) and not isinstance(variable, distribute_values.SyncOnReadVariable)


def _differs_between_replicas(name: str, nodes: graphs.Nodes,
                              fed_operation_names: Set[str]) -> bool:
  """Returns whether a node depends on the batch or on random numbers of a replica."""
  visited, pending = {name}, [name]
  while pending:
    current = pending.pop()
    if current in fed_operation_names or current in nodes and 'seed' in nodes[current].attr:
      return True
    sources = {graphs.operation_name(source) for source in (
        nodes[current].input if current in nodes else ())} - visited
    visited |= sources
    pending += sources
  return False


def _find_assignments(name: str, nodes: graphs.Nodes) -> Set[str]:
  """Returns the assignments of which an update consists; empty if it has other operations."""
  node = nodes.get(name)
  if node is None or node.op in _ASSIGNMENT_METHODS:
    return {name}
  if node.op == 'ReadVariableOp' or node.op in ('Identity', 'NoOp'):
    sources = [source for source in node.input if source[0] == '^' or node.op == 'Identity']
    return {assignment for source in sources
            for assignment in _find_assignments(graphs.operation_name(source), nodes)}
  return set()
