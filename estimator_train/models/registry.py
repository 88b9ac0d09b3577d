"""The models by name, and the user's own; TensorFlow is imported only when one is built."""

import importlib
from typing import Any, Optional, Sequence, Tuple

from estimator_train.errors import UserError
from estimator_train.settings import choices, user_code

# By their names in tf.keras.applications.
_APPLICATIONS = {function.lower(): function for function in (
    'VGG16', 'VGG19', 'ResNet50', 'ResNet101', 'ResNet152', 'ResNet50V2', 'ResNet101V2',
    'ResNet152V2', 'InceptionV3', 'InceptionResNetV2', 'Xception', 'MobileNet', 'MobileNetV2',
    'DenseNet121', 'DenseNet169', 'DenseNet201', 'NASNetMobile', 'NASNetLarge')}
_TRAINABLE_LAYERS = {'vgg16': 4}  # As published; all of the others.


def is_pretrained(name: str) -> bool:
  """Whether there are ImageNet weights of the model."""
  return name in _APPLICATIONS


def build(name: str, image_shape: Tuple[int, int, int], num_classes: int,
          trainable_layers: Optional[int] = None) -> Any:
  """Builds the Keras model of that name.

  Args:
    name: one of choices.MODELS; the module of that name beside this one has the function `build`.
      Or `package.module:function`, where the function takes nothing, or an image's shape and the
      number of classes.
    image_shape: (height, width, channels) of an image.
    num_classes: the number of outputs.
    trainable_layers: the last layers of a pretrained network that train; None: its default.

  Returns:
    A tf.keras.Model, float32 [B, height, width, channels] to float32 [B, num_classes]; ours is
    not compiled, the user's may be. Pretrained networks take three channels, of grey images too.

  Raises:
    UserError: there is no such model; the user's function is not there, raises, or returns no such
      model; or no layers of this model can be frozen.
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
  if not user_code.is_own(name):
    user_code.check_name('model', name, choices.MODELS)
    return importlib.import_module('estimator_train.models.' + name).build(image_shape, num_classes)
  model = user_code.call('model', name, 'image_shape, num_classes', image_shape, num_classes)
  check_kind(model, '--model=' + name)
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


def check_kind(model: Any, given: str) -> None:
  """Raises a UserError, which says what was given, where it cannot become an Estimator."""
  import tensorflow.compat.v1 as tf  # Whoever builds a model has it already.

  from estimator_train.tf_patches.keras import is_graph_network

  given = '{} is of {}'.format(given, type(model).__name__)
  if not isinstance(model, tf.keras.Model):
    raise UserError('this is no Keras model', given,
                    'give a tf.keras.Model; one of plain Keras, `import keras`, is another')
  if isinstance(model, tf.keras.Sequential) and not model.built:
    raise UserError('a Sequential model must know the shape of its input', given,
                    'give its first layer input_shape')
  # Of others model_to_estimator loses the weights.
  if not is_graph_network(model):
    raise UserError('a subclass of tf.keras.Model cannot become an Estimator', given,
                    'give a tf.keras.Sequential or tf.keras.Model(inputs, outputs); their layers '
                    'may be of your own classes')


def _check_shapes(name: str, model: Any, image_shape: Tuple[int, int, int],
                  num_classes: int) -> None:
  given = (model.input_shape, model.output_shape)
  expected = ((None,) + image_shape, (None, num_classes))
  in_colour = expected[0][:3] + (3,)  # Grey is repeated.
  if not (any(_fits(given[0], shape) for shape in (expected[0], in_colour))
          and given[1] == expected[1]):
    raise UserError('the model does not fit the data set',
                    '--model={}: {} to {}, expected a Keras model of {} to {}'.format(
                        name, *(given + expected)),
                    'change its input and output, or choose another --dataset')


def _fits(given: Any, expected: Sequence[Optional[int]]) -> bool:
  """Whether a model's input takes images of this shape; it may leave height and width open."""
  return (isinstance(given, tuple) and len(given) == len(expected) and given[3] == expected[3]
          and all(side in (None, size) for side, size in zip(given, expected)))
