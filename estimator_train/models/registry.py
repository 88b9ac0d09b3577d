"""The models by name, and the user's own; TensorFlow is imported only when one is built."""

import importlib
import inspect
from typing import Any, Tuple

from estimator_train.errors import UserError

NAMES = ('fashion_cnn', 'mnist_conv8', 'mnist_deep', 'mnist_dense', 'mnist_practical')


def is_users_own(name: str) -> bool:
  """Whether the name is that of a function, `package.module:function`."""
  return ':' in name


def build(name: str, image_shape: Tuple[int, int, int], num_classes: int) -> Any:
  """Builds the Keras model of that name.

  Args:
    name: one of NAMES; the module of that name beside this one has the function `build`. Or
      `package.module:function`, where the function takes nothing, or an image's shape and the
      number of classes.
    image_shape: (height, width, channels) of an image.
    num_classes: the number of outputs.

  Returns:
    A tf.keras.Model, float32 [B, height, width, channels] to float32 [B, num_classes]; ours is
    not compiled, the user's may be.

  Raises:
    UserError: the user's function is not there, or returns no such model.
  """
  if not is_users_own(name):
    return importlib.import_module('estimator_train.models.' + name).build(image_shape, num_classes)
  function = _find_function(name)
  wanted = [parameter for parameter in inspect.signature(function).parameters.values()
            if parameter.default is parameter.empty and parameter.kind not in (
                parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)]
  model = function(image_shape, num_classes) if wanted else function()
  _check_shapes(name, model, image_shape, num_classes)
  return model


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
  if shapes != expected:
    raise UserError('the model does not fit the data set',
                    '--model={}: {} to {}, expected a Keras model of {} to {}'.format(
                        name, *(shapes + expected)),
                    'change its input and output, or choose another --dataset')
