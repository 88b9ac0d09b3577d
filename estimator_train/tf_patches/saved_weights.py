"""Names, reads and restores the weights of a model."""

import re
from typing import Any, Collection, Dict, List, Optional, Sequence, Set, Tuple

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.core.protobuf import trackable_object_graph_pb2
from tensorflow.python.eager import context
from tensorflow.python.framework import ops
from tensorflow.python.keras import backend
from tensorflow.python.training.tracking.base import OBJECT_GRAPH_PROTO_KEY

from estimator_train.tf_patches import graphs
from estimator_train.tf_patches.keras import nested_layers

Layer = Any  # A tf.keras.layers.Layer.

_SUFFIX = re.compile(r'_\d+$')


def make_restored_value(path: Optional[str], name: str, shape: Any, dtype: tf.DType,
                        **unused_options: Any) -> tf.Tensor:
  """Makes a tensor with the value of a variable in a checkpoint; zeros if the path is None.

  Defect: TensorFlow colocates the operations of an initial value with the variable
  (tensorflow_core/python/ops/resource_variable_ops.py:1534). RestoreV2 has no GPU kernel, so soft
  placement moves the variable, its optimizer slots and their updates to the CPU, too. Symptom: on
  a GPU, each step of a new run copies all weights to the GPU and all gradients back. Private API:
  `Graph._attr_scope` (framework/ops.py:4700), because no public function removes the attribute.
  """
  if path is None:
    return tf.zeros(shape, dtype)
  without_colocation = {'_class': tf.AttrValue(list=tf.AttrValue.ListValue())}
  with tf.device('/cpu:0'), tf.get_default_graph()._attr_scope(without_colocation):
    value, = tf.raw_ops.RestoreV2(prefix=path, tensor_names=[name], shape_and_slices=[''],
                                  dtypes=[dtype])
  value.set_shape(shape)
  return value


def read_variables(path: str, names: Collection[str]) -> Dict[str, Any]:
  """Returns the values of those variables in a checkpoint that have one of the given names.

  Private API: `OBJECT_GRAPH_PROTO_KEY`, because `tf.train.load_checkpoint` reads variables only by
  their keys. In object-based checkpoints, such as those in SavedModels of Keras, the keys differ
  from the names.
  """
  reader = tf.train.load_checkpoint(path)
  keys = {name: name for name in reader.get_variable_to_shape_map()}
  if OBJECT_GRAPH_PROTO_KEY in keys:
    graph = trackable_object_graph_pb2.TrackableObjectGraph.FromString(
        reader.get_tensor(OBJECT_GRAPH_PROTO_KEY))
    keys.update((attribute.full_name, attribute.checkpoint_key)
                for node in graph.nodes for attribute in node.attributes)
  return {name: reader.get_tensor(key) for name, key in keys.items() if name in names}


class ValueReader:
  """Reads the values of variables of a graph.

  Must be constructed in the user's thread, because Keras has a session for each thread.

  Args:
    graph: the graph of the model, or Keras's graph of eager mode.
  """

  def __init__(self, graph: tf.Graph) -> None:
    self._is_eager = tf.executing_eagerly()
    session = None if self._is_eager else (
        tf.get_default_session() or getattr(backend._SESSION, 'session', None))
    self._session = session if session is not None and session.graph is graph else None
    self._graph = graph

  def read(self, variables: Sequence[Any], seed: Optional[int] = None) -> List[np.ndarray]:
    """Returns the values of variables. Variables without a value get their initial values.

    Args:
      variables: the variables. Their graph must be the default graph.
      seed: if no variable has a value, the seed of the random operations in the initial values that
        have no seed. None to use the seed of the graph.
    """
    if not variables:
      return []
    if self._is_eager:
      with context.eager_mode():
        return [variable.numpy() for variable in variables]
    if self._session is not None:
      is_initialized = self._session.run([tf.is_variable_initialized(variable)
                                          for variable in variables])
      if any(is_initialized) or seed is None:
        self._session.run([
            variable.initializer for variable, has_value in zip(variables, is_initialized)
            if not has_value])
        return list(self._session.run(list(variables)))
    # The tensors that read the variables already exist, but have no public name.
    return self._evaluate([variable._graph_element for variable in variables],
                          [variable.initializer for variable in variables], seed)

  def evaluate(self, tensors: Sequence[tf.Tensor]) -> List[np.ndarray]:
    """Returns the values of tensors that depend on no variable."""
    static_values = [tf.get_static_value(tensor) for tensor in tensors]
    if any(value is None for value in static_values):
      return self._evaluate(tensors)
    return static_values

  def _evaluate(self, tensors: Sequence[tf.Tensor], initializers: Sequence[tf.Operation] = (),
                seed: Optional[int] = None) -> List[np.ndarray]:
    """Returns the values of tensors on the CPU, after the initializers have run.

    The session has no GPUs, because the GPU options of the first session of a process apply to all
    of its sessions. It contains only the operations that are needed, because others, such as those
    of CuDNNLSTM, may have no CPU kernel.
    """
    subgraph = graphs.extract_subgraph(
        self._graph, [*initializers, *(tensor.op for tensor in tensors)], set(), {})
    config = tf.ConfigProto(device_count={'GPU': 0}, allow_soft_placement=True)
    with tf.Graph().as_default(), tf.Session(config=config) as session:
      if seed is not None:
        tf.set_random_seed(seed)
      imported = graphs.ImportedSubgraph(
          subgraph, {}, graphs.fetch_names([list(initializers), list(tensors)]))
      session.run(imported.find_counterparts(list(initializers)))
      return list(session.run(imported.find_counterparts(list(tensors))))


def checkpoint_names(model: tf.keras.Model, graph: tf.Graph) -> List[str]:
  """Returns the names that the weights of a model would have if no other model were in its graph.

  TensorFlow adds numbers to the names of scopes to make them unique in the graph. This function
  makes them unique only in the model, in the order in which the scopes were made.

  Returns:
    The names in the order of `model.weights`.
  """
  layers = nested_layers(model)
  layer_names = {layer.name for layer in layers}
  owners = {id(weight): layer for layer in layers
            for weight in (*layer._trainable_weights, *layer._non_trainable_weights)}
  names_in_model = {weight.name for weight in model.weights}
  weights = list({id(weight): weight for weight in model.weights}.values())
  # The layers that use a scope, by its path. In eager mode, layers of the same name share a scope.
  layers_by_path: Dict[str, List[Layer]] = {}

  def add_layer(name: str, layer: Layer) -> None:
    path = _path_of_layer(name, layer.name)
    if path and layer not in layers_by_path.setdefault(path, []):
      layers_by_path[path].append(layer)

  for weight in weights:
    if id(weight) in owners:
      add_layer(weight.name, owners[id(weight)])
  scopes: Dict[Tuple[str, int], str] = {}
  taken_names: Set[str] = set()

  def rename_scope(parts: Sequence[str], owner: Layer = None) -> str:
    """Returns the new path of the scope with these parts. It is empty or ends with a slash."""
    path = parent = ''
    for part in parts:
      path = path + '/' + part if path else part
      candidates = layers_by_path.get(path, [])
      layer = owner if owner in candidates else candidates[0] if candidates else None
      key = path, id(layer)
      if key not in scopes:
        scopes[key] = _make_unique(parent + (
            layer.name if layer is not None else _remove_suffix_of_layer(part, layer_names)),
                                    taken_names)
      parent = scopes[key] + '/'
    return parent

  operations = set() if hasattr(graph, 'captures') else _find_operations_of_model(layers)
  for layer in layers if operations else ():
    for node in layer._inbound_nodes:
      for tensor in tf.nest.flatten(node.output_tensors):
        if isinstance(tensor, tf.Tensor):
          add_layer(tensor.op.name, layer)
  events = [(operation._id, operation.name, None) for operation in operations] + [
      (_creation_order(weight), weight.name.partition(':')[0], weight) for weight in weights]
  names: Dict[int, str] = {}
  for _, name, weight in sorted(events, key=lambda event: event[0]):
    *parts, last = name.split('/')
    parent = rename_scope(parts, owners.get(id(weight)))
    if weight is not None:
      names[id(weight)] = _make_unique(parent + _remove_suffix_of_variable(
          '/'.join(parts), last, graph, names_in_model), taken_names)
  return [names[id(weight)] for weight in model.weights]


def _find_operations_of_model(layers: Sequence[Layer]) -> Set[tf.Operation]:
  """Returns the operations that compute the outputs of a model and of the models in it."""
  operations: Set[tf.Operation] = set()
  pending = [tensor.op for layer in layers if isinstance(layer, tf.keras.Model)
             for tensor in tf.nest.flatten(layer.outputs or [], expand_composites=True)]
  while pending:
    operation = pending.pop()
    if operation not in operations:
      operations.add(operation)
      pending += [tensor.op for tensor in operation.inputs]
  return operations


def _path_of_layer(name: str, layer_name: str) -> str:
  """Returns the path of the last scope in a name that may belong to the layer; '' if none may."""
  parts = name.partition(':')[0].split('/')[:-1]
  pattern = re.compile(re.escape(layer_name) + r'(_\d+)?$')
  index = max((index for index, part in enumerate(parts) if pattern.match(part)), default=-1)
  return '/'.join(parts[:index + 1])


def _remove_suffix_of_layer(part: str, layer_names: Set[str]) -> str:
  """Removes the number that TensorFlow has added to the name of a layer, if any."""
  base = _SUFFIX.sub('', part)
  return base if part not in layer_names and base in layer_names else part


def _creation_order(variable: Any) -> int:
  return 0 if isinstance(getattr(variable, 'handle', None), ops.EagerTensor) else variable.op._id


def _remove_suffix_of_variable(path: str, last: str, graph: tf.Graph,
                               names_in_model: Set[str]) -> str:
  """Removes the number that a variable outside of the model made necessary, if any."""
  base = _SUFFIX.sub('', last)
  other = path + '/' + base if path else base
  is_foreign = base != last and other + ':0' not in names_in_model and other in graph._nodes_by_name
  return base if is_foreign else last


def _make_unique(name: str, taken_names: Set[str]) -> str:
  """Adds a number to a name if the name is taken. The result becomes a taken name, too."""
  unique, number = name, 0
  while unique in taken_names:
    number += 1
    unique = '{}_{}'.format(name, number)
  taken_names.add(unique)
  return unique
