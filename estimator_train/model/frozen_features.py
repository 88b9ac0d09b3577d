"""Splits a network after its frozen layers, and caches their outputs as features for training."""

import hashlib
from typing import Any, List, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.data import cache as array_cache
from estimator_train.data.opening import make_eval_input_fn
from estimator_train.data.source import Source
from estimator_train.distribution.devices import Devices, make_session_config
from estimator_train.errors import UserError
from estimator_train.model.inputs import Batch, make_preprocess_function
from estimator_train.model.own_graph import CompiledGraph, ImportedModel
from estimator_train.settings import Settings
from estimator_train.tf_patches.graphs import find_ancestors
from estimator_train.tf_patches.keras import preceding_layers

_BATCH_SIZE = 32


def split_after_frozen_layers(model: tf.keras.Model,
                              model_name: str) -> Tuple[tf.keras.Model, tf.keras.Model]:
  """Splits a network after as many of its frozen first layers as possible.

  Args:
    model: a network with one input and one output.
    model_name: the value of `--model`.

  Returns:
    The frozen part, which is a model from images to features, and the rest, which is a model from
    features to the output. Both share their layers with the network.

  Raises:
    UserError: there is no layer after which the network can be split.
  """
  layers = [layer for layer in model.layers
            if not isinstance(layer, tf.keras.layers.InputLayer)]
  num_frozen = _count_separable_layers(layers)
  if not any(layer.weights for layer in layers[:num_frozen]):
    raise UserError('--cache_features needs frozen layers at the beginning of the network, before '
                    'dropout and batch norm that uses batch statistics',
                    '--model=' + model_name, 'give a pretrained network and '
                    '--trainable_layers=N, or omit --cache_features')
  frozen_part = tf.keras.Model(model.input, layers[num_frozen - 1].output)
  features = tf.keras.layers.Input(frozen_part.output_shape[1:])
  outputs = {layers[num_frozen - 1]: features}
  for layer in layers[num_frozen:]:
    inputs = [outputs[source] for source in preceding_layers(layer)]
    outputs[layer] = layer(inputs if len(inputs) > 1 else inputs[0])
  return frozen_part, tf.keras.Model(features, outputs[layers[-1]])


def compute_features(frozen_part: tf.keras.Model, checkpoint: str, source: Source,
                     settings: Settings, devices: Devices) -> np.ndarray:
  """Computes the features of all training examples, or reads them from the folder of `--cache`.

  Args:
    checkpoint: the path of the checkpoint with the weights of `frozen_part`.
    source: the training examples.
    devices: only the first device is used.

  Returns:
    The features, float32 or float16 [N, ...], in the order of the examples.

  Raises:
    UserError: the features do not fit into the cache, or the data set is infinite.
  """
  dtype = settings.input.cache_features_dtype
  # The digest covers everything that determines the features.
  digest = hashlib.md5('{} {} {} {}'.format(
      source.files_fingerprint(), settings.model.chosen_preprocess, dtype,
      frozen_part.to_json()).encode())
  for weight in frozen_part.weights:
    digest.update(tf.train.load_variable(checkpoint, weight.op.name).tobytes())
  # Features are always cached. They are cached in memory unless `--cache` names a place.
  cache = 'memory' if settings.input.cache in ('auto', 'none') else settings.input.cache
  return array_cache.load_or_fill_array(
      cache, 'features-' + digest.hexdigest(),
      (len(source.read_class_indices()),) + frozen_part.output_shape[1:], np.dtype(dtype).type,
      lambda array: _fill_with_features(array, frozen_part, checkpoint, source, settings, devices))


def _count_separable_layers(layers: List[Any]) -> int:
  """Returns how many frozen first layers can be split off; 0 if the network cannot be split.

  The network can be split after layer N under two conditions. No layer after N uses the output of a
  layer before N, and the output of layer N is the same in every step. Dropout, and batch norm that
  uses batch statistics, therefore stay in the rest of the network, even if they are frozen.
  """
  num_frozen = 0
  while num_frozen < len(layers) - 1 and not layers[num_frozen].trainable_weights:
    num_frozen += 1
  # A layer that reads the learning phase behaves differently in training and in inference.
  while num_frozen and any(operation.name.startswith('keras_learning_phase')
                           for operation in find_ancestors([layers[num_frozen - 1].output.op])):
    num_frozen -= 1
  while num_frozen:
    allowed_sources = set(layers[num_frozen:]) | {layers[num_frozen - 1]}
    if all(allowed_sources.issuperset(preceding_layers(layer)) for layer in layers[num_frozen:]):
      return num_frozen
    num_frozen -= 1
  return 0


def _fill_with_features(array: np.ndarray, frozen_part: tf.keras.Model, checkpoint: str,
                        source: Source, settings: Settings, devices: Devices) -> None:
  """Fills an array with the features of all examples, which a new graph computes."""
  compiled_graph = CompiledGraph(frozen_part)
  with tf.Graph().as_default(), \
      tf.Session(config=make_session_config(settings.devices, devices)) as session:
    with tf.device(devices.names[0]):
      dataset = make_eval_input_fn(source, settings, one_hot=False, batch_size=_BATCH_SIZE)()
      pixels, _ = tf.data.make_one_shot_iterator(dataset).get_next()
      preprocess = make_preprocess_function(settings.model.chosen_preprocess,
                                            *frozen_part.input_shape[1:])
      imported_model = ImportedModel(
          compiled_graph, compiled_graph.subgraph_of_mode(tf.estimator.ModeKeys.PREDICT),
          checkpoint)
      fetches, _ = imported_model.import_for_batch(Batch([preprocess(pixels)]))
    session.run(tf.global_variables_initializer())
    array_cache.fill_in_batches(array, session.make_callable(fetches.outputs[0]), 'frozen layers')
