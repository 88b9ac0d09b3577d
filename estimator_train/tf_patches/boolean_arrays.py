"""Keeps the masks of recurrent layers on GPUs."""

from typing import Any, Collection, Dict, Set

import tensorflow.compat.v1 as tf

from estimator_train.tf_patches import graphs

# The operations on arrays and stacks, with the attribute of their type, the index of the input that
# has the elements, and whether output 0 has elements.
_OPERATIONS = {
    'TensorArrayV3': ('dtype', None, False), 'TensorArrayScatterV3': ('T', 2, False),
    'TensorArrayWriteV3': ('T', 2, False), 'TensorArrayReadV3': ('dtype', None, True),
    'TensorArrayGatherV3': ('dtype', None, True), 'StackV2': ('elem_type', None, False),
    'StackPushV2': ('T', 1, True), 'StackPopV2': ('elem_type', None, True),
}


def store_as_float16(subgraph: graphs.Subgraph, fetched_names: Collection[str]) -> graphs.Subgraph:
  """Returns a subgraph that stores arrays and stacks of booleans as float16, with equal results.

  The subgraph is returned unchanged if it fetches such an array, or uses it in another way than
  recurrent layers and loops do.

  Defect: TensorFlow has no GPU kernels for arrays of booleans, and keeps stacks of booleans in the
  memory of the host. `keras.backend.rnn` puts the mask of a recurrent layer into an array
  (tensorflow_core/python/keras/backend.py:3960), and the gradient of its loop puts the conditions
  into a stack. Symptom: with a mask, each time step of a recurrent layer on a GPU copies a part of
  the mask to the GPU, and in training the condition to the host and back.

  Args:
    fetched_names: the names of the operations whose results are fetched.
  """
  nodes: Dict[str, Any] = dict(subgraph.nodes)
  converted: Set[str] = set()
  for node in subgraph.nodes.values():
    attribute, index, has_elements = _OPERATIONS.get(node.op, ('', None, False))
    if not attribute or node.attr[attribute].type != tf.bool.as_datatype_enum:
      if node.op.startswith('TensorArray') and node.op not in _OPERATIONS and any(
          value.type == tf.bool.as_datatype_enum for value in node.attr.values()):
        return subgraph  # An operation that is not listed uses an array of booleans.
      continue
    if has_elements and node.name in fetched_names:
      return subgraph
    changed = nodes[node.name] = tf.NodeDef()
    changed.CopyFrom(node)
    changed.attr[attribute].type = tf.float16.as_datatype_enum
    if index is not None:
      name = node.name + '/as_float16'
      nodes[name] = _make_cast(name, node.input[index], tf.bool, tf.float16)
      changed.input[index] = name
    if has_elements:
      converted.add(node.name)
  for node in list(nodes.values()):
    for position, source in enumerate(node.input):
      if source in converted or (source.endswith(':0') and source[:-2] in converted):
        name = graphs.operation_name(source) + '/as_bool'
        nodes.setdefault(name, _make_cast(name, graphs.operation_name(source), tf.float16, tf.bool))
        if nodes[node.name] is subgraph.nodes.get(node.name):
          nodes[node.name] = tf.NodeDef()
          nodes[node.name].CopyFrom(node)
        nodes[node.name].input[position] = name
  return subgraph._replace(nodes=nodes)


def _make_cast(name: str, source: str, from_type: tf.DType, to_type: tf.DType) -> Any:
  return tf.NodeDef(name=name, op='Cast', input=[source], attr={
      'SrcT': tf.AttrValue(type=from_type.as_datatype_enum),
      'DstT': tf.AttrValue(type=to_type.as_datatype_enum)})
