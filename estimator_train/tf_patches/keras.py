"""Works around defects of Keras's sessions, layers and copies, and inspects Keras models.

Paths are relative to tensorflow_core/python/keras/.
"""

import contextlib
from typing import Any, Iterator, List

import tensorflow.compat.v1 as tf
from tensorflow.python.keras import backend


@contextlib.contextmanager
def preserve_session() -> Iterator[None]:
  """Restores Keras's session of this thread after the `with` block; removes a new session.

  Defect: backend.py has no function that only returns the session (`_SESSION`, line 95).
  `tf.keras.backend.get_session` (lines 446 to 454) makes a session if there is none, and replaces a
  session of another graph than the default graph. Symptom: when a function of this package has
  returned, the user's trained model has lost its weights, because the session contained them.
  """
  session = getattr(backend._SESSION, 'session', None)
  try:
    yield
  finally:
    backend._SESSION.session = session


def ensure_session(model: tf.keras.Model, config: tf.ConfigProto) -> None:
  """Makes Keras's session with `config`, unless there is a session for the graph of the model.

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


def has_values(model: tf.keras.Model) -> bool:
  """Returns whether weights of a model have been initialized, loaded or trained.

  Not a workaround for a defect: this function uses the private name `_keras_initialized`
  (backend.py:888), by which Keras marks the weights that it has initialized.
  """
  if tf.executing_eagerly():
    return True
  weights = model.weights if model.built else []
  if any(getattr(weight, '_keras_initialized', False) for weight in weights):
    return True
  session = getattr(backend._SESSION, 'session', None)
  if session is None or not weights or session.graph is not weights[0].graph:
    return False
  return any(session.run([tf.is_variable_initialized(weight) for weight in weights]))


class BatchNormalization(tf.keras.layers.BatchNormalization):
  """Batch normalization that runs in inference mode while it is frozen, as in TensorFlow 2.

  Defect: layers/normalization.py:633 checks whether the layer is frozen only if `_USE_V2_BEHAVIOR`
  is True, but line 870 sets `_USE_V2_BEHAVIOR` to False. Symptom: a frozen layer uses the
  statistics of the batch, not the statistics with which the network was trained. This class
  has the name of Keras's own layer, because saved models contain the name.
  """

  def call(self, inputs: tf.Tensor, training: Any = None) -> tf.Tensor:
    return super().call(inputs, training=training if self.trainable else False)


def source_layers(layer: tf.keras.layers.Layer) -> List[tf.keras.layers.Layer]:
  """Returns the layers whose outputs are the inputs of a layer.

  Not a workaround for a defect: this function uses the private name `_keras_history`
  (engine/base_layer_utils.py:159), because no public attribute of a tensor refers to the layer that
  computes the tensor. Without this attribute, no network can be split.
  """
  tensors = layer.input if isinstance(layer.input, list) else [layer.input]
  return [tensor._keras_history[0] for tensor in tensors]


def is_graph_network(model: tf.keras.Model) -> bool:
  """Returns whether a model is defined by its inputs and outputs, not by its own `call`.

  Not a workaround for a defect: this function uses the private name `_is_graph_network`
  (engine/network.py:276 and 376), because no public attribute distinguishes these models. To copy a
  model with its own `call`, Keras needs the tensors of a batch, on which it calls the copy.
  """
  return bool(model._is_graph_network)
