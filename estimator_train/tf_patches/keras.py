"""Works around defects of Keras's sessions, layers and copies, and inspects Keras models.

Paths are relative to tensorflow_core/python/keras/. The functions from output_losses on return the
unreduced losses and metrics of a compiled model; their line numbers refer to engine/training.py,
unless a file is named.
"""

import contextlib
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence

import tensorflow.compat.v1 as tf
from tensorflow.python.keras import backend, losses as keras_losses, metrics
from tensorflow.python.keras.engine import training_utils
from tensorflow.python.keras.utils import losses_utils
from tensorflow.python.ops.losses import util


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


@contextlib.contextmanager
def weights_from_one_run(weights: Sequence[Any]) -> Iterator[None]:
  """Makes `model.save` take the values of these weights from one run of the session.

  Defect: saving/hdf5_format.py:621 reads the weights of each layer in a run of its own, and
  TensorFlow optimizes the graph for each of them. Symptom: to save ResNet-50 takes 6 s instead of
  0.4 s.
  """
  original = backend.batch_get_value
  values = dict(zip(map(id, weights), original(weights)))

  def get_values(tensors: Sequence[Any]) -> List[Any]:
    if all(id(tensor) in values for tensor in tensors):
      return [values[id(tensor)] for tensor in tensors]
    return list(original(tensors))  # Of the optimizer.

  backend.batch_get_value = get_values
  try:
    yield
  finally:
    backend.batch_get_value = original


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

  Private API: `_keras_initialized` (backend.py:888), by which Keras marks the weights that it has
  initialized.
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

  Private API: `_keras_history` (engine/base_layer_utils.py:159), because no public attribute of a
  tensor refers to the layer that computes the tensor. Without this attribute, no network can be
  split.
  """
  tensors = layer.input if isinstance(layer.input, list) else [layer.input]
  return [tensor._keras_history[0] for tensor in tensors]


def is_graph_network(model: tf.keras.Model) -> bool:
  """Returns whether a model is defined by its inputs and outputs, not by its own `call`.

  Private API: `_is_graph_network` (engine/network.py:276 and 376), because no public attribute
  distinguishes these models. To copy a model with its own `call`, Keras needs the tensors of a
  batch, on which it calls the copy.
  """
  return bool(model._is_graph_network)


class OutputLoss(NamedTuple):
  """The loss of one output of a model on a batch. See output_losses.

  Attributes:
    output_name: the name of the output.
    weight: the weight of the loss in the loss of the model.
    values: the losses, multiplied by the sample weights and masks: [B] or, for outputs of a higher
      rank, [B, ...]. A scalar if the loss function returns only one number per batch.
    is_sum: whether the loss of the batch is the sum of the values instead of their mean.
    targets: the labels of the output.
    outputs: the output of the model.
  """
  output_name: str
  weight: float
  values: tf.Tensor
  is_sum: bool
  targets: tf.Tensor
  outputs: tf.Tensor


def output_losses(model: tf.keras.Model) -> List[OutputLoss]:
  """Returns the losses of the outputs of a compiled model that has targets, without reduction.

  No defect: this function repeats the computation of lines 1683 to 1718, and uses the private name
  `_training_endpoints`, because the public attributes of a model contain only the mean loss of a
  batch, from which the loss of all examples cannot be computed.
  """
  losses = []
  # pylint: disable=protected-access
  for endpoint, mask in zip(model._training_endpoints, model._prepare_output_masks()):
    if endpoint.should_skip_target():
      continue
    targets, weights = endpoint.training_target.target, _element_weights(endpoint, mask)
    is_sum = getattr(endpoint.loss_fn, 'reduction', None) == losses_utils.ReductionV2.SUM
    if hasattr(endpoint.loss_fn, 'reduction'):
      values = losses_utils.compute_weighted_loss(
          endpoint.loss_fn.call(targets, endpoint.output), sample_weight=weights,
          reduction=losses_utils.ReductionV2.NONE)
    else:
      values = endpoint.loss_fn(targets, endpoint.output, sample_weight=weights)
    losses.append(OutputLoss(endpoint.output_name, endpoint.loss_weight, values, is_sum, targets,
                             endpoint.output))
  return losses


def _element_weights(endpoint: Any, mask: Optional[tf.Tensor]) -> Optional[tf.Tensor]:
  """Returns the sample weights of an output times its mask; None: all weights are 1."""
  if mask is None:
    return endpoint.sample_weight
  weights = tf.cast(mask, endpoint.output.dtype)
  if endpoint.sample_weight is None:
    return weights
  weights, _, sample_weights = util.squeeze_or_expand_dimensions(
      weights, sample_weight=endpoint.sample_weight)
  return sample_weights * weights


def regularization_losses(model: tf.keras.Model) -> List[tf.Tensor]:
  """Returns the losses that the layers of a model have added, such as weight decay.

  No defect: these are the losses that line 1738 adds to the loss of the model.
  """
  return list(model.get_losses_for(None)) + list(model.get_losses_for(model.inputs))


def batch_metric_values(model: tf.keras.Model) -> Dict[str, tf.Tensor]:
  """Returns the metrics of a compiled model whose functions return one number per batch, by name.

  Defect: metrics.py:560 computes the mean of these numbers, in which a short batch counts as
  much as a full one. Symptom: the metric depends on the batch size.
  """
  values = {}
  # pylint: disable=protected-access
  unweighted = list(zip(model._training_endpoints, model._per_output_metrics))
  unweighted += [pair for pair in zip(model._training_endpoints, model._per_output_weighted_metrics)
                 if pair[0].sample_weight is None]
  for endpoint, functions in unweighted:
    for metric in (functions or {}).values():
      function = getattr(metric, '_fn', None)
      if isinstance(metric, metrics.MeanMetricWrapper) and not _is_tensorflow_function(function):
        value = _call_metric_function(metric, endpoint.training_target.target, endpoint.output)
        if value.shape.ndims == 0:
          values[metric.name] = value
  return values


def _is_tensorflow_function(function: Any) -> bool:
  """Returns whether a function is one of Keras's own metrics, which return a value per example."""
  return str(getattr(function, '__module__', '')).startswith('tensorflow')


def _call_metric_function(metric: Any, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
  """Calls the function of a metric like MeanMetricWrapper.update_state (metrics.py:560)."""
  # pylint: disable=protected-access
  outputs, targets = util.squeeze_or_expand_dimensions(
      tf.cast(outputs, metric._dtype), tf.cast(targets, metric._dtype))
  return tf.convert_to_tensor(metric._fn(targets, outputs, **metric._fn_kwargs))


def scalar_losses(model: tf.keras.Model) -> List[str]:
  """Returns the names of the outputs of a compiled model whose loss is one number per batch.

  No defect: see output_losses. Only losses of the user are computed.
  """
  names = []
  for endpoint in model._training_endpoints:  # pylint: disable=protected-access
    loss = endpoint.loss_fn
    if not (endpoint.should_skip_target()
            or _is_tensorflow_function(getattr(loss, 'fn', loss))):
      values = loss.call(endpoint.training_target.target, endpoint.output)
      if values.shape.ndims == 0:
        names.append(endpoint.output_name)
  return names


def loss_functions(model: tf.keras.Model, output_names: Sequence[str]) -> List[Any]:
  """Returns the loss function of each output of a compiled model; None for one without a loss.

  No defect: this function calls the private function `prepare_loss_functions`, because a model
  whose inputs are unknown has the attribute `loss_functions` only when it is built.
  """
  return list(training_utils.prepare_loss_functions(model.loss or {}, list(output_names)))


def takes_labels_like_outputs(loss_function: Any) -> bool:
  """Returns whether the labels of a loss from loss_functions must have the shape of the output.

  No defect: losses of Keras compare each number of the output with a number of the labels, unless
  their names begin with `sparse`. What a loss of the user takes is unknown.
  """
  function: Any = getattr(loss_function, 'fn', None)
  return _is_tensorflow_function(function) and not function.__name__.startswith('sparse')


def takes_one_hot(loss_function: Any) -> bool:
  """Returns whether a loss from loss_functions is a cross-entropy of one-hot labels.

  Private API: `is_categorical_crossentropy`, because no public function recognizes the loss in each
  of its forms.
  """
  return bool(keras_losses.is_categorical_crossentropy(loss_function))
