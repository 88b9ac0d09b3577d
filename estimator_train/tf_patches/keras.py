"""Works around defects of Keras's sessions and layers, and inspects Keras models and losses.

Paths are relative to tensorflow_core/python/keras/.
"""

import contextlib
from typing import Any, Dict, Iterator, List, Sequence

import tensorflow.compat.v1 as tf
from tensorflow.python.keras import backend, losses as keras_losses
from tensorflow.python.keras.engine import training_utils


@contextlib.contextmanager
def preserve_session() -> Iterator[None]:
  """Restores Keras's session of this thread after a `with` block, or removes a new session.

  Defect: backend.py has no function that only returns the session (`_SESSION`, line 95).
  `tf.keras.backend.get_session` (lines 446 to 454) makes a session if there is none, and replaces a
  session of another graph than the default graph. Symptom: when a function of this package has
  returned, the user's trained model has lost its weights, which its session contained.
  """
  session = getattr(backend._SESSION, 'session', None)
  try:
    yield
  finally:
    backend._SESSION.session = session


@contextlib.contextmanager
def use_default_settings() -> Iterator[None]:
  """Sets Keras's global settings to their defaults during a `with` block.

  Defect: backend.py:5744 reads these settings from the user's `~/.keras/keras.json`, and scripts
  change them for the whole process. This package relies on the defaults, channels_last and float32.
  Symptom: images do not fit the layers of the models, or the precision of a run depends on the
  user.
  """
  keras = tf.keras.backend
  previous = keras.floatx(), keras.epsilon(), keras.image_data_format()
  keras.set_floatx('float32')
  keras.set_epsilon(1e-7)
  keras.set_image_data_format('channels_last')
  try:
    yield
  finally:
    for restore, value in zip(
        (keras.set_floatx, keras.set_epsilon, keras.set_image_data_format), previous):
      restore(value)


@contextlib.contextmanager
def prefetch_weights(weights: Sequence[Any]) -> Iterator[None]:
  """Reads weights in one run of the session, so that `model.save` in the `with` block uses them.

  Defect: saving/hdf5_format.py:621 runs the session once for the weights of each layer, and
  TensorFlow optimizes the graph for each of these runs. Symptom: saving ResNet-50 takes 6 s instead
  of 0.4 s.
  """
  original = backend.batch_get_value
  values = dict(zip(map(id, weights), original(weights)))

  def get_values(tensors: Sequence[Any]) -> List[Any]:
    if all(id(tensor) in values for tensor in tensors):
      return [values[id(tensor)] for tensor in tensors]
    return list(original(tensors))  # These are the optimizer's weights.

  backend.batch_get_value = get_values
  try:
    yield
  finally:
    backend.batch_get_value = original


def ensure_session(model: tf.keras.Model, config: tf.ConfigProto) -> None:
  """Makes Keras's session with `config` unless the graph of the model already has a session.

  Defect: backend.py:454 makes Keras's session with default options, and the GPU options of the
  first session apply to the whole process. Symptom: GPU options of a RunConfig have no effect.
  """
  if tf.executing_eagerly():
    return  # Without graphs, Keras has no session.
  weights = model.weights if model.built else ()
  graph = weights[0].graph if weights else tf.get_default_graph()
  session = tf.get_default_session() or getattr(backend._SESSION, 'session', None)
  if session is None or session.graph is not graph:
    tf.keras.backend.set_session(tf.Session(graph=graph, config=config))


class BatchNormalization(tf.keras.layers.BatchNormalization):
  """Batch normalization that runs in inference mode while it is frozen, as in TensorFlow 2.

  Defect: layers/normalization.py:633 checks whether the layer is frozen only if `_USE_V2_BEHAVIOR`
  is True, but line 870 sets `_USE_V2_BEHAVIOR` to False. Symptom: a frozen layer uses the
  statistics of the batch, not those of its training. This class has the name of Keras's own layer,
  because saved models contain the name.
  """

  def call(self, inputs: tf.Tensor, training: Any = None) -> tf.Tensor:
    return super().call(inputs, training=training if self.trainable else False)


def nested_layers(layer: Any) -> List[Any]:
  """Returns a layer or model and all layers inside it, the outer ones first.

  Private API: `_get_trainable_state` (engine/base_layer.py:2167), because the public `layers`
  omits layers inside other layers.
  """
  return list(layer._get_trainable_state())


def preceding_layers(layer: tf.keras.layers.Layer) -> List[tf.keras.layers.Layer]:
  """Returns the layers whose outputs are the inputs of a layer.

  Private API: `_keras_history` (engine/base_layer_utils.py:159), because no public attribute of a
  tensor refers to the layer that computes the tensor. A network cannot be split without this
  attribute.
  """
  tensors = layer.input if isinstance(layer.input, list) else [layer.input]
  return [tensor._keras_history[0] for tensor in tensors]


def is_graph_network(model: tf.keras.Model) -> bool:
  """Returns whether a model is defined by its inputs and outputs, rather than by its own `call`.

  Private API: `_is_graph_network` (engine/network.py:276 and 376), because no public attribute
  distinguishes these models.
  """
  return bool(model._is_graph_network)


def loss_functions(model: tf.keras.Model, output_names: Sequence[str]) -> List[Any]:
  """Returns the loss function of each output of a compiled model; None for one without a loss.

  Private API: `prepare_loss_functions`, because a model whose inputs are unknown has the public
  attribute `loss_functions` only after it is built.
  """
  return list(training_utils.prepare_loss_functions(model.loss or {}, list(output_names)))


def metrics_by_name(model: tf.keras.Model) -> Dict[str, Any]:
  """Returns the metrics of a model by name.

  Metrics of several layers may have the same name, and `metrics_names` then contains it twice.
  This function adds a number to all of these names except the first, as Keras does for compiled
  metrics. No defect: no public function returns distinct names.
  """
  by_name: Dict[str, Any] = {}
  for metric in dict.fromkeys(model.metrics):
    name, number = metric.name, 0
    while name in by_name:
      number += 1
      name = '{}_{}'.format(metric.name, number)
    by_name[name] = metric
  return by_name


def outputs_with_loss(model: tf.keras.Model) -> List[str]:
  """Returns the names of the outputs that have a loss.

  Private API: `_training_endpoints`, because `metrics_names` also contains other names.
  """
  return [endpoint.output_name for endpoint in getattr(model, '_training_endpoints', ())
          if not endpoint.should_skip_target()]


def is_defined_by_keras(function: Any) -> bool:
  """Returns whether Keras defines a loss or metric, so that it returns a value per example."""
  return '.keras.' in str(getattr(function, '__module__', ''))


def needs_labels_in_output_shape(loss_function: Any) -> bool:
  """Returns whether a loss from `loss_functions` needs labels in the shape of the output.

  No defect: Keras's losses compare each number of the output with a number of the labels, except
  the losses whose names begin with `sparse`. For a loss of the user, the shape is unknown, and the
  result is False.
  """
  function: Any = getattr(loss_function, 'fn', None)
  return is_defined_by_keras(function) and not function.__name__.startswith('sparse')


def takes_one_hot(loss_function: Any) -> bool:
  """Returns whether a loss from `loss_functions` is a cross-entropy of one-hot labels.

  Private API: `is_categorical_crossentropy`, because no public function recognizes this loss in all
  its forms (a name, a function or an object).
  """
  return bool(keras_losses.is_categorical_crossentropy(loss_function))
