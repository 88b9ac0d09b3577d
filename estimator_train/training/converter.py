"""Converts a compiled Keras model to an Estimator."""

from typing import Any, Callable, Collection, Dict, Mapping, Optional, Sequence

import tensorflow.compat.v1 as tf

from estimator_train.errors import InvalidValue
from estimator_train.models import model_inputs
from estimator_train.process import cpu_tuning
from estimator_train.tf_patches import (
  convolution,
  estimator as estimator_patches,
  keras as keras_patches,
  model_to_estimator,
  replicated_variables,
)
from estimator_train.tf_patches.saved_weights import PositionalWeights
from estimator_train.training import losses
from estimator_train.training.batch_checks import BatchCheck
from estimator_train.training.evaluation import metrics as evaluation_metrics

# Converts the features of a batch to the input of the model.
Preprocess = Callable[[Any], Any]
# A function of the features, the labels and the outputs of a replica's training batch.
BatchObserver = Callable[[Any, Any, tf.Tensor], None]
# Maps the name of a model output to a class in tf.estimator.export, such as RegressionOutput.
ExportOutputs = Mapping[str, Callable[[tf.Tensor], tf.estimator.export.ExportOutput]]


def to_estimator(model: tf.keras.Model, run_config: tf.estimator.RunConfig, *,
                 warm_start: Optional[tf.estimator.WarmStartSettings] = None,
                 positional_weights: Optional[PositionalWeights] = None,
                 weight_names: Optional[Collection[str]] = None,
                 custom_objects: Optional[Dict[str, Any]] = None,
                 object_based: bool = False,
                 export_outputs: Optional[ExportOutputs] = None,
                 preprocess: Preprocess = lambda features: features,
                 num_classes: Optional[int] = None,
                 class_weights: Optional[Sequence[float]] = None,
                 label_smoothing: float = 0.,
                 frozen_part: Optional[tf.keras.Model] = None,
                 check_batch: Optional[BatchCheck] = None,
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
    custom_objects: the user's functions and classes by name; copying the model requires them.
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
    check_batch: called with the features and the labels of a batch before the model is copied;
      raises an error if they do not fit the model.
    observe_batch: called in each replica while the training graph is built.
  """
  loss = losses.get_loss(model)
  # Compiling the model again would remove its metrics.
  if label_smoothing:
    model.loss = losses.SmoothedLoss(loss, label_smoothing)
  if class_weights is not None:
    model.loss = losses.weight_classes(model.loss, class_weights)
  optimizer_config = model_to_estimator.get_optimizer_config(model.optimizer)

  def model_fn(features: Any, labels: Any, mode: str,
               config: tf.estimator.RunConfig) -> tf.estimator.EstimatorSpec:
    estimator_patches.keep_loss_unscaled()
    if mode == tf.estimator.ModeKeys.TRAIN and cpu_tuning.needs_padded_gradients():
      convolution.pad_filter_gradients(tf.get_default_graph())
    if check_batch is not None:
      check_batch(features, labels)
    features, labels = _repeat_weights(features, model), _labels_as_columns(labels, model)
    model_copy = model_to_estimator.build_model(
        model, mode, _preprocess_features(features, preprocess), labels, custom_objects,
        optimizer_config)
    has_checkpoint = tf.train.latest_checkpoint(config.model_dir) is not None
    if positional_weights is not None and not has_checkpoint:
      positional_weights.initialize(model_copy)
    if weight_names is not None and not (object_based and has_checkpoint):
      _check_weight_names(model_copy, weight_names)
    predictions = dict(zip(model_to_estimator.output_names(model_copy, model), model_copy.outputs))
    spec: Dict[str, Any] = {
        'predictions': predictions,
        'export_outputs': _make_export_outputs(predictions, export_outputs)}
    hooks = []
    if mode == tf.estimator.ModeKeys.TRAIN:
      train_op = replicated_variables.average_statistics(
          model_copy, model_to_estimator.make_train_op(model_copy))
      spec.update(train_op=train_op, loss=model_copy.total_loss)
      if observe_batch is not None:
        observe_batch(features, labels, *model_copy.outputs)
      # No step uses these variables; they only add the frozen weights to the checkpoints.
      for weight in frozen_part.weights if frozen_part is not None else ():
        tf.get_variable(weight.op.name, weight.shape, weight.dtype.base_dtype,
                        tf.zeros_initializer(), trainable=False, use_resource=True)
      hooks.append(replicated_variables.SingleCopySaver(
          None if object_based else config,
          model_to_estimator.hyperparameter_names(model_copy.optimizer)))
    elif mode == tf.estimator.ModeKeys.EVAL:
      spec.update(eval_metric_ops=_make_metrics(model_copy, features, labels, loss, num_classes),
                  loss=model_copy.total_loss)
    model_to_estimator.restore_subclassed_model(model)
    if object_based:
      spec['scaffold'] = tf.train.Scaffold(
          saver=model_to_estimator.make_object_saver(model_copy, config))
    return tf.estimator.EstimatorSpec(mode, training_hooks=hooks, **spec)

  return tf.estimator.Estimator(model_fn, config=run_config, warm_start_from=warm_start)


def _make_metrics(model: tf.keras.Model, features: Any, labels: Any, loss: losses.Loss,
                  num_classes: Optional[int]) -> evaluation_metrics.Metrics:
  """Returns the metrics of the model, and those of classifier_metrics or loss_metrics."""
  metrics = evaluation_metrics.model_metrics(model)
  output_size = _infer_num_classes(model, loss) if num_classes is None else num_classes
  added_metrics = (
      evaluation_metrics.classifier_metrics(features, labels, model.outputs[0], loss, output_size)
      if output_size else evaluation_metrics.loss_metrics(model))
  if num_classes is None:
    return {**added_metrics, **metrics}
  return {**metrics, **added_metrics}


def _preprocess_features(features: Any, preprocess: Callable[[Any], Any]) -> Any:
  """Returns the preprocessed features; sample weights are not preprocessed."""
  features, weights = model_inputs.split_weights(features)
  features = preprocess(features)
  return features if weights is None else {'features': features, 'sample_weights': weights}


def _repeat_weights(features: Any, model: tf.keras.Model) -> Any:
  """Returns the features with the sample weights for each output, if there are several outputs."""
  unweighted, weights = model_inputs.split_weights(features)
  if (weights is None or isinstance(weights, (dict, list, tuple))
      or len(model.outputs or ()) < 2):
    return features
  return {'features': unweighted, 'sample_weights': [weights] * len(model.outputs)}


def _labels_as_columns(labels: Any, model: tf.keras.Model) -> Any:
  """Returns labels of the shape [B, 1] instead of [B] for each output of the shape [B, 1].

  For labels [B], Keras computes the mean loss of the batch instead of the loss of each example, so
  that sample weights would have no effect on the relative weight of the examples.
  """
  if labels is None or not keras_patches.is_graph_network(model):
    return labels
  outputs = dict(zip(model.output_names, model.outputs))
  if isinstance(labels, dict):
    return {name: _to_column(tensor, outputs.get(name)) for name, tensor in labels.items()}
  if isinstance(labels, (list, tuple)):
    return [_to_column(tensor, output) for tensor, output in zip(labels, model.outputs)]
  return _to_column(labels, model.outputs[0])


def _to_column(labels: Any, output: Optional[tf.Tensor]) -> Any:
  """Returns labels [B] as [B, 1] if the output has this shape, or else unchanged."""
  is_column = output is not None and output.shape.ndims == 2 and output.shape[1].value == 1
  if is_column and isinstance(labels, tf.Tensor) and labels.shape.ndims == 1:
    return labels[:, tf.newaxis]
  return labels


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
  return model.outputs[0].shape[-1].value if is_classifier else None
