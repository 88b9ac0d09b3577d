"""The frozen first part of a network: its output is computed once, and training runs on that."""

import hashlib
from typing import Any, List, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.distribution.devices import Devices, make_session_config
from estimator_train.errors import UserError
from estimator_train.inputs import factory as inputs, image_cache
from estimator_train.models.preprocessing import make_preprocess
from estimator_train.settings import Settings, groups
from estimator_train.tf_patches.keras import source_layers

_BATCH_SIZE = 32


class Parts(NamedTuple):
  """A network cut in two.

  Attributes:
    frozen: from images to features, without a weight that trains.
    rest: from features to the output; its layers are those of the network.
  """
  frozen: tf.keras.Model
  rest: tf.keras.Model


def cut(model: tf.keras.Model, name: str) -> Parts:
  """Cuts a network after the last layer before which nothing trains.

  Args:
    model: a network of one input and one output.
    name: what to call it in errors.

  Raises:
    UserError: nothing is frozen up to a point that all paths lead through.
  """
  layers = [layer for layer in model.layers
            if not isinstance(layer, tf.keras.layers.InputLayer)]
  count = _frozen_count(layers)
  if not any(layer.weights for layer in layers[:count]):
    raise UserError('--cache_features needs frozen layers at the beginning of the network',
                    '--model=' + name, 'give a pretrained one and --trainable_layers=N, or '
                    'leave --cache_features out')
  frozen = tf.keras.Model(model.input, layers[count - 1].output)
  features = tf.keras.layers.Input(frozen.output_shape[1:])
  outputs = {layers[count - 1]: features}
  for layer in layers[count:]:
    sources = [outputs[source] for source in source_layers(layer)]
    outputs[layer] = layer(sources if len(sources) > 1 else sources[0])
  return Parts(frozen, tf.keras.Model(features, outputs[layers[-1]]))


def compute(frozen: tf.keras.Model, checkpoint: str, examples: inputs.Pass, settings: Settings,
            devices: Devices) -> np.ndarray:
  """Returns the features of all training examples, from `--cache` where they are there.

  Args:
    frozen: the first part of the network.
    checkpoint: the path of its weights.
    examples: one pass over the training examples, in the order of the list.
    settings: of this run.
    devices: the first one computes them.

  Returns:
    float32 or float16 [N, ...].

  Raises:
    UserError: the features differ from step to step, or there is no room for them.
  """
  dtype = np.dtype(settings.cache_features_dtype).type
  values = [tf.train.load_variable(checkpoint, weight.op.name) for weight in frozen.weights]
  shape = (examples.num_examples,) + frozen.output_shape[1:]
  cache = 'memory' if settings.cache in ('auto', 'none') else settings.cache

  def fill(array: np.ndarray) -> None:
    _fill(array, frozen, values, examples, settings, devices)

  return image_cache.keep(cache, 'features-' + _key(frozen, values, examples, settings), shape,
                          dtype, fill)


def _frozen_count(layers: List[Any]) -> int:
  """Returns how many of the first layers can be computed once: the largest number that works."""
  count = 0
  while count < len(layers) - 1 and not layers[count].trainable_weights:
    count += 1
  while count:
    later = set(layers[count:]) | {layers[count - 1]}
    if all(source in later for layer in layers[count:] for source in source_layers(layer)):
      return count
    count -= 1
  return 0


def _key(frozen: tf.keras.Model, values: List[np.ndarray], examples: inputs.Pass,
         settings: Settings) -> str:
  digest = hashlib.md5('{} {} {} {}'.format(
      examples.cache_key, settings.preprocess, settings.cache_features_dtype,
      frozen.to_json()).encode())
  for value in values:
    digest.update(value.tobytes())
  return digest.hexdigest()


def _fill(array: np.ndarray, frozen: tf.keras.Model, values: List[np.ndarray],
          examples: inputs.Pass, settings: Settings, devices: Devices) -> None:
  with tf.Graph().as_default(), \
      tf.Session(config=make_session_config(settings[groups.Devices], devices)) as session:
    tf.keras.backend.set_session(session)
    with tf.device(devices.names[0]):
      model = tf.keras.models.clone_model(frozen)
      pixels, _ = tf.data.make_one_shot_iterator(examples.make_input_fn(_BATCH_SIZE)()).get_next()
      features = model(make_preprocess(settings.preprocess, *model.input_shape[1:])(pixels))
    _check_the_same_in_training(features, settings[groups.Model])
    model.set_weights(values)
    image_cache.fill_in_batches(array, session.make_callable(features), 'frozen layers')
    tf.keras.backend.set_session(None)


def _check_the_same_in_training(features: tf.Tensor, settings: groups.Model) -> None:
  """Raises a UserError when the features depend on whether the network trains, as by dropout."""
  seen, waiting = set(), [features.op]
  while waiting:
    operation = waiting.pop()
    if operation in seen:
      continue
    seen.add(operation)
    if operation.name.startswith('keras_learning_phase'):
      raise UserError('the frozen layers\' output differs from step to step (by dropout, or by '
                      'batch norm over the batch), and cannot be computed once',
                      '--model={} --cache_features'.format(settings.model),
                      'leave --cache_features out')
    waiting.extend(tensor.op for tensor in operation.inputs)
    waiting.extend(operation.control_inputs)
