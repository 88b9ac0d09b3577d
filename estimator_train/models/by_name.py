"""Builds and checks models by name. TensorFlow is imported only to build or check a model."""

import importlib
from typing import Any, Optional, Sequence, Tuple

from estimator_train.errors import UserError
from estimator_train.settings import user_code

# The functions in tf.keras.applications, by the value of --model.
_APPLICATIONS = {function.lower(): function for function in (
    'VGG16', 'VGG19', 'ResNet50', 'ResNet101', 'ResNet152', 'ResNet50V2', 'ResNet101V2',
    'ResNet152V2', 'InceptionV3', 'InceptionResNetV2', 'Xception', 'MobileNet', 'MobileNetV2',
    'DenseNet121', 'DenseNet169', 'DenseNet201', 'NASNetMobile', 'NASNetLarge')}
# The default of --trainable_layers, by the value of --model. All layers of the other networks are
# trained. configs/oct2017.flags reproduces an article that trains four layers of VGG16.
_DEFAULT_TRAINABLE_LAYERS = {'vgg16': 4}


def has_imagenet_weights(name: str) -> bool:
  """Returns whether there are ImageNet weights for the model."""
  return name in _APPLICATIONS


def build(name: str, image_shape: Optional[Tuple[int, int, int]], num_classes: int,
          trainable_layers: Optional[int] = None) -> Any:
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
    A tf.keras.Model. For images, it is a function of float32 [B, height, width, channels]; the
    input of a pretrained network has three channels, even for images of one channel. With classes,
    its output is float32 [B, num_classes]. Only a function of the user may return a compiled model,
    and must do so if there are no classes.

  Raises:
    UserError: the user's function does not exist, raises an exception, or
      does not return a model of these shapes; or `trainable_layers` is given for a model without
      ImageNet weights.
    ValueError: the images are too small for the model.
  """
  if has_imagenet_weights(name):
    applications = importlib.import_module('estimator_train.models.applications')
    if trainable_layers is None:
      trainable_layers = _DEFAULT_TRAINABLE_LAYERS.get(name)
    return applications.build(_APPLICATIONS[name], image_shape, num_classes, trainable_layers)
  if trainable_layers is not None:
    raise UserError('--trainable_layers requires a pretrained network',
                    '--trainable_layers={} --model={}'.format(trainable_layers, name),
                    'omit it, or choose --model from ' + ', '.join(_APPLICATIONS))
  if not user_code.is_function_name(name):
    networks = importlib.import_module('estimator_train.models.networks')
    return getattr(networks, name)(image_shape, num_classes)
  model = user_code.call_function('model', name, 'image_shape, num_classes', image_shape,
                                  num_classes)
  check_convertible(model, '--model=' + name)
  if image_shape is not None:
    _check_shapes(name, model, image_shape, num_classes)
  elif num_classes:
    _check_classifier(name, model, num_classes)
  elif not model.optimizer:
    raise UserError('a model for examples without classes must be compiled',
                    '--model={} is not compiled'.format(name),
                    'call model.compile(optimizer, loss, metrics) before returning it')
  return model


def imagenet_weights(name: str, image_shape: Optional[Tuple[int, int, int]]) -> Any:
  """Returns the ImageNet weights of a network without its top, as NumPy arrays.

  Raises:
    UserError: there are no ImageNet weights for this model, or they cannot be downloaded.
  """
  if not has_imagenet_weights(name) or image_shape is None:
    raise UserError('there are no ImageNet weights for this model',
                    '--weights=imagenet --model=' + name,
                    'give --weights=none, or choose --model from ' + ', '.join(_APPLICATIONS))
  applications = importlib.import_module('estimator_train.models.applications')
  return applications.imagenet_weights(_APPLICATIONS[name], image_shape)


def check_convertible(model: Any, name: str) -> None:
  """Raises a UserError if model_to_estimator cannot convert the model.

  Args:
    model: the model.
    name: the argument or flag that gives the model, for the error message.
  """
  import tensorflow.compat.v1 as tf  # Imported only to check a model.

  from estimator_train.tf_patches.keras import is_graph_network

  given = '{} is of type {}'.format(name, type(model).__name__)
  if not isinstance(model, tf.keras.Model):
    raise UserError('the model must be a tf.keras.Model', given,
                    'give a tf.keras.Model; models of the separate package `keras` are different')
  if isinstance(model, tf.keras.Sequential) and not model.built:
    raise UserError('a Sequential model must have an input shape', given,
                    'pass input_shape to its first layer')
  # model_to_estimator loses the weights of models that are not graph networks.
  if not is_graph_network(model):
    raise UserError('a subclass of tf.keras.Model cannot be converted to an Estimator', given,
                    'give a tf.keras.Sequential or tf.keras.Model(inputs, outputs); their layers '
                    'may be of your own classes')


def _check_shapes(name: str, model: Any, image_shape: Tuple[int, int, int],
                  num_classes: int) -> None:
  """Raises a UserError unless the model maps one batch of images to one output per class."""
  counts = len(model.inputs), len(model.outputs)
  if counts != (1, 1):
    raise UserError('a model for images must have one input and one output',
                    '--model={} has {} input(s) and {} output(s)'.format(name, *counts),
                    'give labels=() and image_shape=None to the DataSet')
  actual_shapes = (model.input_shape, model.output_shape)
  expected_shapes = ((None,) + image_shape, (None, num_classes))
  # Preprocessing can repeat the channel of grey images, so a model may take three channels.
  rgb_shape = expected_shapes[0][:3] + (3,)
  if not (any(_input_fits(actual_shapes[0], shape) for shape in (expected_shapes[0], rgb_shape))
          and actual_shapes[1] == expected_shapes[1]):
    raise UserError('the model does not fit the data set',
                    '--model={}: {} to {}, expected a Keras model of {} to {}'.format(
                        name, *(actual_shapes + expected_shapes)),
                    'change its input and output, or choose another --dataset')


def _check_classifier(name: str, model: Any, num_classes: int) -> None:
  """Raises a UserError unless the only output of the model has one number per class."""
  shapes = [tuple(output.shape.as_list()) for output in model.outputs]
  if shapes != [(None, num_classes)]:
    raise UserError('the model of a data set with classes must have one output, with a number per '
                    'class', '--model={}: {}, expected {}'.format(
                        name, ', '.join(map(str, shapes)), (None, num_classes)),
                    'change its output, or give labels=() to the DataSet')


def _input_fits(input_shape: Any, image_shape: Sequence[Optional[int]]) -> bool:
  """Returns whether a model with this input shape accepts batches of images of this shape.

  None in the input shape accepts any height or width.
  """
  return (isinstance(input_shape, tuple) and len(input_shape) == len(image_shape)
          and input_shape[3] == image_shape[3]
          and all(side in (None, size) for side, size in zip(input_shape, image_shape)))
