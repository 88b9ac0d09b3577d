"""Computes gradients of functions and convolutions, and uses gradients that are already known."""

import contextlib
from typing import Any, Iterator, List, Sequence, Tuple

import tensorflow.compat.v1 as tf
from tensorflow.python.framework import func_graph, ops
from tensorflow.python.ops import control_flow_ops, nn_grad

from estimator_train.tf_patches.graphs import find_ancestors

_KNOWN_GRADIENTS = 'EstimatorTrainKnownGradients'
_NUM_PADDED_CHANNELS = 3  # MKL-DNN has a kernel for images with three channels.
# The types of operations that call functions and have gradients.
_CALL_TYPES = frozenset(['PartitionedCall', 'StatefulPartitionedCall', 'If', 'StatelessIf', 'While',
                         'StatelessWhile'])


def _depends_on_calls(tensor: tf.Tensor) -> bool:
  # Gradients do not follow control inputs.
  return any(operation.type in _CALL_TYPES
             for operation in find_ancestors([tensor.op], with_control_inputs=False))


def copy_graph_if_gradients_change_it(loss: tf.Tensor) -> tf.Graph:
  """Returns the graph of a loss, or a copy if `tf.gradients` would change operations in it.

  Defect: computing the gradient of a tf.function, or of a loop or condition that is a function,
  adds outputs to its operation (tensorflow_core/python/eager/function.py:659). A session does not
  see the change of an operation that it has run. Symptom: every further call of the session fails
  with `Connecting to invalid output`, so the Keras model can no longer be used.
  """
  graph = loss.graph
  if isinstance(graph, func_graph.FuncGraph) or not _depends_on_calls(loss):
    return graph  # A FuncGraph is Keras's graph of eager mode, which no session runs.
  copy = tf.Graph()
  with copy.as_default():
    tf.import_graph_def(graph.as_graph_def(), name='')
    # import_graph_def does not import the contexts of loops and conditions of TensorFlow 1.
    for key, context in ((tf.GraphKeys.WHILE_CONTEXT, control_flow_ops.WhileContext),
                         (tf.GraphKeys.COND_CONTEXT, control_flow_ops.CondContext)):
      for original in graph.get_collection(key):
        context.from_proto(original.to_proto())
    for initializer in graph.get_collection(tf.GraphKeys.TABLE_INITIALIZERS):
      tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS,
                           copy.as_graph_element(initializer.name))
  copy.as_graph_element(loss.name).set_shape(loss.shape)  # The import loses shapes after functions.
  return copy


def make_training_function(model: tf.keras.Model) -> None:
  """Makes Keras's training function before a session runs a model that has tf.functions.

  Without this function, `fit` would fail after a conversion to an Estimator, because the conversion
  reads the weights in Keras's session.

  Private API: `_make_train_function` (keras/engine/training.py:2091), and `_keras_initialized`
  (keras/backend.py:888), by which Keras marks the weights that it has initialized.

  Args:
    model: a model whose inputs are known, and whose graph is the default graph.
  """
  loss = getattr(model, 'total_loss', None)  # A model that is not compiled has none.
  if isinstance(loss, tf.Tensor) and _depends_on_calls(loss) and not any(
      getattr(weight, '_keras_initialized', False) for weight in model.weights):
    with contextlib.suppress(ValueError):  # The model cannot be trained, not even by `fit`.
      model._make_train_function()


@contextlib.contextmanager
def pad_filter_gradients(is_necessary: bool) -> Iterator[None]:
  """Pads images of one channel for the gradients of convolutions that a `with` block computes.

  Defect: for this gradient, MKL-DNN 0.20 stores images in blocks of 8 channels on processors with
  AVX2, unless the images have three channels (jit_avx2_conv_kernel_f32.cpp, a C++ source that the
  wheel of the oneDNN build does not contain). Symptom: for images of one channel, the kernel
  computes eight times what is needed. If the images are padded to three channels with zeros, the
  kernel for three channels is used. The padding does not change the gradient, except by rounding.
  The kernels for AVX-512 do not have the defect.

  Private API: the registry of gradients, because `tf.Graph.gradient_override_map` applies to
  operations that are made later.

  Args:
    is_necessary: whether the processor has the defect. If False, nothing is padded.
  """
  registration = ops._gradient_registry._registry['Conv2D']
  original_function = registration['type']
  if is_necessary:
    registration['type'] = _compute_padded_gradients
  try:
    yield
  finally:
    registration['type'] = original_function


def _compute_padded_gradients(convolution: tf.Operation, gradient: tf.Tensor) -> Tuple[Any, Any]:
  """Returns the gradients of the inputs [B, height, width, channels] and of the filters."""
  images, filters = convolution.inputs
  strides, padding, data_format, dilations = (
      convolution.get_attr(name) for name in ('strides', 'padding', 'data_format', 'dilations'))
  if (images.shape[-1] != 1 or data_format != b'NHWC' or padding not in (b'SAME', b'VALID')
      or images.dtype != tf.float32 or not filters.shape.is_fully_defined()):
    return nn_grad._Conv2DGrad(convolution, gradient)
  options = {'strides': strides, 'padding': padding.decode(), 'dilations': dilations}
  height, width, _, num_filters = filters.shape.as_list()
  padded_images = tf.pad(images, [[0, 0]] * 3 + [[0, _NUM_PADDED_CHANNELS - 1]])
  filter_gradient = tf.nn.conv2d_backprop_filter(
      padded_images, [height, width, _NUM_PADDED_CHANNELS, num_filters], gradient, **options)
  return (tf.nn.conv2d_backprop_input(tf.shape(images), filters, gradient, **options),
          filter_gradient[:, :, :1, :])


class KnownGradients:
  """A loss whose gradients have already been computed.

  `tf.gradients` of the attribute `loss` returns these gradients. Each optimizer can therefore use
  and change them like the gradients of any other loss.

  Args:
    value: the value of the loss.
    upstream_gradient: the return value of make_upstream_gradient, by which all gradients are
      multiplied. When an optimizer computes the gradients, `tf.gradients` provides its value.
    gradients: for each variable, a tensor, IndexedSlices or None.

  Attributes:
    loss: a scalar tensor. It has the value of the loss only after `connect_loss`.
  """

  def __init__(self, value: tf.Tensor, upstream_gradient: tf.Tensor, variables: Sequence[Any],
               gradients: Sequence[Any]) -> None:
    self._value, self._loss_gradient = value, upstream_gradient
    for variable, gradient in zip(variables, gradients):
      if isinstance(gradient, tf.Tensor):
        gradient.set_shape(variable.shape)  # The shape is lost in loops.
    # tf.gradients must not visit the imported operations, because their loops have no contexts in
    # Python. Until `connect_loss`, the loss is therefore computed from zeros.
    placeholder_loss = tf.zeros(value.shape, value.dtype)
    with tf.get_default_graph().gradient_override_map({'IdentityN': _KNOWN_GRADIENTS}):
      self.loss = tf.identity_n([placeholder_loss, *map(tf.convert_to_tensor, variables)])[0]
    self.loss.op.known_gradients = self
    self._gradients = list(gradients)

  def multiply_by(self, upstream_gradient: tf.Tensor) -> List[Any]:
    """Returns the gradients, multiplied by the gradient with respect to the loss."""
    self._loss_gradient.op._update_input(0, upstream_gradient)
    return [None, *self._gradients]

  def connect_loss(self) -> None:
    """Gives `loss` its value. Must be called after all optimizers have computed gradients."""
    self.loss.op._update_input(0, self._value)


@tf.RegisterGradient(_KNOWN_GRADIENTS)
def _return_known_gradients(operation: tf.Operation, upstream_gradient: tf.Tensor,
                            *unused_gradients: Any) -> List[Any]:
  return list(operation.known_gradients.multiply_by(upstream_gradient))


def make_upstream_gradient(value: tf.Tensor) -> tf.Tensor:
  """Returns the gradient with respect to a loss, from which backpropagation starts.

  It has the shape and dtype of `value`, and is 1 until KnownGradients replaces its input.
  """
  return tf.identity(tf.ones(value.shape, value.dtype))
