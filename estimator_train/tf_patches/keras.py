"""Keras: its session, its batch normalization, and the structure of models.

Paths are relative to tensorflow_core/python/keras/.
"""

import contextlib
from typing import Any, Iterator, List

import tensorflow.compat.v1 as tf
from tensorflow.python.keras import backend


@contextlib.contextmanager
def restored_session() -> Iterator[None]:
  """Restores Keras's session of this thread at the end, even if there was none.

  Defect: backend.py has no function that only returns the session (`_SESSION`, line 95):
  `tf.keras.backend.get_session` (lines 446 to 454) makes a new one if there is none, or if it
  belongs to another graph than the default graph. Symptom: after a call of this package, a model
  that the user has trained loses its session, and so its weights.
  """
  session = getattr(backend._SESSION, 'session', None)
  try:
    yield
  finally:
    backend._SESSION.session = session


def ensure_session(model: tf.keras.Model, config: tf.ConfigProto) -> None:
  """Makes Keras's session for a model unless there is one, with which the model keeps its weights.

  Defect: backend.py:454 makes one with default options, but the options of the first session of a
  process apply to its GPUs. Symptom: GPU options of a RunConfig have no effect.
  """
  weights = model.weights if model.built else ()
  graph = weights[0].graph if weights else tf.get_default_graph()
  session = tf.get_default_session() or getattr(backend._SESSION, 'session', None)
  if session is None or session.graph is not graph:
    tf.keras.backend.set_session(tf.Session(graph=graph, config=config))


class BatchNormalization(tf.keras.layers.BatchNormalization):
  """Batch normalization that runs in inference mode while it is frozen, as in TensorFlow 2.

  Defect: layers/normalization.py:633 does so only if TensorFlow 2 behavior is enabled, and line 870
  disables it. Symptom: a frozen layer uses the statistics of the batch instead of those with which
  the weights of the network were trained. This class has the name of Keras's own layer, because
  saved models contain the name.
  """

  def call(self, inputs: tf.Tensor, training: Any = None) -> tf.Tensor:
    return super().call(inputs, training=training if self.trainable else False)


def source_layers(layer: tf.keras.layers.Layer) -> List[tf.keras.layers.Layer]:
  """Returns the layers whose outputs are the inputs of a layer.

  Private name, no workaround: only `_keras_history` (engine/base_layer_utils.py:159) refers to the
  layer of a tensor. Without this function a network cannot be split in two.
  """
  tensors = layer.input if isinstance(layer.input, list) else [layer.input]
  return [tensor._keras_history[0] for tensor in tensors]


def is_graph_network(model: tf.keras.Model) -> bool:
  """Whether a model is defined by its inputs and outputs, not by a subclass with its own `call`.

  Private name, no workaround: no public attribute identifies subclassed models
  (engine/network.py:276 and 376), which can be copied only on the tensors of a batch.
  """
  return bool(model._is_graph_network)
