"""Caches the output of the frozen first layers of a network, on which the rest is trained."""

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


class SplitModel(NamedTuple):
  """A network split in two models.

  Attributes:
    frozen: from images to features; it has no trainable weights.
    rest: from features to the output; it shares its layers with the network.
  """
  frozen: tf.keras.Model
  rest: tf.keras.Model


def split_model(model: tf.keras.Model, name: str) -> SplitModel:
  """Splits a network after as many of its first layers as are frozen.

  Args:
    model: a network with one input and one output.
    name: the value of `--model`, for errors.

  Raises:
    UserError: there are no frozen layers before a point through which all paths pass.
  """
  layers = [layer for layer in model.layers
            if not isinstance(layer, tf.keras.layers.InputLayer)]
  count = _num_frozen_layers(layers)
  if not any(layer.weights for layer in layers[:count]):
    raise UserError('--cache_features needs frozen layers at the beginning of the network',
                    '--model=' + name, 'give a pretrained network and --trainable_layers=N, or '
                    'omit --cache_features')
  frozen = tf.keras.Model(model.input, layers[count - 1].output)
  features = tf.keras.layers.Input(frozen.output_shape[1:])
  outputs = {layers[count - 1]: features}
  for layer in layers[count:]:
    sources = [outputs[source] for source in source_layers(layer)]
    outputs[layer] = layer(sources if len(sources) > 1 else sources[0])
  return SplitModel(frozen, tf.keras.Model(features, outputs[layers[-1]]))


def compute_features(frozen: tf.keras.Model, checkpoint: str, examples: inputs.SingleEpoch,
                     settings: Settings, devices: Devices) -> np.ndarray:
  """Returns the features of all training examples, from `--cache` if they are stored there.

  Args:
    frozen: the frozen part of the network.
    checkpoint: the path of the checkpoint with its weights.
    examples: all training examples once, in the order of the list.
    settings: the settings of the run.
    devices: the devices, the first of which computes the features.

  Returns:
    The features, float32 or float16 [N, ...].

  Raises:
    UserError: the features differ from step to step, or there is no room for them.
  """
  dtype = np.dtype(settings.cache_features_dtype).type
  values = [tf.train.load_variable(checkpoint, weight.op.name) for weight in frozen.weights]
  shape = (examples.num_examples,) + frozen.output_shape[1:]
  cache = 'memory' if settings.cache in ('auto', 'none') else settings.cache

  def fill(array: np.ndarray) -> None:
    _compute_into(array, frozen, values, examples, settings, devices)

  name = 'features-' + _cache_key(frozen, values, examples, settings)
  return image_cache.load_array(cache, name, shape, dtype, fill)


def _num_frozen_layers(layers: List[Any]) -> int:
  """Returns the largest number of leading layers that can be computed once."""
  count = 0
  while count < len(layers) - 1 and not layers[count].trainable_weights:
    count += 1
  while count:
    later = set(layers[count:]) | {layers[count - 1]}
    if all(source in later for layer in layers[count:] for source in source_layers(layer)):
      return count
    count -= 1
  return 0


def _cache_key(frozen: tf.keras.Model, values: List[np.ndarray], examples: inputs.SingleEpoch,
               settings: Settings) -> str:
  digest = hashlib.md5('{} {} {} {}'.format(
      examples.cache_key, settings.preprocess, settings.cache_features_dtype,
      frozen.to_json()).encode())
  for value in values:
    digest.update(value.tobytes())
  return digest.hexdigest()


def _compute_into(array: np.ndarray, frozen: tf.keras.Model, values: List[np.ndarray],
                  examples: inputs.SingleEpoch, settings: Settings, devices: Devices) -> None:
  with tf.Graph().as_default(), \
      tf.Session(config=make_session_config(settings[groups.Devices], devices)) as session:
    tf.keras.backend.set_session(session)
    with tf.device(devices.names[0]):
      model = tf.keras.models.clone_model(frozen)
      pixels, _ = tf.data.make_one_shot_iterator(examples.make_input_fn(_BATCH_SIZE)()).get_next()
      features = model(make_preprocess(settings.preprocess, *model.input_shape[1:])(pixels))
    _check_same_in_training(features, settings[groups.Model])
    model.set_weights(values)
    image_cache.fill_in_batches(array, session.make_callable(features), 'frozen layers')
    tf.keras.backend.set_session(None)


def _check_same_in_training(features: tf.Tensor, settings: groups.Model) -> None:
  """Raises a UserError if the features depend on Keras's learning phase, for example by dropout."""
  visited, pending = set(), [features.op]
  while pending:
    operation = pending.pop()
    if operation in visited:
      continue
    visited.add(operation)
    if operation.name.startswith('keras_learning_phase'):
      raise UserError('the frozen layers\' output differs from step to step (because of dropout, '
                      'or of batch norm over the batch), so it cannot be computed once',
                      '--model={} --cache_features'.format(settings.model),
                      'omit --cache_features')
    pending.extend(tensor.op for tensor in operation.inputs)
    pending.extend(operation.control_inputs)
