"""Builds the Keras model that `--model` names, and checks the model of a user's function."""

from typing import Any, List, Optional, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.errors import UserError
from estimator_train.models import networks
from estimator_train.settings import choices, user_code
from estimator_train.tf_patches.keras import is_graph_network

# The default of --trainable_layers, by the value of --model. All layers of the other networks are
# trained. configs/oct2017.flags reproduces an article that trains four layers of VGG16.
_DEFAULT_TRAINABLE_LAYERS = {'vgg16': 4}


def has_imagenet_weights(name: str) -> bool:
  """Returns whether there are ImageNet weights for the model."""
  return name in choices.KERAS_MODELS


def build(name: str, image_shape: Optional[Tuple[int, int, int]], num_classes: int,
          trainable_layers: Optional[int] = None) -> tf.keras.Model:
  """Builds a Keras model by name.

  Args:
    name: one of choices.MODELS, or `package.module:function` for a function of the user that takes
      either no arguments, or an image shape and the number of classes.
    image_shape: (height, width, channels) of an image; None: the examples are not images. Only a
      function of the user can build a model for such examples.
    num_classes: the number of outputs; 0: the examples have no classes.
    trainable_layers: for a pretrained network, the number of trained layers directly before the
      top; None: the network's default.

  Returns:
    A model. For images, it is a function of float32 [B, height, width, channels]; the input of a
    pretrained network has three channels, even for images of one channel. With classes, its output
    is float32 [B, num_classes]. Only a function of the user may return a compiled model, and must
    do so if there are no classes.

  Raises:
    UserError: the user's function does not exist, raises an exception, or
      does not return a model of these shapes; or `trainable_layers` is given for a model without
      ImageNet weights.
    ValueError: the images are too small for the model.
  """
  if has_imagenet_weights(name):
    assert image_shape is not None
    if trainable_layers is None:
      trainable_layers = _DEFAULT_TRAINABLE_LAYERS.get(name)
    return networks.build_keras_network(name, image_shape, num_classes, trainable_layers)
  if trainable_layers is not None:
    raise UserError('--trainable_layers requires a pretrained network',
                    '--trainable_layers={} --model={}'.format(trainable_layers, name),
                    'omit it, or choose --model from ' + ', '.join(choices.KERAS_MODELS))
  if not user_code.is_function_name(name):
    return getattr(networks, name)(image_shape, num_classes)
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


def imagenet_weights(name: str, image_shape: Optional[Tuple[int, int, int]]) -> List[np.ndarray]:
  """Returns the ImageNet weights of a network without its top.

  Raises:
    UserError: there are no ImageNet weights for this model, or they cannot be downloaded.
  """
  if not has_imagenet_weights(name) or image_shape is None:
    raise UserError('there are no ImageNet weights for this model',
                    '--weights=imagenet --model=' + name,
                    'give --weights=none, or choose --model from {}'.format(
                        ', '.join(choices.KERAS_MODELS)))
  return networks.imagenet_weights(name, image_shape)


def _check_convertible(model: Any, given: str) -> None:
  """Raises a UserError that states `given` if the model cannot be converted to an Estimator."""
  if not isinstance(model, tf.keras.Model):
    raise UserError('the model must be a tf.keras.Model', given,
                    'give a tf.keras.Model; models of the separate package `keras` are different')
  if isinstance(model, tf.keras.Sequential) and not model.built:
    raise UserError('a Sequential model must have an input shape', given,
                    'pass input_shape to its first layer')
  if not is_graph_network(model):
    raise UserError('a subclass of tf.keras.Model cannot be converted to an Estimator', given,
                    'give a tf.keras.Sequential or tf.keras.Model(inputs, outputs); their layers '
                    'may be of your own classes')


def _check_shapes(name: str, model: tf.keras.Model, image_shape: Optional[Tuple[int, int, int]],
                  num_classes: int) -> None:
  """Raises a UserError unless the model has one output, with a number per class, and takes images.

  The inputs are only checked if there is an `image_shape`. The model may take any height or width,
  and three channels of a grey image, which preprocessing repeats.
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
                    'change its inputs and outputs, choose another --dataset, or give labels=() '
                    'and image_shape=None to the DataSet')
