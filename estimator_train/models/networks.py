"""The networks of `--model`: those of the published workloads, and those of tf.keras.applications.

Each function `NAME` of a published workload takes the shape of the images, (height, width,
channels), and the number of classes. It returns an uncompiled model from float32 [B, height, width,
channels] to probabilities or logits [B, num_classes]. All convolutions are 3x3, all poolings 2x2.
"""

import contextlib
import functools
import socket
import sys
from typing import Any, List, Optional, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.errors import UserError
from estimator_train.tf_patches.keras import BatchNormalization

ImageShape = Tuple[int, int, int]

_SOCKET_TIMEOUT_SECS = 30.


def fashion_cnn(image_shape: ImageShape, num_classes: int) -> tf.keras.Model:
  """Builds the small convolutional network of fashion_mnist.flags.

  The images must be at least 18 pixels high and wide. The model has 93,322 parameters for images of
  28x28x1 and 10 classes. Its outputs are probabilities.
  """
  layers = tf.keras.layers
  return tf.keras.Sequential([
      layers.Conv2D(32, 3, activation='relu', input_shape=image_shape),
      layers.MaxPooling2D(2),
      layers.Conv2D(64, 3, activation='relu'),
      layers.MaxPooling2D(2),
      layers.Conv2D(64, 3, activation='relu'),
      layers.Flatten(),
      layers.Dense(64, activation='relu'),
      layers.Dense(num_classes, activation='softmax'),
  ])


def mnist_conv8(image_shape: ImageShape, num_classes: int) -> tf.keras.Model:
  """Builds one convolution with 8 filters, as in Keras's tf.data examples.

  Its outputs are probabilities.
  """
  layers = tf.keras.layers
  return tf.keras.Sequential([
      layers.Conv2D(8, 3, padding='same', activation='relu', input_shape=image_shape),
      layers.Flatten(),
      layers.Dense(num_classes, activation='softmax'),
  ])


def mnist_deep(image_shape: ImageShape, num_classes: int) -> tf.keras.Model:
  """Builds the network of mnist_8gpu.flags, with batch norm and dropout.

  Batch norm computes its statistics over the batch of each replica, and each replica draws its own
  dropout masks. The trained weights therefore depend slightly on the number of replicas. The
  outputs are probabilities.
  """
  layers = tf.keras.layers
  return tf.keras.Sequential([
      layers.Conv2D(32, 3, activation='relu', input_shape=image_shape),
      layers.Conv2D(256, 3, activation='relu'),
      layers.BatchNormalization(),
      layers.Conv2D(128, 3, activation='relu'),
      layers.MaxPooling2D(2),
      layers.Dropout(0.25),
      layers.Flatten(),
      layers.Dense(128, activation='relu'),
      layers.Dropout(0.5),
      layers.Dense(num_classes, activation='softmax'),
  ])


def mnist_dense(image_shape: ImageShape, num_classes: int) -> tf.keras.Model:
  """Builds the network of mnist_multi_worker_simple.flags. Its outputs are logits."""
  layers = tf.keras.layers
  return tf.keras.Sequential([
      layers.Conv2D(32, 3, activation='relu', input_shape=image_shape),
      layers.Flatten(),
      layers.Dense(128, activation='relu'),
      layers.Dense(num_classes),
  ])


def mnist_practical(image_shape: ImageShape, num_classes: int) -> tf.keras.Model:
  """Builds the network of mnist_multi_worker_practical.flags. Its outputs are logits.

  The publication has two examples, which this package calls the simple and the practical form.
  """
  layers = tf.keras.layers
  return tf.keras.Sequential([
      layers.Conv2D(32, 3, activation='relu', input_shape=image_shape),
      layers.MaxPooling2D(2),
      layers.Flatten(),
      layers.Dense(64, activation='relu'),
      layers.Dense(num_classes),
  ])


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


def build_keras_network(name: str, image_shape: ImageShape, num_classes: int,
                        trainable_layers: Optional[int]) -> tf.keras.Model:
  """Builds a network of Keras, with a flatten layer and a dense layer in place of its top.

  Args:
    name: the name of a network in `tf.keras.applications`, in lower case.
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
  backbone = _build_backbone(name, image_shape, weights=None)
  layers = backbone.layers[1:]  # The first one is the input layer.
  if trainable_layers is not None:
    if trainable_layers > len(layers):
      raise UserError('--trainable_layers must not exceed the number of layers',
                      '--trainable_layers={} of {}'.format(trainable_layers, name),
                      'give a number up to {}'.format(len(layers)))
    for layer in layers[:len(layers) - trainable_layers]:
      layer.trainable = False
  features = tf.keras.layers.Flatten(name='flatten')(backbone.output)
  outputs = tf.keras.layers.Dense(num_classes, activation='softmax', name='predictions')(features)
  return tf.keras.Model(backbone.input, outputs)


def imagenet_weights(name: str, image_shape: ImageShape) -> List[np.ndarray]:
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
        return _build_backbone(name, image_shape, weights='imagenet').get_weights()
  except Exception as error:  # Keras raises Exception itself if a download fails.
    raise UserError('the ImageNet weights cannot be downloaded',
                    '--weights=imagenet ({})'.format(error),
                    'give --weights=PATH of the "notop" .h5 file of this network, or '
                    '--weights=none') from error
  finally:
    tf.keras.backend.set_session(None)
    socket.setdefaulttimeout(previous_timeout)


def _build_backbone(name: str, image_shape: ImageShape, weights: Optional[str]) -> tf.keras.Model:
  """Builds a network without its top; the weights are `imagenet`, or None for random weights."""
  # The functions have the names of the networks, and the modules the same names in lower case.
  function, = [function for function in dir(tf.keras.applications)
               if function.lower() == name and function != name]
  return getattr(tf.keras.applications, function)(
      weights=weights, include_top=False, input_shape=image_shape[:2] + (3,), layers=_Layers())
