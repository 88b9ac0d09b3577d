"""Reads what Keras has built for a compiled model: inputs, targets, losses, metrics and updates.

Private API: Keras has no public names for the parts of its graph. Line numbers refer to
tensorflow_core/python/keras/engine/training.py. Unless stated otherwise, the functions must be
called in the graph of the model, see enter_graph.
"""

import contextlib
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence

import tensorflow.compat.v1 as tf
from tensorflow.python.eager import context
from tensorflow.python.keras import backend, metrics
from tensorflow.python.keras.premade import wide_deep
from tensorflow.python.keras.utils import losses_utils, tf_utils
from tensorflow.python.ops.losses import util

from estimator_train.tf_patches.graphs import operation_of
from estimator_train.tf_patches.keras import is_defined_by_keras, metrics_by_name


def find_graph(model: tf.keras.Model) -> tf.Graph:
  """Returns the graph in which Keras builds a model. Must be called where the model was made."""
  if model.outputs:
    return model.outputs[0].graph
  if model.built and model.weights and not tf.executing_eagerly():
    return model.weights[0].graph
  return backend.get_graph()


@contextlib.contextmanager
def enter_graph(graph: tf.Graph, is_eager: bool) -> Iterator[None]:
  """Makes the graph of a model the default graph of a `with` block. Can be called in any thread.

  Operations can be added in the block even if the graph is finalized. Keras does the same at any
  time.

  Args:
    is_eager: whether the model was made in eager mode, where Keras uses a graph of its own.
  """
  is_finalized = graph.finalized
  if is_finalized:
    graph._unsafe_unfinalize()
  try:
    with contextlib.ExitStack() as stack:
      if is_eager:
        # Keras's graph uses the strategy of the default graph. A new default graph has none, unlike
        # the graph of the Estimator.
        stack.enter_context(tf.Graph().as_default())
        stack.enter_context(context.eager_mode())
      stack.enter_context(graph.as_default())
      yield
  finally:
    if is_finalized:
      graph.finalize()


def build_on_placeholders(model: tf.keras.Model, features: Any) -> None:
  """Calls a model whose inputs are unknown on placeholders, as the first `fit` does (line 2567).

  Args:
    features: tensors, tf.SparseTensors or tf.RaggedTensors, in the structure that the model takes.
  """
  def make_placeholder(tensor: Any) -> Any:
    shape = [None] + (tensor.shape.as_list()[1:] if tensor.shape.ndims else [1])
    dtype = backend.floatx() if tensor.dtype.is_floating else tensor.dtype
    return backend.placeholder(
        shape if tensor.shape.ndims is not None else None, dtype=dtype,
        sparse=isinstance(tensor, tf.SparseTensor), ragged=isinstance(tensor, tf.RaggedTensor))

  model._set_inputs(tf.nest.map_structure(make_placeholder, features))
  recompile(model)


def recompile(model: tf.keras.Model) -> None:
  """Compiles a model again, for its graph and with the same arguments (line 2670)."""
  model.compile(model.optimizer, model.loss, model._compile_metrics, model.loss_weights,
                model.sample_weight_mode, model._compile_weighted_metrics, run_eagerly=False)


def runs_eagerly(model: tf.keras.Model) -> bool:
  """Returns whether a model was compiled to run without a graph. Can be called in any graph."""
  return bool(model._run_eagerly)


@contextlib.contextmanager
def restore_trainable_state(model: tf.keras.Model) -> Iterator[None]:
  """Restores, in a `with` block, the values of `trainable` that the layers had at `compile`.

  Keras does the same when it makes its training function (line 2103). This function also removes
  the losses of earlier calls in eager mode, as `compile` does (line 310).
  """
  model._clear_losses()
  state = model._get_trainable_state()
  model._set_trainable_state(getattr(model, '_compiled_trainable_state', state))
  try:
    yield
  finally:
    model._set_trainable_state(state)


class Endpoint(NamedTuple):
  """The tensors to which Keras feeds the labels and sample weights of one output of a model.

  Attributes:
    target: None for an output without a loss.
    sample_weight: None if all weights are 1.
  """
  target: Optional[tf.Tensor]
  sample_weight: Optional[tf.Tensor]


def make_endpoints(model: tf.keras.Model, has_sample_weights: bool) -> List[Endpoint]:
  """Returns the endpoints of all outputs. Makes the tensors of sample weights if necessary."""
  model._update_sample_weight_modes([True] * len(model.outputs) if has_sample_weights else None)
  if model._recompile_weights_loss_and_weighted_metrics():
    # Both functions take the previous tensors of the sample weights.
    model.train_function = model.test_function = None
  return [Endpoint(endpoint.training_target and endpoint.training_target.target,
                   endpoint.sample_weight) for endpoint in model._training_endpoints]


def fed_input_names(model: tf.keras.Model) -> List[str]:
  """Returns the names of the inputs that are placeholders. Can be called in any graph."""
  return list(model._feed_input_names)


def fed_inputs(model: tf.keras.Model) -> List[Any]:
  """Returns the inputs that are placeholders. Can be called in any graph."""
  return list(model._feed_inputs)


def learning_phase() -> Any:
  """Returns the learning phase of the graph: a tensor, or the number that the user has set."""
  return backend.symbolic_learning_phase()


def trained_weights(model: tf.keras.Model) -> List[List[Any]]:
  """Returns, for each optimizer of a model, the weights that were trainable at `compile`.

  Must be called in a `with` block of restore_trainable_state. A WideDeepModel
  (premade/wide_deep.py:143) has two optimizers, or the same optimizer twice. A model that is not
  compiled has no optimizer.
  """
  if isinstance(model, wide_deep.WideDeepModel):
    return [list(submodel._unique_trainable_weights)
            for submodel in (model.linear_model, model.dnn_model)]
  weights = getattr(model, '_collected_trainable_weights', None)
  return [] if weights is None else [list(weights)]


def total_loss(model: tf.keras.Model, num_replicas: int,
               loss_functions: Optional[Sequence[Any]]) -> tf.Tensor:
  """Returns the loss of a batch. Its sum over all replicas is the loss of the global batch.

  Must be called after make_endpoints. Keras computes the loss by `_prepare_total_loss`, and divides
  losses that are means by the number of replicas.

  Args:
    loss_functions: for each output, the tf.keras.losses.Loss that replaces the compiled one, or
      None if the output has no loss. None to use the compiled losses.
  """
  if num_replicas == 1 and loss_functions is None:
    return _as_scalar(model.total_loss)
  original = losses_utils.scale_loss_for_distribution
  compiled_losses = [endpoint.loss_fn for endpoint in model._training_endpoints]
  # Keras asks the strategy, but the graph of the model has none.
  losses_utils.scale_loss_for_distribution = lambda loss: (
      loss if num_replicas == 1 else loss * (1. / num_replicas))
  try:
    for endpoint, loss in zip(model._training_endpoints, loss_functions or compiled_losses):
      endpoint._loss_fn = loss
    return _as_scalar(model._prepare_total_loss(model._prepare_output_masks()))
  finally:
    losses_utils.scale_loss_for_distribution = original
    for endpoint, loss in zip(model._training_endpoints, compiled_losses):
      endpoint._loss_fn = loss


def _as_scalar(loss: Any) -> tf.Tensor:
  """Gives a loss the static shape of a scalar. The shape of a loss from a loop can be unknown."""
  loss = tf.convert_to_tensor(loss)
  return loss if loss.shape.ndims is not None else tf.reshape(loss, [])


def training_updates(model: tf.keras.Model) -> List[tf.Operation]:
  """Returns the updates of statistics and of other state in a training step (line 2118)."""
  return list(map(operation_of, [*model.get_updates_for(None),
                                 *model.get_updates_for(model.inputs)]))


class Metric(NamedTuple):
  """A metric of a model.

  Attributes:
    result: the value over all batches so far.
    update: the operation that adds a batch.
    variables: the state.
    batch_value: the value for one batch, a scalar; None unless the metric is a mean over batches.
  """
  result: tf.Tensor
  update: tf.Operation
  variables: Sequence[Any]
  batch_value: Optional[tf.Tensor]


def make_metrics(model: tf.keras.Model) -> Dict[str, Metric]:
  """Returns all metrics of a model, including those of `add_metric`; see keras.metrics_by_name.

  Defect: model_fn.py:515 of tensorflow_estimator/python/estimator/ runs only the first update of a
  metric. The update with the sample weights is the last one, and a layer that is used twice updates
  its metric twice. keras.py:226 leaves out the metrics that layers and models add. Symptoms:
  `weighted_metrics` ignore the sample weights; metrics of layers are missing.
  """
  compiled_metrics, batch_values = model._compile_metric_functions, _batch_metric_values(model)
  metrics_made, reachable = {}, None
  for name, metric in metrics_by_name(model).items():
    metric_updates = list(metric._updates)
    if len(metric_updates) > 1:
      # Updates of other models that use the metric do not depend on the inputs of this model.
      reachable = reachable or tf_utils.get_reachable_from_inputs(
          tf.nest.flatten([model.inputs, model._targets], expand_composites=True))
      metric_updates = [update for update in metric_updates if update in reachable]
    if metric in compiled_metrics:
      metric_updates = metric_updates[-1:]
    if metric_updates:
      # The call of `result` below would replace the tensor that Keras itself evaluates.
      call_result = vars(metric).get('_call_result')
      metrics_made[name] = Metric(metric.result(), tf.group(*metric_updates), metric.variables,
                                  batch_values.get(metric))
      if call_result is not None:
        metric._call_result = call_result
  return metrics_made


class OutputLoss(NamedTuple):
  """The loss of one output of a model on a batch; see output_losses.

  Attributes:
    weight: the weight of this loss in the loss of the model.
    values: the losses, multiplied by the sample weights and masks. The shape is [B] or, for outputs
      of a higher rank, [B, ...]. It is [] if the loss function returns only one number per batch.
    is_sum: whether the loss of the batch is the sum of the values instead of their mean.
    targets: the labels.
    mask: 1 for each value that counts and 0 for others, with the dtype of the output; None if all
      values count.
  """
  output_name: str
  weight: float
  values: tf.Tensor
  is_sum: bool
  targets: tf.Tensor
  outputs: tf.Tensor
  mask: Optional[tf.Tensor]


def output_losses(model: tf.keras.Model) -> List[OutputLoss]:
  """Returns the losses of the outputs of a compiled model, without reduction.

  No defect: this function repeats the computation of lines 1683 to 1718. The public attributes of a
  model contain only the mean loss of a batch. The loss of all examples cannot be computed from it.
  """
  losses = []
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
    losses.append(OutputLoss(
        endpoint.output_name, endpoint.loss_weight, tf.convert_to_tensor(values), is_sum, targets,
        endpoint.output, None if mask is None else tf.cast(mask, endpoint.output.dtype)))
  return losses


def _element_weights(endpoint: Any, mask: Optional[tf.Tensor]) -> Optional[tf.Tensor]:
  """Returns the sample weights of an output times its mask; None if all weights are 1."""
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


def _batch_metric_values(model: tf.keras.Model) -> Dict[Any, tf.Tensor]:
  """Returns the values of metrics whose functions return one number per batch.

  Defect: metrics.py:560 computes the mean of these numbers, in which a short batch counts as
  much as a full one. Symptom: the metric depends on the batch size.
  """
  values = {}
  unweighted = list(zip(model._training_endpoints, model._per_output_metrics))
  unweighted += [pair for pair in zip(model._training_endpoints, model._per_output_weighted_metrics)
                 if pair[0].sample_weight is None]
  for endpoint, functions in unweighted:
    for metric in (functions or {}).values():
      function = getattr(metric, '_fn', None)
      if isinstance(metric, metrics.MeanMetricWrapper) and not is_defined_by_keras(function):
        value = _call_metric_function(metric, endpoint.training_target.target, endpoint.output)
        if value.shape.ndims == 0:
          values[metric] = value
        elif value.shape.ndims is None:  # A tf.py_func has no shape.
          values[metric] = tf.reshape(tf.reduce_mean(value), [])
  return values


def _call_metric_function(metric: Any, targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
  """Calls the function of a metric as MeanMetricWrapper.update_state does (metrics.py:560)."""
  outputs, targets = util.squeeze_or_expand_dimensions(
      tf.cast(outputs, metric._dtype), tf.cast(targets, metric._dtype))
  return tf.convert_to_tensor(metric._fn(targets, outputs, **metric._fn_kwargs))


def names_of_scalar_losses(model: tf.keras.Model) -> List[str]:
  """Returns the names of the outputs of a compiled model whose loss is one number per batch.

  No defect: see output_losses. Only losses of the user are computed, because Keras's losses return
  one number per example.
  """
  names = []
  for endpoint in model._training_endpoints:
    loss = endpoint.loss_fn
    if not (endpoint.should_skip_target() or is_defined_by_keras(getattr(loss, 'fn', loss))):
      values = tf.convert_to_tensor(loss.call(endpoint.training_target.target, endpoint.output)
                                    if hasattr(loss, 'call') else tf.zeros([1]))
      if values.shape.ndims == 0:
        names.append(endpoint.output_name)
  return names
