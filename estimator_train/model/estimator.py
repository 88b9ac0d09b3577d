"""Makes an Estimator whose `model_fn` imports the graph of a compiled Keras model."""

import contextlib
import functools
import logging
import re
import traceback
from typing import (
  Any,
  Callable,
  ContextManager,
  Dict,
  Iterator,
  Mapping,
  Optional,
  Tuple,
)

import tensorflow.compat.v1 as tf

from estimator_train.checkpoints import finding
from estimator_train.errors import InvalidValue, UserError
from estimator_train.model import evaluation_metrics, initial_weights, inputs, losses, observation
from estimator_train.model.gradients import GradientAccumulation, MicroBatchResult
from estimator_train.model.own_graph import CompiledGraph, Fetches, ImportedModel, ModeSubgraph
from estimator_train.settings.user_code import locate_user_code
from estimator_train.tf_patches import (
  checkpoints,
  estimator as estimator_patches,
  optimizers,
  saved_weights,
  sessions,
  strategies,
)
from estimator_train.tf_patches.graphs import find_ancestors
from estimator_train.tf_patches.keras import nested_layers

_LOG = logging.getLogger('estimator_train')

# Classes of tf.estimator.export, such as RegressionOutput, by the names of outputs of the model.
ExportOutputs = Mapping[str, Callable[[tf.Tensor], tf.estimator.export.ExportOutput]]

# (pattern of the message of TensorFlow's error, the rule that the model breaks, the remedy)
_MODEL_RULES = (
    (r'must be from the same graph|not an element of this graph|different graph',
     'an optimizer or a constraint must not use tensors or variables that were made outside of it',
     'compute them in its methods, or give plain numbers'),
    (r'`dynamic=True`', 'a layer must be able to run in a graph',
     'omit dynamic=True, and use operations of TensorFlow instead of Python in its call'),
    (r'has `None` for gradient|No gradients provided for any variable',
     'each trainable weight must affect the loss',
     'give a loss to each output, or set trainable=False for the layer'),
)


@contextlib.contextmanager
def translate_model_errors() -> Iterator[None]:
  """Translates exceptions of TensorFlow in a `with` block that builds or imports a model.

  Raises:
    InvalidValue: an exception has a known remedy. Other exceptions are not translated.
  """
  try:
    yield
  except UserError:
    raise
  except (ValueError, TypeError, RuntimeError) as error:
    for pattern, rule, remedy in _MODEL_RULES:
      match = re.search('[^\n]*({})[^\n]*'.format(pattern), str(error))
      if match:
        location = locate_user_code((frame.filename, frame.lineno)
                                    for frame in traceback.extract_tb(error.__traceback__))
        raise InvalidValue(rule, location + match.group().strip(), remedy) from error
    raise


def to_estimator(model_fn: 'ModelFn',
                 run_config: tf.estimator.RunConfig) -> tf.estimator.Estimator:
  """Makes the Estimator of a compiled Keras model.

  Several replicas train exactly like one. A checkpoint has one copy of each variable, so that a run
  can be resumed with another number of replicas. Training starts from the weights in
  initial_weights_path. If the inputs of the model are unknown until the first batch, training
  starts from the weights of the model instead. Evaluations report the metrics of
  evaluation_metrics.make_metrics.

  Args:
    run_config: `eval_distribute` must be None. Otherwise, TensorFlow 1.15 loses the examples of
      short batches.
  """
  path = initial_weights.initial_weights_path(run_config.model_dir, model_fn.is_object_based)
  # The model_fn loads the initial weights. Only the export of an untrained model uses
  # warm_start_from.
  warm_start = tf.estimator.WarmStartSettings(path, vars_to_warm_start=[])
  has_initial_weights = not model_fn.compiled_graph.is_built_late and (
      finding.find_latest_checkpoint(run_config.model_dir) is None)
  return tf.estimator.Estimator(model_fn.make_spec, config=run_config,
                                warm_start_from=warm_start if has_initial_weights else None)


class ModelFn:
  """Makes the EstimatorSpec of each mode from the graph of a compiled model.

  Args:
    num_classes: see evaluation_metrics.make_metrics. If it is not None, training also computes the
      tensors of observation.add_batch_tensors.
    preprocess: converts the features of a batch to the input of the model.
    translate_errors: makes a context that translates errors in the user's layers and losses.
    input_description: the source of the batches, such as `--dataset=NAME`, for error messages.
    frozen_part: the frozen layers whose cached outputs are the features of the model. Checkpoints
      also contain the weights of these layers. None if the model is a complete network.
    is_object_based: whether checkpoints are saved for tf.train.Checkpoint, not for tf.train.Saver.
    export_outputs: additional signatures of a SavedModel.
  """

  def __init__(self, compiled_graph: CompiledGraph, num_classes: Optional[int] = None,
               preprocess: Callable[[Any], Any] = lambda features: features,
               translate_errors: Callable[[], ContextManager[None]] = translate_model_errors,
               input_description: str = 'input_fn', frozen_part: Optional[tf.keras.Model] = None,
               is_object_based: bool = False,
               export_outputs: Optional[ExportOutputs] = None) -> None:
    self.compiled_graph, self._model = compiled_graph, compiled_graph.model
    self._num_classes, self._frozen_part = num_classes, frozen_part
    self._preprocess, self._translate_errors = preprocess, translate_errors
    self.is_object_based, self._export_outputs = is_object_based, export_outputs
    self._has_saved_weights = False
    self._hyperparameters = compiled_graph.read_hyperparameters()
    self._batch_adapter = inputs.BatchAdapter(self._model, input_description)
    for layer in nested_layers(self._model):
      if layer.stateful and not isinstance(layer, (tf.keras.Model, tf.keras.metrics.Metric)):
        raise InvalidValue('an Estimator does not keep the state of a layer from batch to batch',
                           'layer {!r} has stateful=True'.format(layer.name),
                           'give stateful=False, and whole sequences as examples')

  def __deepcopy__(self, memo: Dict[int, Any]) -> 'ModelFn':
    return self  # TensorFlow copies the Estimator in a cluster, and cannot copy a Keras model.

  def make_spec(self, features: Any, labels: Any, mode: str,
                config: tf.estimator.RunConfig) -> tf.estimator.EstimatorSpec:
    """Imports the model for a batch. This method is the `model_fn` of the Estimator."""
    with self._translate_errors():
      estimator_patches.keep_loss_unscaled()
      plain_features, sample_weights = inputs.split_sample_weights(features)
      if plain_features is None:
        raise InvalidValue('an input_fn must return features',
                           '{}: None'.format(self._batch_adapter.source_name),
                           'return a tf.data.Dataset, or (features, labels)')
      if not self._model.inputs:
        self.compiled_graph.build(self._batch_adapter.arrange_for_unknown_inputs(
            self._preprocess(plain_features)))
      subgraph = self.compiled_graph.subgraph_of_mode(
          mode, sample_weights is not None, _is_in_saved_model(features))
      weights_path = self._find_initial_weights(config)
      imported_model = ImportedModel(self.compiled_graph, subgraph, weights_path)
      if mode == tf.estimator.ModeKeys.TRAIN:
        optimizer = estimator_patches.copy_optimizer(self._model.optimizer, self._hyperparameters)
        spec = self._add_training_operations(
            imported_model, subgraph, optimizer, (features, labels))
        spec['training_hooks'] = [checkpoints.SaverSetupHook(
            None if self.is_object_based else config, optimizers.hyperparameter_names(optimizer))]
        for weight in self._frozen_part.weights if self._frozen_part is not None else ():
          # No step uses this variable, but the saver adds it to the checkpoints.
          tf.get_variable(weight.op.name, weight.shape, weight.dtype.base_dtype, functools.partial(
              saved_weights.make_restored_value, weights_path, weight.op.name),
                          trainable=False, use_resource=True)
      else:
        batch, fetches, _ = self._import_for_batch(imported_model, subgraph, features, labels)
        spec = self._make_prediction_fields(fetches)
        if mode == tf.estimator.ModeKeys.EVAL:
          metrics = evaluation_metrics.make_metrics(
              fetches, plain_features, batch.size(), self._model, self._num_classes)
          evaluation_metrics.make_updates_depend_on(
              tf.nest.flatten(batch.features, expand_composites=True), metrics)
          spec.update(eval_metric_ops=metrics, loss=fetches.loss)
      if self.is_object_based:
        counterparts = imported_model.variables_by_original
        if mode == tf.estimator.ModeKeys.TRAIN:
          counterparts[id(self._model.optimizer)] = optimizer
        spec['scaffold'] = tf.train.Scaffold(saver=estimator_patches.make_object_saver(
            self._model, counterparts, config))
      elif not (config.master or config.evaluation_master or _is_in_saved_model(features)):
        # This process restores or initializes all variables itself.
        sessions.skip_ready_checks()
      return tf.estimator.EstimatorSpec(mode, **spec)

  def _find_initial_weights(self, config: tf.estimator.RunConfig) -> Optional[str]:
    """Returns the path of the initial weights; None if there is a checkpoint to restore."""
    if finding.find_latest_checkpoint(config.model_dir) is not None:
      return None
    # Until now, a model that is built on its first batch had no weights to save.
    if self.compiled_graph.is_built_late and not self._has_saved_weights:
      initial_weights.save_initial_weights(
          config, self.compiled_graph.weight_names,
          self.compiled_graph.weight_values(config.tf_random_seed))
      self._has_saved_weights = True
    return initial_weights.initial_weights_path(config.model_dir)

  def _import_for_batch(self, imported_model: ImportedModel, subgraph: ModeSubgraph, features: Any,
             labels: Any) -> Tuple[inputs.Batch, Fetches, Any]:
    """Imports the operations on a batch. Returns the batch and the results of import_for_batch."""
    features, sample_weights = inputs.split_sample_weights(features)
    features = self._preprocess(features)
    batch = inputs.Batch(self._batch_adapter.arrange_features(features))
    if subgraph.endpoints:
      batch = batch._replace(
          labels=self._batch_adapter.arrange_labels(
              labels, [endpoint.target for endpoint in subgraph.endpoints]),
          sample_weights=self._batch_adapter.arrange_sample_weights(sample_weights))
    try:
      return (batch, *imported_model.import_for_batch(batch))
    except ValueError as error:
      misfit = self._batch_adapter.find_misfit(features)
      if misfit is None:
        raise
      if subgraph.endpoints or not _is_in_saved_model(features):
        raise misfit from error
      _LOG.warning('this SavedModel will not take the features of its serving function: %s', misfit)
      return (batch, *imported_model.import_for_batch(batch.without_shapes()))

  def _make_prediction_fields(self, fetches: Fetches) -> Dict[str, Any]:
    """Returns the fields `predictions` and `export_outputs` of an EstimatorSpec."""
    predictions = dict(zip(self._model.output_names, fetches.outputs))
    return {'predictions': predictions, 'export_outputs': {
        tf.saved_model.signature_constants.DEFAULT_SERVING_SIGNATURE_DEF_KEY:
            tf.estimator.export.PredictOutput(predictions),
        **{name: make_output(predictions[name])
           for name, make_output in (self._export_outputs or {}).items()}}}

  def _add_training_operations(self, imported_model: ImportedModel, subgraph: ModeSubgraph,
                               optimizer: Any, batch: Tuple[Any, Any]) -> Dict[str, Any]:
    """Adds the training operations to the graph. Returns the fields of the EstimatorSpec."""
    if isinstance(optimizer, GradientAccumulation):
      if subgraph.fetches.updates and isinstance(
          tf.distribute.get_strategy(), tf.distribute.experimental.CentralStorageStrategy):
        raise InvalidValue(
            'a layer such as batch normalization cannot update its statistics during gradient '
            'accumulation with this strategy', '--distribution_strategy=central_storage',
            'give --distribution_strategy=mirrored, or omit --gradient_accumulation_steps')

      def compute_micro_batch(index: tf.Tensor) -> MicroBatchResult:
        features, labels = inputs.select_micro_batch(batch, index, optimizer.accumulation_steps)
        _, fetches, upstream_gradient = self._import_for_batch(
            imported_model, subgraph, features, labels)
        known_gradients = imported_model.make_loss_for_optimizer(fetches, upstream_gradient)
        return MicroBatchResult(known_gradients.loss, fetches.loss, fetches.outputs[0],
                                fetches.updates)

      optimizer.compute_micro_batch = compute_micro_batch
      assert subgraph.fetches.loss is not None
      train_op = estimator_patches.make_train_op(
          optimizer, tf.zeros([], subgraph.fetches.loss.dtype), imported_model.trained_weights, [])
      loss, output = optimizer.loss, optimizer.outputs
      output.set_shape(self._model.outputs[0].shape)
      spec: Dict[str, Any] = {}
    else:
      arranged_batch, fetches, upstream_gradient = self._import_for_batch(
          imported_model, subgraph, *batch)
      known_gradients = imported_model.make_loss_for_optimizer(fetches, upstream_gradient)
      train_op = estimator_patches.make_train_op(
          optimizer, known_gradients.loss, imported_model.trained_weights, fetches.updates)
      known_gradients.connect_loss()
      loss, output = fetches.loss, fetches.outputs[0]
      spec = self._make_prediction_fields(fetches)
      if fetches.metrics:
        spec['eval_metric_ops'] = evaluation_metrics.model_metrics(
            fetches.metrics, arranged_batch.size(),
            evaluation_metrics.make_metric_keys((), fetches.metrics, self._num_classes).metrics)
    train_op = strategies.average_statistics_after(imported_model.updated_statistics(), train_op)
    self._warn_of_losses_that_are_no_means(optimizer)
    if self._num_classes:
      label = self._batch_adapter.arrange_labels(
          batch[1], [endpoint.target for endpoint in subgraph.endpoints])[0]
      if losses.model_takes_class_indices(self._model):
        label = tf.cast(tf.reshape(label, [-1]), tf.int64)
      observation.add_batch_tensors(batch[0], label, output)
    return {**spec, 'train_op': train_op, 'loss': loss}

  def _warn_of_losses_that_are_no_means(self, optimizer: Any) -> None:
    """Logs a warning if replicas or micro-batches do not train like one because of a loss."""
    num_replicas = tf.distribute.get_strategy().num_replicas_in_sync
    num_parts = num_replicas * getattr(optimizer, 'accumulation_steps', 1)
    if num_parts == 1 or tf.get_static_value(
        tf.distribute.get_replica_context().replica_id_in_sync_group) not in (0, None):
      return
    names = self.compiled_graph.names_of_losses_that_are_no_means()
    if names:
      _LOG.warning('%d %s do not train like one with a loss that is no mean over the examples of a '
                   'batch: %s', num_parts,
                   'replicas' if num_parts == num_replicas else 'micro-batches', ', '.join(names))


def _is_in_saved_model(features: Any) -> bool:
  """Returns whether the features come from a placeholder, as in the graph of a SavedModel."""
  tensors = tf.nest.flatten(features, expand_composites=True)
  return any(operation.type == 'Placeholder' for operation in find_ancestors(
      # The features may contain NumPy arrays.
      [tensor.op for tensor in tensors if isinstance(tensor, tf.Tensor)]))
