"""The models by name, and the user's own; TensorFlow is imported only when one is built."""

import importlib
import inspect
from typing import Any, Optional, Tuple

from estimator_train.errors import UserError

_OURS = ('fashion_cnn', 'mnist_conv8', 'mnist_deep', 'mnist_dense', 'mnist_practical')
# By their names in tf.keras.applications.
_APPLICATIONS = {function.lower(): function for function in (
    'VGG16', 'VGG19', 'ResNet50', 'ResNet101', 'ResNet152', 'ResNet50V2', 'ResNet101V2',
    'ResNet152V2', 'InceptionV3', 'InceptionResNetV2', 'Xception', 'MobileNet', 'MobileNetV2',
    'DenseNet121', 'DenseNet169', 'DenseNet201', 'NASNetMobile', 'NASNetLarge')}
_TRAINABLE_LAYERS = {'vgg16': 4}  # As published; all of the others.

NAMES = _OURS + tuple(_APPLICATIONS)


def is_users_own(name: str) -> bool:
  """Whether the name is that of a function, `package.module:function`."""
  return ':' in name


def is_pretrained(name: str) -> bool:
  """Whether there are ImageNet weights of the model."""
  return name in _APPLICATIONS


def build(name: str, image_shape: Tuple[int, int, int], num_classes: int,
          trainable_layers: Optional[int] = None) -> Any:
  """Builds the Keras model of that name.

  Args:
    name: one of NAMES; the module of that name beside this one has the function `build`. Or
      `package.module:function`, where the function takes nothing, or an image's shape and the
      number of classes.
    image_shape: (height, width, channels) of an image.
    num_classes: the number of outputs.
    trainable_layers: the last layers of a pretrained network that train; None: its default.

  Returns:
    A tf.keras.Model, float32 [B, height, width, channels] to float32 [B, num_classes]; ours is
    not compiled, the user's may be. Pretrained networks take three channels, of grey images too.

  Raises:
    UserError: the user's function is not there, or returns no such model; or no layers of this
      model can be frozen.
    ValueError: the images are too small for the model.
  """
  if is_pretrained(name):
    applications = importlib.import_module('estimator_train.models.applications')
    if trainable_layers is None:
      trainable_layers = _TRAINABLE_LAYERS.get(name)
    return applications.build(_APPLICATIONS[name], image_shape, num_classes, trainable_layers)
  if trainable_layers is not None:
    raise UserError('--trainable_layers is for pretrained networks',
                    '--trainable_layers={} --model={}'.format(trainable_layers, name),
                    'leave it out, or choose from ' + ', '.join(_APPLICATIONS))
  if not is_users_own(name):
    return importlib.import_module('estimator_train.models.' + name).build(image_shape, num_classes)
  function = _find_function(name)
  wanted = [parameter for parameter in inspect.signature(function).parameters.values()
            if parameter.default is parameter.empty and parameter.kind not in (
                parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)]
  model = function(image_shape, num_classes) if wanted else function()
  _check_shapes(name, model, image_shape, num_classes)
  return model


def imagenet_weights(name: str, image_shape: Tuple[int, int, int]) -> Any:
  """Returns the ImageNet weights of a network without its head, NumPy arrays in its order.

  Raises:
    UserError: there are none of this model, or they cannot be downloaded.
  """
  if not is_pretrained(name):
    raise UserError('there are no ImageNet weights of this model',
                    '--weights=imagenet --model=' + name,
                    'give --weights=none, or choose from ' + ', '.join(_APPLICATIONS))
  applications = importlib.import_module('estimator_train.models.applications')
  return applications.imagenet_weights(_APPLICATIONS[name], image_shape)


def _find_function(name: str) -> Any:
  module, _, function = name.partition(':')
  try:
    return getattr(importlib.import_module(module), function)
  except (ImportError, AttributeError, ValueError) as error:
    raise UserError('the model\'s function cannot be imported',
                    '--model={} ({})'.format(name, error),
                    'give package.module:function, importable from this folder or PYTHONPATH'
                    ) from error


def _check_shapes(name: str, model: Any, image_shape: Tuple[int, int, int],
                  num_classes: int) -> None:
  shapes = (getattr(model, 'input_shape', None), getattr(model, 'output_shape', None))
  expected = ((None,) + image_shape, (None, num_classes))
  in_colour = ((None,) + image_shape[:2] + (3,), (None, num_classes))  # Grey is repeated.
  if shapes not in (expected, in_colour):
    raise UserError('the model does not fit the data set',
                    '--model={}: {} to {}, expected a Keras model of {} to {}'.format(
                        name, *(shapes + expected)),
                    'change its input and output, or choose another --dataset')
