"""Builds the networks of `tf.keras.applications`, with a head for the classes of the data set."""

import contextlib
import functools
import socket
import sys
from typing import Any, List, Optional, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.errors import UserError
from estimator_train.tf_patches.keras import BatchNormalization

_SOCKET_TIMEOUT_SECS = 30.


class ScaledResidualSum(tf.keras.layers.Lambda):
  """The Lambda layer of InceptionResNetV2, under a name by which exports recognize it."""


class _Layers:
  """Takes the place of `tf.keras.layers`, with another batch norm, Conv2D and Lambda.

  The batch norm runs in inference mode while it is frozen. Conv2D uses the initialization of He et
  al. 2015, arXiv:1502.01852. With Keras's default initialization, the activations shrink to about a
  thousandth over the 13 convolutions of VGG16, and training from random weights fails.
  """
  BatchNormalization = BatchNormalization
  Conv2D = functools.partial(tf.keras.layers.Conv2D, kernel_initializer='he_normal')
  Lambda = ScaledResidualSum

  def __getattr__(self, name: str) -> Any:
    return getattr(tf.keras.layers, name)


def build(function_name: str, image_shape: Tuple[int, int, int], num_classes: int,
          trainable_layers: Optional[int]) -> tf.keras.Model:
  """Builds a network whose top is replaced by a flatten layer and a dense layer.

  Args:
    function_name: the name of the function in `tf.keras.applications`.
    image_shape: (height, width, channels) of an image. The input of the network always has three
      channels; preprocessing repeats the channel of grey images.
    num_classes: the number of outputs.
    trainable_layers: the number of trained layers directly before the new top, which is always
      trained; None: all layers.

  Returns:
    An uncompiled model with random weights, from float32 [B, height, width, 3] to probabilities [B,
    num_classes].

  Raises:
    ValueError: the images are too small for the network.
    UserError: the network has fewer layers than `trainable_layers`.
  """
  backbone = _build_backbone(function_name, image_shape, weights=None)
  layers = backbone.layers[1:]  # The first one is the input layer.
  if trainable_layers is not None:
    if trainable_layers > len(layers):
      raise UserError('--trainable_layers must not exceed the number of layers',
                      '--trainable_layers={} of {}'.format(trainable_layers, function_name),
                      'give a number up to {}'.format(len(layers)))
    for layer in layers[:len(layers) - trainable_layers]:
      layer.trainable = False
  features = tf.keras.layers.Flatten(name='flatten')(backbone.output)
  outputs = tf.keras.layers.Dense(num_classes, activation='softmax', name='predictions')(features)
  return tf.keras.Model(backbone.input, outputs)


def imagenet_weights(function_name: str, image_shape: Tuple[int, int, int]) -> List[np.ndarray]:
  """Returns the ImageNet weights of a network without its top, in the order of its layers.

  Keras downloads the weights to `~/.keras/models` once, and verifies their published checksum.

  Raises:
    UserError: the weights cannot be downloaded.
  """
  previous_timeout = socket.getdefaulttimeout()
  socket.setdefaulttimeout(_SOCKET_TIMEOUT_SECS)
  try:
    with tf.Graph().as_default(), tf.Session(
        config=tf.ConfigProto(device_count={'GPU': 0})) as session:
      tf.keras.backend.set_session(session)
      with contextlib.redirect_stdout(sys.stderr):  # Keras prints progress to standard output.
        return _build_backbone(function_name, image_shape, weights='imagenet').get_weights()
  except Exception as error:  # Keras raises Exception itself if a download fails.
    raise UserError('the ImageNet weights cannot be downloaded',
                    '--weights=imagenet ({})'.format(error),
                    'give --weights=PATH of the "notop" .h5 file of this network, or '
                    '--weights=none') from error
  finally:
    tf.keras.backend.set_session(None)
    socket.setdefaulttimeout(previous_timeout)


def _build_backbone(function_name: str, image_shape: Tuple[int, int, int],
                    weights: Optional[str]) -> tf.keras.Model:
  """Builds a network without its top; the weights are `imagenet`, or None for random weights."""
  return getattr(tf.keras.applications, function_name)(
      weights=weights, include_top=False, input_shape=image_shape[:2] + (3,), layers=_Layers())
