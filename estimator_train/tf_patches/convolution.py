"""Makes the gradients of convolutions of single-channel images faster with oneDNN."""

from typing import Any, Tuple

import tensorflow.compat.v1 as tf
from tensorflow.python.ops import nn_grad

_GRADIENT_NAME = 'EstimatorTrainPaddedConv2D'
_NUM_CHANNELS = 3  # MKL-DNN has a kernel for images with three channels.


def pad_filter_gradients(graph: tf.Graph) -> None:
  """Pads single-channel images for the gradients of the convolutions that are built in a graph.

  Defect: for this gradient, MKL-DNN 0.20 stores images in blocks of 8 channels on processors with
  AVX2, unless the images have three channels (jit_avx2_conv_kernel_f32.cpp, a C++ source that the
  wheel of the oneDNN build does not contain). Symptom: for single-channel images, the kernel
  computes eight times what is needed. Padding the images to three channels with zeros selects the
  kernel for three channels. The padding does not change the gradient, except by rounding. The
  kernels for AVX-512 do not have the defect.

  Unlike `tf.Graph.gradient_override_map`, which this function replaces, the setting remains until
  the end of the graph, because replicas build their models in several threads at the same time.
  """
  graph._gradient_override_map['Conv2D'] = _GRADIENT_NAME


@tf.RegisterGradient(_GRADIENT_NAME)
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
  padded_images = tf.pad(images, [[0, 0]] * 3 + [[0, _NUM_CHANNELS - 1]])
  filter_gradient = tf.nn.conv2d_backprop_filter(
      padded_images, [height, width, _NUM_CHANNELS, num_filters], gradient, **options)
  return (tf.nn.conv2d_backprop_input(tf.shape(images), filters, gradient, **options),
          filter_gradient[:, :, :1, :])
