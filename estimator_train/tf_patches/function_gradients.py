"""Works around gradients that change the operations of a graph.

Defect: the gradient of a tf.function adds outputs to its operation
(tensorflow_core/python/eager/function.py:659), as do those of loops and conditions that are
functions. A session does not see the change of an operation that it has run. Symptom: every further
call of the session fails with `Connecting to invalid output`; the Keras model is of no use anymore.
"""

import contextlib

import tensorflow.compat.v1 as tf
from tensorflow.python.framework import func_graph
from tensorflow.python.ops import control_flow_ops

# Operations that call functions, and have gradients.
_CALLS = frozenset(['PartitionedCall', 'StatefulPartitionedCall', 'If', 'StatelessIf', 'While',
                    'StatelessWhile'])


def _depends_on_calls(tensor: tf.Tensor) -> bool:
  found, pending = set(), [tensor.op]
  while pending:
    operation = pending.pop()
    if operation.type in _CALLS:
      return True
    if operation not in found:
      found.add(operation)
      pending += [source.op for source in operation.inputs]
  return False


def copy_if_gradients_change_it(loss: tf.Tensor) -> tf.Graph:
  """Returns the graph of a loss, or a copy of it if `tf.gradients` would change its operations."""
  graph = loss.graph
  if isinstance(graph, func_graph.FuncGraph) or not _depends_on_calls(loss):
    return graph  # No session runs Keras's graph of eager mode.
  copy = tf.Graph()
  with copy.as_default():
    tf.import_graph_def(graph.as_graph_def(), name='')
    # An import does not know the loops and conditions of TensorFlow 1.
    for key, context in ((tf.GraphKeys.WHILE_CONTEXT, control_flow_ops.WhileContext),
                         (tf.GraphKeys.COND_CONTEXT, control_flow_ops.CondContext)):
      for original in graph.get_collection(key):
        context.from_proto(original.to_proto())
    for initializer in graph.get_collection(tf.GraphKeys.TABLE_INITIALIZERS):
      tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS,
                           copy.as_graph_element(initializer.name))
  copy.as_graph_element(loss.name).set_shape(loss.shape)  # An import loses it behind functions.
  return copy


def make_training_function(model: tf.keras.Model) -> None:
  """Makes Keras's training function before a session runs a model that has tf.functions.

  Without it, `fit` would fail after a conversion, which reads the weights in Keras's session.

  Private API: `_make_train_function` (keras/engine/training.py:2091), and `_keras_initialized`
  (keras/backend.py:888), by which Keras marks the weights that it has initialized.

  Args:
    model: a model whose inputs are known, and whose graph is the default graph.
  """
  loss = getattr(model, 'total_loss', None)  # A model that is not compiled has none.
  if isinstance(loss, tf.Tensor) and _depends_on_calls(loss) and not any(
      getattr(weight, '_keras_initialized', False) for weight in model.weights):
    with contextlib.suppress(ValueError):  # The model cannot be trained, by `fit` either.
      model._make_train_function()
