"""Works around defects of Keras's sessions, layers and copies, and inspects Keras models.

Paths are relative to tensorflow_core/python/keras/.
"""

import contextlib
from typing import Any, Iterator, List, Sequence

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


def trainable_flags(model: tf.keras.Model) -> List[bool]:
  """Returns `trainable` of a model and of all layers inside it, for set_trainable_flags.

  Not a workaround for a defect: this function uses the private name `_get_trainable_state`
  (engine/base_layer.py:2167), because the public `layers` lacks layers inside other layers.
  """
  return list(model._get_trainable_state().values())


def set_trainable_flags(model_copy: tf.keras.Model, flags: Sequence[bool]) -> None:
  """Freezes the layers of a copy, compiled or not, that are frozen in the original model.

  Defect: models.py:57 and 642 copy layers by their configurations, which lack `trainable` of the
  layers inside a layer, such as `Bidirectional`, or inside a subclass of tf.keras.Model. Symptom:
  frozen layers are trained, and get the weights of other layers: the order of `weights` depends on
  `trainable`.

  Args:
    model_copy: a copy of a model.
    flags: the return value of trainable_flags for the model.

  Raises:
    ValueError: the model has frozen layers, but the copy has another number of layers.
  """
  layers = list(model_copy._get_trainable_state())
  if len(layers) != len(flags):
    if all(flags):
      return
    raise ValueError(
        'a copy of a model with frozen layers must have as many layers as the model: {}: {} layers '
        'instead of {}: return all arguments from get_config, and call the model before it is '
        'converted'.format(model_copy.name, len(layers), len(flags)))
  for layer, flag in zip(layers, flags):
    # The setter of `trainable` also sets the flags of the layers inside, which follow in the list.
    layer.trainable = flag
  if model_copy.optimizer:
    # A compiled model has stored the weights to train. New attributes would become part of
    # object-based checkpoints.
    model_copy._collected_trainable_weights[:] = model_copy._unique_trainable_weights
    model_copy._compiled_trainable_state.update(model_copy._get_trainable_state())
