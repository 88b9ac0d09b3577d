"""ResNet-50 as in Goyal et al. 2017, arXiv:1706.02677, section 5.1, for imagenet_resnet50.flags.

The differences from `tf.keras.applications.ResNet50`: the 3x3 convolution of a bottleneck has the
stride instead of the first 1x1 convolution; the convolutions have no biases; the last batch norm of
each residual block starts with a scale of 0, so that the block starts as the identity; the weights
of the convolutions start as in He et al. 2015, those of the dense layer with a standard deviation
of 0.01; and batch norm has momentum 0.9 and epsilon 1e-5.
"""

import tensorflow.compat.v1 as tf

layers = tf.keras.layers


def model(image_shape, num_classes):
  inputs = layers.Input(image_shape)
  outputs = layers.ReLU()(convolve(inputs, 64, 7, strides=2))
  outputs = layers.MaxPooling2D(3, strides=2)(layers.ZeroPadding2D(1)(outputs))
  for stage, num_blocks in enumerate((3, 4, 6, 3)):
    for block in range(num_blocks):
      outputs = bottleneck(outputs, 64 * 2 ** stage, strides=2 if stage and not block else 1,
                           projects=not block)
  outputs = layers.GlobalAveragePooling2D()(outputs)
  outputs = layers.Dense(num_classes, activation='softmax',
                         kernel_initializer=tf.keras.initializers.RandomNormal(stddev=.01))(outputs)
  return tf.keras.Model(inputs, outputs)


def bottleneck(inputs, filters, strides, projects):
  """Returns the outputs of a residual block with 4 * `filters` channels.

  Args:
    inputs: the inputs, [B, H, W, C].
    filters: the number of channels of the 3x3 convolution.
    strides: the strides of the 3x3 convolution.
    projects: whether a 1x1 convolution changes the shape of the inputs to that of the outputs.
  """
  residual = layers.ReLU()(convolve(inputs, filters, 1))
  residual = layers.ReLU()(convolve(residual, filters, 3, strides))
  residual = convolve(residual, 4 * filters, 1, scale='zeros')
  shortcut = convolve(inputs, 4 * filters, 1, strides) if projects else inputs
  return layers.ReLU()(layers.add([shortcut, residual]))


def convolve(inputs, filters, kernel_size, strides=1, scale='ones'):
  """Returns the outputs of a convolution with batch norm, whose scale has the given initializer."""
  # Symmetric padding, whereas `same` pads less at the top and left if there are strides.
  padded = layers.ZeroPadding2D(kernel_size // 2)(inputs) if kernel_size > 1 else inputs
  outputs = layers.Conv2D(filters, kernel_size, strides, use_bias=False,
                          kernel_initializer='he_normal')(padded)
  return layers.BatchNormalization(momentum=.9, epsilon=1e-5, gamma_initializer=scale)(outputs)


if __name__ == '__main__':
  print(__doc__)  # The commands that use this module.
