"""Converts a compiled Keras model to an Estimator by `tf.keras.estimator.model_to_estimator`."""

from typing import Any, Callable, Optional, Sequence

import tensorflow.compat.v1 as tf

from estimator_train.tf_patches import model_to_estimator, replicated_variables
from estimator_train.training import losses
from estimator_train.training.evaluation.metrics import make_metric_fn

Preprocess = Callable[[Any], Any]
# Called with the features, the labels and the outputs of a replica's training batch.
BatchObserver = Callable[[Any, Any, tf.Tensor], None]


def to_estimator(model: tf.keras.Model, run_config: tf.estimator.RunConfig, *,
                 preprocess: Optional[Preprocess] = None,
                 num_classes: Optional[int] = None,
                 class_weights: Optional[Sequence[float]] = None,
                 frozen_part: Optional[tf.keras.Model] = None,
                 observe_batch: Optional[BatchObserver] = None) -> tf.estimator.Estimator:
  """Converts a compiled Keras model to an Estimator that trains the same on one replica or several.

  All initial weights are transferred, including those of frozen layers. A checkpoint has one copy
  of each variable, so that a run can be resumed with another number of replicas. Evaluation of a
  classifier adds the metrics of make_metric_fn.

  Args:
    model: a compiled model; training starts from its current weights.
    run_config: the configuration of the Estimator. It must not set `eval_distribute`, with which
      TensorFlow 1.15 drops the examples of short batches.
    preprocess: applied to the features before the model; None: the features are used as they are.
    num_classes: the number of classes of a classifier; None: the output width is used if the loss
      is a categorical cross-entropy; with any other loss the model is not a classifier.
    class_weights: the weight of each class in the training loss; None: all are equal.
    frozen_part: the layers before the model, whose cached outputs are the model's features; the
      weights of these layers are included in the checkpoints.
    observe_batch: called in each replica while the training graph is built.

  Raises:
    ValueError, TypeError, NotImplementedError: TensorFlow cannot convert the model.
  """
  loss = losses.get_loss(model)
  if class_weights is not None:
    model.compile(model.optimizer, losses.ClassWeighted(loss, class_weights))
  converted = tf.keras.estimator.model_to_estimator(model, config=run_config)

  def model_fn(features: Any, labels: Any, mode: str,
               config: tf.estimator.RunConfig) -> tf.estimator.EstimatorSpec:
    if mode != tf.estimator.ModeKeys.TRAIN:
      return converted.model_fn(_preprocess_features(features), labels, mode, config)
    spec = converted.model_fn(_preprocess_features(features), labels, mode, config)
    if observe_batch is not None:
      observe_batch(features, labels, *spec.predictions.values())
    for weight in frozen_part.weights if frozen_part is not None else ():
      tf.get_variable(weight.op.name, weight.shape, weight.dtype.base_dtype,
                      tf.zeros_initializer(), trainable=False, use_resource=True)
    saver_hook = replicated_variables.SingleCopySaver(config.keep_checkpoint_max)
    return spec._replace(training_hooks=(*(spec.training_hooks or ()), saver_hook))

  def _preprocess_features(features: Any) -> Any:
    return features if preprocess is None else preprocess(features)

  weights = [*model.weights, *(frozen_part.weights if frozen_part is not None else ())]
  estimator = model_to_estimator.warm_start_all_weights(model_fn, converted.config, weights)
  if num_classes is None and losses.is_categorical_crossentropy(loss):
    num_classes = _output_width(model)
  if num_classes is None:
    return estimator
  return tf.estimator.add_metrics(estimator, make_metric_fn(loss, num_classes))


def _output_width(model: tf.keras.Model) -> Optional[int]:
  """Returns the width of the model's output, or None if it is not one vector per example."""
  is_vector = len(model.outputs) == 1 and model.outputs[0].shape.ndims == 2
  return model.output_shape[-1] if is_vector else None
