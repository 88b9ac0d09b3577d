"""Builds the Keras model that `--model` names: a network, or the result of a user's function.

The networks are `residual_cnn`, those of the published workloads, and those of
tf.keras.applications. For each network that Keras lacks, this module has a function of the same
name. Its arguments are the shape of the images, (height, width, channels), and the number of
classes. It returns an uncompiled model from float32 [B, height, width, channels] to probabilities
or logits [B, num_classes]. All convolutions are 3x3, and all poolings are 2x2.
"""

import contextlib
import functools
import socket
import sys
from typing import Any, List, Optional, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.data import ImageShape
from estimator_train.distribution import devices
from estimator_train.errors import UserError
from estimator_train.settings import user_code
from estimator_train.settings.flags import KERAS_MODELS
from estimator_train.tf_patches.keras import BatchNormalization, is_graph_network

_SOCKET_TIMEOUT_SECS = 30.
# The default of --trainable_layers, by the value of --model. In all other networks, all layers are
# trained by default. configs/oct2017.flags reproduces an article that trains four layers of VGG16.
_DEFAULT_TRAINABLE_LAYERS = {'vgg16': 4}


def has_imagenet_weights(name: str) -> bool:
  return name in KERAS_MODELS


def build_named_model(name: str, image_shape: Optional[ImageShape], num_classes: int,
                      trainable_layers: Optional[int] = None) -> tf.keras.Model:
  """Builds the Keras model of a name.

  Args:
    name: a value of `--model`. A user's function, `package.module:function`, takes either no
      arguments, or an image shape and the number of classes.
    image_shape: (height, width, channels). None if the examples are not images. Only a user's
      function can then build the model.
    num_classes: 0 if the examples have no classes.
    trainable_layers: for a pretrained network, the number of trained layers directly before the
      top; None for the default of the network.

  Returns:
    A model. For images, its input is float32 [B, height, width, channels]. The input of a
    pretrained network always has three channels. With classes, the output is float32
    [B, num_classes]. Only the model of a user's function may be compiled. It must be compiled if
    there are no classes.

  Raises:
    UserError: the user's function does not exist, raises an exception, or does not return a model
      of these shapes. Or `trainable_layers` is given for a model without ImageNet weights.
    ValueError: the images are too small for the model.
  """
  if has_imagenet_weights(name):
    assert image_shape is not None
    return _build_keras_network(name, image_shape, num_classes, trainable_layers)
  if trainable_layers is not None:
    raise UserError('--trainable_layers requires a pretrained network',
                    '--trainable_layers={} --model={}'.format(trainable_layers, name),
                    'omit it, or choose --model from ' + ', '.join(KERAS_MODELS))
  if not user_code.is_function_name(name):
    return globals()[name](image_shape, num_classes)
  model = user_code.call_function('model', name, 'image_shape, num_classes', image_shape,
                                  num_classes)
  _check_convertible(model, '--model={} is of type {}'.format(name, type(model).__name__))
  if image_shape is not None or num_classes:
    _check_shapes(name, model, image_shape, num_classes)
  elif not model.optimizer:
    raise UserError('a model for examples without classes must be compiled',
                    '--model={} is not compiled'.format(name),
                    'call model.compile(optimizer, loss, metrics) before returning it')
  return model


def _check_convertible(model: Any, model_text: str) -> None:
  """Raises a UserError that contains `model_text` if an Estimator cannot train the model."""
  if not isinstance(model, tf.keras.Model):
    raise UserError('the model must be a tf.keras.Model', model_text,
                    'give a tf.keras.Model; models of the separate package `keras` are different')
  if isinstance(model, tf.keras.Sequential) and not model.built:
    raise UserError('a Sequential model must have an input shape', model_text,
                    'pass input_shape to its first layer')
  if not is_graph_network(model):
    raise UserError('a subclass of tf.keras.Model cannot be converted to an Estimator', model_text,
                    'give a tf.keras.Sequential or tf.keras.Model(inputs, outputs); their layers '
                    'may be of your own classes')


def _check_shapes(name: str, model: tf.keras.Model, image_shape: Optional[ImageShape],
                  num_classes: int) -> None:
  """Raises a UserError unless the model takes the images and has one output [B, num_classes].

  The inputs are checked only if there is an `image_shape`. The input of the model may have an
  unknown height or width. For gray images, it may have three channels, because preprocessing
  repeats the only channel of the images.
  """
  inputs, outputs = ([tuple(tensor.shape.as_list()) for tensor in tensors]
                     for tensors in (model.inputs, model.outputs))
  fits = image_shape is None or len(inputs) == 1 and (
      inputs[0][:1] == (None,) and inputs[0][-1] in (image_shape[2], 3)
      and tf.TensorShape(inputs[0][1:-1]).is_compatible_with(image_shape[:2]))
  if not fits or outputs != [(None, num_classes)]:
    raise UserError('the model does not fit the data set',
                    '--model={}: {} to {}, expected a Keras model of {} to {}'.format(
                        name, *(', '.join(map(str, shapes)) for shapes in (inputs, outputs)),
                        (None, *image_shape) if image_shape else 'any inputs', (None, num_classes)),
                    _propose_shapes(inputs, outputs, image_shape, num_classes))


def _propose_shapes(inputs: Sequence[Sequence[Optional[int]]],
                    outputs: Sequence[Sequence[Optional[int]]], image_shape: Optional[ImageShape],
                    num_classes: int) -> str:
  """Returns the remedy if a model with these shapes does not fit the data."""
  if outputs == [(None, num_classes)] and image_shape and len(inputs[0]) == 4 and (
      None not in inputs[0][1:3]) and inputs[0][3] in (image_shape[2], 3):
    return 'give --image_size={},{}, or change the input of the model'.format(*inputs[0][1:3])
  if outputs == [(None, 1)] and num_classes == 2:
    return 'end the model with two outputs and a softmax in place of one output and a sigmoid'
  return ('change its inputs and outputs, choose another --dataset, or give labels=() and '
          'image_shape=None to the DataSet')


def fashion_cnn(image_shape: ImageShape, num_classes: int) -> tf.keras.Model:
  """Builds the small convolutional network of fashion_mnist.flags. It returns probabilities.

  The images must be at least 18 pixels high and wide. The network has 93,322 parameters for images
  of 28x28x1 and 10 classes.
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
  """Builds the network of Keras's tf.data examples, with 8 filters. It returns probabilities."""
  layers = tf.keras.layers
  return tf.keras.Sequential([
      layers.Conv2D(8, 3, padding='same', activation='relu', input_shape=image_shape),
      layers.Flatten(),
      layers.Dense(num_classes, activation='softmax'),
  ])


def mnist_deep(image_shape: ImageShape, num_classes: int) -> tf.keras.Model:
  """Builds the network of mnist_8gpu.flags, with batch norm and dropout. It returns probabilities.

  Batch norm computes its statistics over the batch of each replica, and each replica draws its own
  dropout masks. The trained weights therefore depend slightly on the number of replicas.
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
  """Builds the network of mnist_multi_worker_simple.flags. It returns logits."""
  layers = tf.keras.layers
  return tf.keras.Sequential([
      layers.Conv2D(32, 3, activation='relu', input_shape=image_shape),
      layers.Flatten(),
      layers.Dense(128, activation='relu'),
      layers.Dense(num_classes),
  ])


def mnist_practical(image_shape: ImageShape, num_classes: int) -> tf.keras.Model:
  """Builds the network of mnist_multi_worker_practical.flags. It returns logits.

  The published tutorial has two examples, which this package calls simple and practical.
  """
  layers = tf.keras.layers
  return tf.keras.Sequential([
      layers.Conv2D(32, 3, activation='relu', input_shape=image_shape),
      layers.MaxPooling2D(2),
      layers.Flatten(),
      layers.Dense(64, activation='relu'),
      layers.Dense(num_classes),
  ])


def residual_cnn(image_shape: ImageShape, num_classes: int) -> tf.keras.Model:
  """Builds the network of examples/fashion_mnist_best.flags. It returns probabilities.

  It is a small residual network with batch norm, for images of about 28x28 pixels.
  """
  layers = tf.keras.layers

  def add_convolution(tensor: tf.Tensor, filters: int) -> tf.Tensor:
    tensor = layers.Conv2D(filters, 3, padding='same', use_bias=False,
                           kernel_initializer='he_normal')(tensor)
    return layers.ReLU()(layers.BatchNormalization(momentum=0.9)(tensor))

  images = tf.keras.Input(image_shape)
  tensor = add_convolution(images, 32)
  for filters, num_residual in ((64, 1), (128, 2)):
    tensor = residual = add_convolution(layers.MaxPooling2D(2)(tensor), filters)
    for _ in range(num_residual):
      residual = add_convolution(residual, filters)
    tensor = layers.Add()([tensor, residual])
  tensor = layers.GlobalAveragePooling2D()(tensor)
  return tf.keras.Model(images, layers.Dense(num_classes, activation='softmax')(tensor))


class ScaledResidualSum(tf.keras.layers.Lambda):
  """The Lambda layer of InceptionResNetV2, under a name by which exports recognize it."""


class _NetworkLayers:
  """Takes the place of the module `tf.keras.layers` in Keras's networks, and replaces three layers.

  Its batch norm runs in inference mode while it is frozen. Its Conv2D uses the initialization of He
  et al. 2015, arXiv:1502.01852. With Keras's default initialization, the activations shrink to
  about a thousandth over the 13 convolutions of VGG16, and training from random weights fails.
  """
  BatchNormalization = BatchNormalization
  Conv2D = functools.partial(tf.keras.layers.Conv2D, kernel_initializer='he_normal')
  Lambda = ScaledResidualSum

  def __getattr__(self, name: str) -> Any:
    return getattr(tf.keras.layers, name)


def _build_keras_network(name: str, image_shape: ImageShape, num_classes: int,
                         trainable_layers: Optional[int]) -> tf.keras.Model:
  """Builds a network of Keras, with a flatten layer and a dense layer in place of its top.

  Args:
    name: the name of a network in `tf.keras.applications`, in lower case.

  Returns:
    An uncompiled model with random weights, from float32 [B, height, width, 3] to probabilities
    [B, num_classes]. Preprocessing repeats the only channel of gray images.

  Raises:
    ValueError: the images are too small for the network.
    UserError: the network has fewer layers than `trainable_layers`.
  """
  if trainable_layers is None:
    trainable_layers = _DEFAULT_TRAINABLE_LAYERS.get(name)
  # Layers must be frozen before they are called. A backbone is therefore built in a temporary graph
  # first, and cloned with its frozen layers.
  with contextlib.ExitStack() if trainable_layers is None else tf.Graph().as_default():
    backbone = _build_backbone(name, image_shape, weights=None)
  if trainable_layers is not None:
    layers = backbone.layers[1:]  # The input layer is the first layer.
    if trainable_layers > len(layers):
      raise UserError('--trainable_layers must not exceed the number of layers',
                      '--trainable_layers={} of {}'.format(trainable_layers, name),
                      'give a number up to {}'.format(len(layers)))
    for layer in layers[:len(layers) - trainable_layers]:
      layer.trainable = False
    backbone = tf.keras.models.clone_model(backbone)
  features = tf.keras.layers.Flatten(name='flatten')(backbone.output)
  outputs = tf.keras.layers.Dense(num_classes, activation='softmax', name='predictions')(features)
  return tf.keras.Model(backbone.input, outputs)


def imagenet_weights(name: str, image_shape: Optional[ImageShape]) -> List[np.ndarray]:
  """Returns the ImageNet weights of a network without its top, in the order of its layers.

  Keras downloads the weights to `~/.keras/models` once, and verifies their published checksum.

  Raises:
    UserError: there are no ImageNet weights for this model, or they cannot be downloaded.
  """
  if not has_imagenet_weights(name) or image_shape is None:
    raise UserError('there are no ImageNet weights for this model',
                    '--weights=imagenet --model=' + name,
                    'give --weights=none, or choose --model from {}'.format(
                        ', '.join(KERAS_MODELS)))
  previous_timeout = socket.getdefaulttimeout()
  socket.setdefaulttimeout(_SOCKET_TIMEOUT_SECS)
  try:
    with devices.cpu_session() as session:
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
  """Builds a network without its top. The weights are `imagenet`, or None for random weights."""
  # tf.keras.applications has functions such as VGG16, and modules such as vgg16.
  function_name, = [attribute for attribute in dir(tf.keras.applications)
                    if attribute.lower() == name and attribute != name]
  return getattr(tf.keras.applications, function_name)(
      weights=weights, include_top=False, input_shape=image_shape[:2] + (3,),
      layers=_NetworkLayers())
