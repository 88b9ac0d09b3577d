"""Makes an Estimator whose `model_fn` builds copies of a compiled Keras model."""

import contextlib
import functools
import logging
import re
import traceback
from typing import (
  Any,
  Callable,
  Collection,
  ContextManager,
  Dict,
  Iterator,
  Mapping,
  NamedTuple,
  Optional,
  Sequence,
  Tuple,
)

import tensorflow.compat.v1 as tf

from estimator_train.errors import InvalidValue, UserError
from estimator_train.models import model_inputs
from estimator_train.settings.user_code import find_location
from estimator_train.system import machine
from estimator_train.tf_patches import (
  checkpoints,
  estimator as estimator_patches,
  optimizers,
  sessions,
  strategies,
)
from estimator_train.tf_patches.configurations import nested_layers
from estimator_train.tf_patches.model_copies import ModelCopier
from estimator_train.tf_patches.saved_weights import PositionalWeights
from estimator_train.training import evaluation_metrics, losses

_LOG = logging.getLogger('estimator_train')

# Maps the name of a model output to a class in tf.estimator.export, such as RegressionOutput.
ExportOutputs = Mapping[str, Callable[[tf.Tensor], tf.estimator.export.ExportOutput]]

# For each entry: a pattern of the text of TensorFlow's error, the broken rule, and the remedy.
_MODEL_RULES = (
    (r'must be from the same graph|not an element of this graph|different graph',
     'a Lambda, loss, metric or optimizer must not use tensors or variables that were made outside '
     'of it, and a layer must not be called with tensors as keyword arguments',
     'compute them in the function or in a layer, or give plain numbers; give several tensors to a '
     'layer as a list'),
    (r'has `None` for gradient|No gradients provided for any variable',
     'each trainable weight must affect the loss',
     'give a loss to each output, or set trainable=False for the layer'),
)


@contextlib.contextmanager
def translate_model_errors() -> Iterator[None]:
  """Translates the exceptions of a `with` block that builds or copies a model.

  Raises:
    InvalidValue: an exception of TensorFlow has a known remedy; other exceptions are not changed.
  """
  try:
    yield
  except UserError:
    raise
  except (ValueError, TypeError, RuntimeError) as error:
    for pattern, rule, remedy in _MODEL_RULES:
      match = re.search('[^\n]*({})[^\n]*'.format(pattern), str(error))
      if match:
        location = find_location((frame.filename, frame.lineno)
                                 for frame in traceback.extract_tb(error.__traceback__))
        raise InvalidValue(rule, location + match.group().strip(), remedy) from error
    raise


class WeightOptions(NamedTuple):
  """How the weights of an Estimator get their values, and which weights checkpoints contain.

  Attributes:
    warm_start: the initial weights; None: training resumes, or starts from random weights.
    positional: the initial weights, in the order of `model.weights`, of a subclassed model, whose
      inputs are unknown before its first batch; used instead of `warm_start`.
    names: the names of the weights in `warm_start` and in the checkpoints; None: the names are not
      checked.
    frozen_part: the frozen layers, if the model trains on their cached outputs. Checkpoints also
      contain the weights of these layers. None: the model is a complete network.
  """
  warm_start: Optional[tf.estimator.WarmStartSettings] = None
  positional: Optional[PositionalWeights] = None
  names: Optional[Collection[str]] = None
  frozen_part: Optional[tf.keras.Model] = None


class GraphCallbacks(NamedTuple):
  """Functions that are called while a graph is built.

  Attributes:
    preprocess: converts the features of a batch to the input of the model.
    observe_batch: called in each replica with the features, labels and outputs of a training batch.
    translate_errors: makes a context that translates errors of the user's code in the model.
    input_description: what yields the batches, for error messages.
  """
  preprocess: Callable[[Any], Any] = lambda features: features
  observe_batch: Optional[Callable[[Any, Any, tf.Tensor], None]] = None
  translate_errors: Callable[[], ContextManager[None]] = translate_model_errors
  input_description: str = 'input_fn'


class SavedFormat(NamedTuple):
  """The form of checkpoints and of a SavedModel.

  Attributes:
    object_based: whether to save checkpoints for tf.train.Checkpoint instead of tf.train.Saver.
    export_outputs: further signatures of a SavedModel.
  """
  object_based: bool = False
  export_outputs: Optional[ExportOutputs] = None


def to_estimator(copier: ModelCopier, run_config: tf.estimator.RunConfig,
                 weights: WeightOptions = WeightOptions(),
                 callbacks: GraphCallbacks = GraphCallbacks(),
                 saved_format: SavedFormat = SavedFormat(),
                 num_classes: Optional[int] = None) -> tf.estimator.Estimator:
  """Converts a compiled Keras model to an Estimator.

  Several replicas train exactly like one. A checkpoint has one copy of each variable, so that a run
  can be resumed with another number of replicas. Evaluations also report the metrics of the
  function classifier_metrics or loss_metrics. If both have a metric of one name, that of the
  model is reported or, if `num_classes` is given, that of the function.

  Args:
    copier: copies the compiled model.
    run_config: the configuration of the Estimator. It must not set `eval_distribute`, under which
      TensorFlow 1.15 loses the examples of short batches.
    weights, callbacks, saved_format: see the classes.
    num_classes: the number of classes of a classifier; 0: the model is no classifier. None: a model
      with an output [B, N] and a categorical cross-entropy is a classifier of N classes; all other
      models are no classifiers.
  """
  model_fn = _ModelFn(copier, weights, callbacks, saved_format, num_classes)
  return tf.estimator.Estimator(model_fn.make_spec, config=run_config,
                                warm_start_from=weights.warm_start)


class _ModelFn:
  """Makes the EstimatorSpec of each mode; see to_estimator."""

  def __init__(self, copier: ModelCopier, weights: WeightOptions, callbacks: GraphCallbacks,
               saved_format: SavedFormat, num_classes: Optional[int]) -> None:
    self._copier, self._model = copier, copier.model
    self._weights, self._callbacks, self._saved_format = weights, callbacks, saved_format
    self._num_classes = num_classes
    self._optimizer_config = optimizers.get_optimizer_config(self._model.optimizer)
    self._batch_adapter = model_inputs.BatchAdapter(self._model, callbacks.input_description)
    for layer in nested_layers(self._model):
      if layer.stateful and not isinstance(layer, (tf.keras.Model, tf.keras.metrics.Metric)):
        raise InvalidValue('an Estimator does not keep the state of a layer from batch to batch',
                           'layer {!r} has stateful=True'.format(layer.name),
                           'give stateful=False, and whole sequences as examples')

  def __deepcopy__(self, memo: Dict[int, Any]) -> '_ModelFn':
    return self  # TensorFlow copies the Estimator in a cluster, and cannot copy a Keras model.

  def make_spec(self, features: Any, labels: Any, mode: str,
                config: tf.estimator.RunConfig) -> tf.estimator.EstimatorSpec:
    """Builds the model for a batch of features; this is the `model_fn` of the Estimator."""
    with self._callbacks.translate_errors():
      estimator_patches.keep_loss_unscaled()
      if mode == tf.estimator.ModeKeys.TRAIN and machine.needs_padded_gradients():
        sessions.pad_filter_gradients(tf.get_default_graph())
      batch = features, labels
      with estimator_patches.recorded_variables() as variables:
        model, features, sample_weights = self._build(features, mode)
      self._set_initial_weights(model, config)
      predictions = dict(zip(estimator_patches.output_names(model, self._model), model.outputs))
      spec: Dict[str, Any] = {'predictions': predictions, 'export_outputs': _make_export_outputs(
          predictions, self._saved_format.export_outputs)}
      if mode != tf.estimator.ModeKeys.PREDICT:
        labels, sample_weights = self._compile(model, labels, sample_weights)
        if mode == tf.estimator.ModeKeys.TRAIN:
          if optimizers.accumulates_gradients(model.optimizer):
            model.optimizer.make_micro_batch = functools.partial(self._make_micro_batch, variables,
                                                                 batch)
          spec.update(self._add_training(model, features, labels, config))
        else:
          spec.update(self._add_evaluation(model, features, labels, sample_weights))
      if self._saved_format.object_based:
        spec['scaffold'] = tf.train.Scaffold(
            saver=estimator_patches.make_object_saver(model, config))
      return tf.estimator.EstimatorSpec(mode, **spec)

  def _build(self, features: Any, mode: str) -> Tuple[tf.keras.Model, Any, Any]:
    """Copies the model onto features; returns it, the features, and the sample weights in them."""
    features, sample_weights = model_inputs.split_sample_weights(features)
    return estimator_patches.copy_onto_batch(
        self._copier, mode, self._batch_adapter.arrange_features(
            self._callbacks.preprocess(features))), features, sample_weights

  def _compile(self, model: tf.keras.Model, labels: Any, sample_weights: Any) -> Tuple[Any, Any]:
    """Compiles a copy; returns the labels and the sample weights of each output."""
    output_names = estimator_patches.output_names(model, self._model)
    labels = self._batch_adapter.arrange_labels(labels, output_names, model.outputs)
    sample_weights = self._batch_adapter.arrange_sample_weights(sample_weights, output_names)
    estimator_patches.compile_copy(model, self._model, self._optimizer_config, labels,
                                   sample_weights)
    return labels, sample_weights

  def _make_micro_batch(self, variables: Sequence[Any], batch: Tuple[Any, Any],
                        index: tf.Tensor) -> optimizers.MicroBatch:
    """Builds another copy of the model for a part of a batch; it shares the given variables."""
    features, labels = model_inputs.part_of_batch(batch, index,
                                                  self._model.optimizer.accumulation_steps)
    with estimator_patches.reused_variables(variables):
      model, _, sample_weights = self._build(features, tf.estimator.ModeKeys.TRAIN)
    self._compile(model, labels, sample_weights)
    return optimizers.MicroBatch(model.total_loss, model.outputs[0],
                                 estimator_patches.statistics_updates(model))

  def _set_initial_weights(self, model: tf.keras.Model, config: tf.estimator.RunConfig) -> None:
    has_checkpoint = tf.train.latest_checkpoint(config.model_dir) is not None
    if self._weights.positional is not None and not has_checkpoint:
      self._weights.positional.initialize(model)
    if self._weights.names is not None and not (
        self._saved_format.object_based and has_checkpoint):
      _check_weight_names(model, self._weights.names)

  def _add_training(self, model: tf.keras.Model, features: Any, labels: Any,
                    config: tf.estimator.RunConfig) -> Dict[str, Any]:
    """Adds the training operations to the graph; returns their part of the EstimatorSpec."""
    accumulates = optimizers.accumulates_gradients(model.optimizer)
    if accumulates and estimator_patches.statistics_updates(model) and isinstance(
        tf.distribute.get_strategy(), tf.distribute.experimental.CentralStorageStrategy):
      raise InvalidValue(
          'a layer such as batch normalization cannot update its statistics during gradient '
          'accumulation with this strategy', '--distribution_strategy=central_storage',
          'give --distribution_strategy=mirrored, or omit --gradient_accumulation_steps')
    train_op = strategies.with_averaged_statistics(model, estimator_patches.make_train_op(model))
    _warn_of_batch_losses(model)
    loss, outputs = model.total_loss, model.outputs
    if accumulates:  # Training runs only the copies of the model for micro-batches.
      loss, outputs = model.optimizer.loss, [model.optimizer.outputs]
      outputs[0].set_shape(model.outputs[0].shape)
    if self._callbacks.observe_batch is not None:
      self._callbacks.observe_batch(features, labels[0], *outputs)
    # No step uses these variables; they only add the frozen weights to the checkpoints.
    frozen_part = self._weights.frozen_part
    for weight in frozen_part.weights if frozen_part is not None else ():
      tf.get_variable(weight.op.name, weight.shape, weight.dtype.base_dtype,
                      tf.zeros_initializer(), trainable=False, use_resource=True)
    saver_hook = checkpoints.UseSingleCopySaver(
        None if self._saved_format.object_based else config,
        optimizers.hyperparameter_names(model.optimizer))
    return {'train_op': train_op, 'loss': loss, 'training_hooks': [saver_hook]}

  def _add_evaluation(self, model: tf.keras.Model, features: Any, labels: Any,
                      sample_weights: Any) -> Dict[str, Any]:
    """Adds the metrics to the graph; returns their part of the EstimatorSpec."""
    metrics = _make_metrics(model, features, labels, sample_weights,
                            losses.unwrap(losses.get_loss(self._model)), self._num_classes)
    evaluation_metrics.make_updates_wait_for(model.inputs, metrics)
    return {'eval_metric_ops': metrics, 'loss': model.total_loss}


def _warn_of_batch_losses(model: tf.keras.Model) -> None:
  """Warns of losses for which several replicas or micro-batches do not train like one."""
  num_replicas = tf.distribute.get_strategy().num_replicas_in_sync
  parts = num_replicas * getattr(model.optimizer, 'accumulation_steps', 1)
  names = losses.losses_that_are_no_means(model) if parts > 1 else []
  if names and tf.get_static_value(
      tf.distribute.get_replica_context().replica_id_in_sync_group) in (0, None):
    _LOG.warning('%d %s do not train like one with a loss that is no mean over the examples of a '
                 'batch: %s', parts, 'replicas' if parts == num_replicas else 'micro-batches',
                 ', '.join(names))


def _make_metrics(model: tf.keras.Model, features: Any, labels: Any, sample_weights: Any,
                  loss: losses.Loss, num_classes: Optional[int]) -> evaluation_metrics.Metrics:
  """Returns the metrics of the model, and those of classifier_metrics or loss_metrics."""
  metrics = evaluation_metrics.model_metrics(model)
  class_count = _infer_num_classes(model, loss) if num_classes is None else num_classes
  added_metrics = (
      evaluation_metrics.classifier_metrics(features, labels[0],
                                            sample_weights and sample_weights[0], model, loss,
                                            class_count)
      if class_count else evaluation_metrics.loss_metrics(model))
  if num_classes is None:
    return {**added_metrics, **metrics}
  return {**metrics, **added_metrics}


def _check_weight_names(model: tf.keras.Model, names: Collection[str]) -> None:
  """Raises an InvalidValue unless the weights have these names, by which their values are found."""
  for weight in model.weights:
    name, _, _ = weight.name.partition(':')
    if name not in names:
      raise InvalidValue('an input_fn must not give the name of a layer to a scope or an operation',
                         'a weight of the model would have the name ' + name,
                         'rename the scope, the operation or the layer')


def _make_export_outputs(predictions: Dict[str, tf.Tensor],
                         further_outputs: Optional[ExportOutputs]) -> Dict[str, Any]:
  """Returns the outputs of a SavedModel for the default signature and for `further_outputs`."""
  return {tf.saved_model.signature_constants.DEFAULT_SERVING_SIGNATURE_DEF_KEY:
              tf.estimator.export.PredictOutput(predictions),
          **{name: make_output(predictions[name])
             for name, make_output in (further_outputs or {}).items()}}


def _infer_num_classes(model: tf.keras.Model, loss: losses.Loss) -> Optional[int]:
  """Returns the number of classes of a classifier, or None if the model is no classifier."""
  is_classifier = (len(model.outputs) == 1 and model.outputs[0].shape.ndims == 2
                   and losses.is_keras_crossentropy(loss))
  return model.outputs[0].shape.as_list()[-1] if is_classifier else None
