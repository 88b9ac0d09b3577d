"""Converts a compiled Keras model to an Estimator."""

import logging
from typing import Any, Callable, Collection, ContextManager, Dict, Mapping, Optional, Sequence

import tensorflow.compat.v1 as tf

from estimator_train.errors import InvalidValue
from estimator_train.models import model_inputs
from estimator_train.process import cpu_tuning
from estimator_train.tf_patches import (
  checkpoints,
  estimator as estimator_patches,
  optimizers,
  strategies,
)
from estimator_train.tf_patches.configurations import nested_layers
from estimator_train.tf_patches.model_copies import ModelCopier
from estimator_train.tf_patches.saved_weights import PositionalWeights
from estimator_train.training import losses, model_errors
from estimator_train.training.batches import BatchFormat
from estimator_train.training.evaluation import metrics as evaluation_metrics

_LOG = logging.getLogger('estimator_train')

# Converts the features of a batch to the input of the model.
Preprocess = Callable[[Any], Any]
# A function of the features, the labels and the outputs of a replica's training batch.
BatchObserver = Callable[[Any, Any, tf.Tensor], None]
ErrorTranslator = Callable[[], ContextManager[None]]
# Maps the name of a model output to a class in tf.estimator.export, such as RegressionOutput.
ExportOutputs = Mapping[str, Callable[[tf.Tensor], tf.estimator.export.ExportOutput]]


def to_estimator(model: tf.keras.Model, run_config: tf.estimator.RunConfig, *,
                 warm_start: Optional[tf.estimator.WarmStartSettings] = None,
                 positional_weights: Optional[PositionalWeights] = None,
                 weight_names: Optional[Collection[str]] = None,
                 copier: Optional[ModelCopier] = None,
                 object_based: bool = False,
                 export_outputs: Optional[ExportOutputs] = None,
                 preprocess: Preprocess = lambda features: features,
                 num_classes: Optional[int] = None,
                 class_weights: Optional[Sequence[float]] = None,
                 label_smoothing: float = 0.,
                 frozen_part: Optional[tf.keras.Model] = None,
                 source: str = 'input_fn',
                 translate_errors: ErrorTranslator = model_errors.translate_errors,
                 observe_batch: Optional[BatchObserver] = None) -> tf.estimator.Estimator:
  """Converts a compiled Keras model to an Estimator.

  Several replicas train exactly like one. A checkpoint has one copy of each variable, so that a run
  can be resumed with another number of replicas. Evaluations also report the metrics of the
  function classifier_metrics or loss_metrics. If a metric of the model has the same name as such a
  metric, the metric of the model is reported, unless `num_classes` is given.

  Args:
    model: a compiled model.
    run_config: the configuration of the Estimator. It must not set `eval_distribute`, under which
      TensorFlow 1.15 loses the examples of short batches.
    warm_start: the initial weights; None: training resumes, or starts from random weights.
    positional_weights: the initial weights, in the order of `model.weights`, of a model without
      known inputs; used instead of `warm_start`.
    weight_names: the names of the weights in `warm_start` and in the checkpoints; None: the names
      are not checked.
    copier: copies the model; None: the model requires no custom objects.
    object_based: whether to save checkpoints for tf.train.Checkpoint instead of tf.train.Saver.
    export_outputs: further signatures of a SavedModel.
    preprocess: converts the features of a batch to the input of the model.
    num_classes: the number of classes of a classifier; 0: the model is no classifier. None: a model
      with an output [B, N] and a categorical cross-entropy is a classifier of N classes; all other
      models are no classifiers.
    class_weights: the weight of each class in the training loss; None: all weights are equal.
    label_smoothing: the fraction of each one-hot label that is distributed over all classes in the
      training loss.
    frozen_part: the frozen layers whose cached outputs are the features of `model`. Checkpoints
      also contain the weights of these layers. None: `model` is a complete network.
    source: what yields the batches, for error messages.
    translate_errors: makes a context that translates errors of the user's code in the model.
    observe_batch: called in each replica while the training graph is built.
  """
  for layer in nested_layers(model):
    if layer.stateful and not isinstance(layer, (tf.keras.Model, tf.keras.metrics.Metric)):
      raise InvalidValue('an Estimator does not keep the state of a layer from batch to batch',
                         'layer {!r} has stateful=True'.format(layer.name),
                         'give stateful=False, and whole sequences as examples')
  loss = losses.get_loss(model)
  # Compiling the model again would remove its metrics.
  if label_smoothing:
    model.loss = losses.SmoothedLoss(loss, label_smoothing)
  if class_weights is not None:
    model.loss = losses.weight_classes(model.loss, class_weights)
  optimizer_config = optimizers.get_optimizer_config(model.optimizer)
  copier = copier or ModelCopier(model)
  batch_format = BatchFormat(model, source)

  def model_fn(features: Any, labels: Any, mode: str,
               config: tf.estimator.RunConfig) -> tf.estimator.EstimatorSpec:
    with translate_errors():
      return make_spec(features, labels, mode, config)

  def make_spec(features: Any, labels: Any, mode: str,
                config: tf.estimator.RunConfig) -> tf.estimator.EstimatorSpec:
    estimator_patches.keep_loss_unscaled()
    if mode == tf.estimator.ModeKeys.TRAIN and cpu_tuning.needs_padded_gradients():
      optimizers.pad_filter_gradients(tf.get_default_graph())
    features, weights = model_inputs.split_weights(features)
    model_copy = estimator_patches.build_model(
        copier, mode, batch_format.arrange_features(preprocess(features)))
    has_checkpoint = tf.train.latest_checkpoint(config.model_dir) is not None
    if positional_weights is not None and not has_checkpoint:
      positional_weights.initialize(model_copy)
    if weight_names is not None and not (object_based and has_checkpoint):
      _check_weight_names(model_copy, weight_names)
    output_names = estimator_patches.output_names(model_copy, model)
    predictions = dict(zip(output_names, model_copy.outputs))
    spec: Dict[str, Any] = {
        'predictions': predictions,
        'export_outputs': _make_export_outputs(predictions, export_outputs)}
    hooks = []
    if mode != tf.estimator.ModeKeys.PREDICT:
      labels = batch_format.arrange_labels(labels, output_names, model_copy.outputs)
      weights = batch_format.arrange_weights(weights, output_names)
    if mode == tf.estimator.ModeKeys.TRAIN:
      estimator_patches.compile_copy(model_copy, model, optimizer_config, labels, weights)
      train_op = strategies.average_statistics(
          model_copy, estimator_patches.make_train_op(model_copy))
      spec.update(train_op=train_op, loss=model_copy.total_loss)
      _warn_of_batch_losses(model_copy)
      if observe_batch is not None:
        observe_batch(features, labels[0], *model_copy.outputs)
      # No step uses these variables; they only add the frozen weights to the checkpoints.
      for weight in frozen_part.weights if frozen_part is not None else ():
        tf.get_variable(weight.op.name, weight.shape, weight.dtype.base_dtype,
                        tf.zeros_initializer(), trainable=False, use_resource=True)
      hooks.append(checkpoints.SingleCopySaver(
          None if object_based else config,
          optimizers.hyperparameter_names(model_copy.optimizer)))
    elif mode == tf.estimator.ModeKeys.EVAL:
      estimator_patches.compile_copy(model_copy, model, optimizer_config, labels, weights)
      metrics = _make_metrics(model_copy, features, labels, weights, loss, num_classes)
      evaluation_metrics.update_after(model_copy.inputs, metrics)
      spec.update(eval_metric_ops=metrics, loss=model_copy.total_loss)
    if object_based:
      spec['scaffold'] = tf.train.Scaffold(
          saver=estimator_patches.make_object_saver(model_copy, config))
    return tf.estimator.EstimatorSpec(mode, training_hooks=hooks, **spec)

  return tf.estimator.Estimator(model_fn, config=run_config, warm_start_from=warm_start)


def _warn_of_batch_losses(model: tf.keras.Model) -> None:
  """Warns of losses for which several replicas do not train like one."""
  strategy = tf.distribute.get_strategy()
  names = losses.batch_losses(model) if strategy.num_replicas_in_sync > 1 else []
  if names and tf.get_static_value(
      tf.distribute.get_replica_context().replica_id_in_sync_group) in (0, None):
    _LOG.warning('%d replicas do not train like one with a loss that is no mean over the examples '
                 'of a batch: %s', strategy.num_replicas_in_sync, ', '.join(names))


def _make_metrics(model: tf.keras.Model, features: Any, labels: Any, weights: Any,
                  loss: losses.Loss, num_classes: Optional[int]) -> evaluation_metrics.Metrics:
  """Returns the metrics of the model, and those of classifier_metrics or loss_metrics."""
  metrics = evaluation_metrics.model_metrics(model)
  output_size = _infer_num_classes(model, loss) if num_classes is None else num_classes
  added_metrics = (
      evaluation_metrics.classifier_metrics(features, labels[0], weights and weights[0],
                                            model.outputs[0], loss, output_size)
      if output_size else evaluation_metrics.loss_metrics(model))
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
