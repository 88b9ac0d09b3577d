"""Keras: its session, its batch norm, and what it knows of a model's structure.

Lines are of files in tensorflow_core/python/keras/.
"""

import contextlib
from typing import Any, Iterator, List

import tensorflow.compat.v1 as tf
from tensorflow.python.keras import backend


@contextlib.contextmanager
def session_restored() -> Iterator[None]:
  """Restores Keras's session of this thread, or that there is none.

  Defect: backend.py has no function that reads the session (`_SESSION`, line 95):
  `tf.keras.backend.get_session` (lines 446 to 454) makes one where there is none, or where it is of
  another graph than the default one. Symptom: after a call of the library, a model that the user
  trained has lost its session, and with it its weights.
  """
  session = getattr(backend._SESSION, 'session', None)
  try:
    yield
  finally:
    backend._SESSION.session = session


class BatchNormalization(tf.keras.layers.BatchNormalization):
  """Batch norm that is in inference mode where it is frozen, as in TensorFlow 2.

  Defect: layers/normalization.py:633 makes it so under TensorFlow 2's behaviour only (off in line
  870). Symptom: a frozen one takes the statistics of the batch, which are not those that the
  weights of the layers around it were trained with. Files name its class as Keras's own.
  """

  def call(self, inputs: tf.Tensor, training: Any = None) -> tf.Tensor:
    return super().call(inputs, training=training if self.trainable else False)


def source_layers(layer: tf.keras.layers.Layer) -> List[tf.keras.layers.Layer]:
  """Returns the layers whose outputs a layer takes.

  Private name, no workaround: only `_keras_history` (engine/base_layer_utils.py:159) tells which
  layer made a tensor. Without it a network cannot be cut in two.
  """
  tensors = layer.input if isinstance(layer.input, list) else [layer.input]
  return [tensor._keras_history[0] for tensor in tensors]


def is_graph_network(model: tf.keras.Model) -> bool:
  """Whether a model is made of inputs and outputs, and is no subclass with a `call` of its own.

  Defect: model_to_estimator takes subclassed models, and loses their weights with a warning in
  TensorFlow's log only (tensorflow_estimator/python/estimator/keras.py:574 to 581); no public
  attribute tells them (engine/network.py:276 and 376). Symptom: such a model trains from random
  weights, whatever it had.
  """
  return bool(model._is_graph_network)
