"""Reads and changes operations of a graph: their order and their gradients."""

import contextlib
from typing import Any, Iterator, Sequence, Tuple

import tensorflow.compat.v1 as tf
from tensorflow.python.framework import ops
from tensorflow.python.ops import nn_grad

_NUM_PADDED_CHANNELS = 3  # MKL-DNN has a kernel for images with three channels.


@contextlib.contextmanager
def padded_filter_gradients(is_necessary: bool) -> Iterator[None]:
  """Pads single-channel images for the gradients of convolutions that a `with` block computes.

  Defect: for this gradient, MKL-DNN 0.20 stores images in blocks of 8 channels on processors with
  AVX2, unless the images have three channels (jit_avx2_conv_kernel_f32.cpp, a C++ source that the
  wheel of the oneDNN build does not contain). Symptom: for single-channel images, the kernel
  computes eight times what is needed. Padding the images to three channels with zeros selects the
  kernel for three channels. The padding does not change the gradient, except by rounding. The
  kernels for AVX-512 do not have the defect.

  Private API: the registry of gradients, because `tf.Graph.gradient_override_map` applies to
  operations that are made later.

  Args:
    is_necessary: whether the processor has the defect.
  """
  registered = ops._gradient_registry._registry['Conv2D']
  original = registered['type']
  if is_necessary:
    registered['type'] = _compute_gradients
  try:
    yield
  finally:
    registered['type'] = original


def _compute_gradients(convolution: tf.Operation, gradient: tf.Tensor) -> Tuple[Any, Any]:
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


def run_before(first: tf.Operation, operations: Sequence[tf.Operation]) -> None:
  """Makes operations that are already in the graph wait for the operation `first`.

  Private API: `_add_control_input` (tensorflow_core/python/framework/ops.py:2089), because the
  public `tf.control_dependencies` applies to new operations only.

  Args:
    first: the operation to run first.
    operations: the operations that wait for `first`.
  """
  for operation in operations:
    operation._add_control_input(first)


def is_in_control_flow(operation: tf.Operation) -> bool:
  """Returns whether an operation belongs to a condition or a loop.

  Private API: `_get_control_flow_context` (tensorflow_core/python/framework/ops.py:2247), because
  there is no public one.
  """
  return operation._get_control_flow_context() is not None
