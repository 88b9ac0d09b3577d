"""Adds weight decay to a model: a penalty of large kernels in the training loss."""

import tensorflow.compat.v1 as tf

from estimator_train.tf_patches.configurations import nested_layers

# The attributes of Keras layers that hold the regularizer of a kernel.
_KERNEL_REGULARIZERS = ('kernel_regularizer', 'depthwise_regularizer', 'pointwise_regularizer')


def decay_kernels(model: tf.keras.Model, factor: float) -> None:
  """Adds `factor` times half of the sum of the squared kernels to the loss of copies of the model.

  Biases, the parameters of batch normalization, frozen layers and kernels that already have a
  regularizer are left out. The copies that model_to_estimator makes contain the regularizers,
  because Keras copies layers by their configurations; the loss of the model itself is unchanged.

  Args:
    model: the model.
    factor: the value of `--weight_decay`.
  """
  for layer in nested_layers(model):
    for name in _KERNEL_REGULARIZERS:
      if name in vars(layer) and layer.trainable_weights and getattr(layer, name) is None:
        setattr(layer, name, tf.keras.regularizers.l2(factor / 2))
