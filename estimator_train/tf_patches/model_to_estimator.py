"""Works around defects of `tf.keras.estimator.model_to_estimator`, and calls its private functions.

Line numbers refer to tensorflow_estimator/python/estimator/keras.py, unless a file is named.
"""

import re
from typing import Any, Dict, List, Mapping, Optional, Set

import tensorflow.compat.v1 as tf
from tensorflow.python.keras import models
from tensorflow.python.training.tracking import graph_view, util
from tensorflow_estimator.python.estimator import keras

from estimator_train.tf_patches.keras import set_trainable_flags, trainable_flags


def build_model(model: tf.keras.Model, mode: str, features: Any, labels: Any,
                custom_objects: Optional[Dict[str, Any]],
                optimizer_config: Any) -> tf.keras.Model:
  """Builds a copy of a model on the tensors of a batch, and compiles it unless `mode` is PREDICT.

  Not a workaround for a defect: this function uses the private name `_clone_and_build_model`
  (line 181), because no public function applies sample weights, and sorts dicts of features and
  labels in the order of the inputs and outputs of the model.

  Args:
    model: the compiled model to copy.
    mode: one of tf.estimator.ModeKeys.
    features: a tensor, or a list or dict with one tensor per input; or `{'features': ...,
      'sample_weights': ...}`.
    labels: a tensor, or a list or dict with one tensor per output; None in the mode PREDICT.
    custom_objects: the user's functions and classes, by name.
    optimizer_config: the return value of get_optimizer_config for the optimizer of `model`.
  """
  flags = trainable_flags(model)
  # Without this scope, TensorFlow does not find custom objects of the optimizer.
  with tf.keras.utils.CustomObjectScope(custom_objects or {}):
    # pylint: disable-next=protected-access
    model_copy = keras._clone_and_build_model(mode, model, custom_objects, features, labels,
                                              optimizer_config)
  set_trainable_flags(model_copy, flags)
  return model_copy


def get_optimizer_config(optimizer: Any) -> Any:
  """Returns the configuration of an optimizer, or of each optimizer in a list, for build_model.

  Returns None for an optimizer of `tf.train`, which has no configuration. Must be called in the
  graph of the model, because a hyperparameter can be a variable of this graph. Not a workaround
  for a defect: this function does the same as the first lines of the private function
  `_create_keras_model_fn` (line 265), which this package does not call.
  """
  try:
    if isinstance(optimizer, (list, tuple)):
      return [member.get_config() for member in optimizer]
    return optimizer.get_config()
  except (NotImplementedError, AttributeError):
    return None


def output_names(model_copy: tf.keras.Model, model: tf.keras.Model) -> List[str]:
  """Returns the names of the outputs of a model from build_model, equal on all replicas.

  Defect: on each replica, Keras adds a different suffix to the names of the outputs. This function
  returns the names in the user's model, if it has any, and otherwise removes the suffix in the same
  way as line 290, which this package does not execute. Symptom: the predictions of the replicas
  cannot be grouped.
  """
  if not tf.distribute.has_strategy():
    return list(model_copy.output_names)
  if getattr(model, 'output_names', None):
    return list(model.output_names)
  return [re.sub(r'_\d$', '', name) for name in model_copy.output_names]


def hyperparameter_names(optimizer: Any) -> Set[str]:
  """Returns the names of the hyperparameters of one or several optimizers, such as `beta_1`.

  Not a workaround for a defect: this function uses the private name `_hyper`
  (tensorflow_core/python/keras/optimizer_v2/optimizer_v2.py:254), because there is no public one.
  """
  if isinstance(optimizer, (list, tuple)):
    return {name for member in optimizer for name in hyperparameter_names(member)}
  inner = getattr(optimizer, '_optimizer', None)  # LossScalingOptimizer wraps another optimizer.
  return {*getattr(optimizer, '_hyper', ()),
          *(hyperparameter_names(inner) if inner is not None else ())}


def make_train_op(model: tf.keras.Model) -> tf.Operation:
  """Returns the operation of a training step of a model from build_model.

  Not a workaround for a defect: this function uses the private name `_make_train_function`, because
  no public function makes the attribute `train_function`.
  """
  model._make_train_function()  # pylint: disable=protected-access
  return model.train_function.updates_op


def make_metrics(model: tf.keras.Model) -> Dict[str, Any]:
  """Returns the compiled metrics of a model from build_model, by name.

  Defect: model_fn.py:515 runs only the first update of a metric, but the update with the sample
  weights is the last one. Symptom: `weighted_metrics` ignore the sample weights. This function
  uses the private name `_compile_metric_functions`, because the public `model.metrics` also
  contains the metrics that a model has added by `add_metric`.
  """
  model._make_test_function()  # pylint: disable=protected-access
  metrics = model._compile_metric_functions  # pylint: disable=protected-access
  for metric in metrics:
    del metric._updates[:-1]  # pylint: disable=protected-access
  return {metric.name: metric for metric in metrics}


def restore_subclassed_model(model: tf.keras.Model) -> None:
  """Restores the user's model after build_model, which replaces the layers of some models.

  TensorFlow replaces the layers of a model that is a subclass of tf.keras.Model without
  `get_config`, because TensorFlow cannot copy such a model. Not a workaround for a defect: this
  function uses the private name `in_place_subclassed_model_state_restoration`, because no public
  function undoes the replacement.
  """
  if getattr(model, '_original_attributes_cache', None) is not None:
    models.in_place_subclassed_model_state_restoration(model)


def make_object_saver(model: tf.keras.Model, config: tf.estimator.RunConfig) -> tf.train.Saver:
  """Makes the saver of object-based checkpoints, which tf.train.Checkpoint can read.

  Defect: line 345 makes a saver that keeps five checkpoints. Symptom: `keep_checkpoint_max` and
  `keep_checkpoint_every_n_hours` have no effect with `checkpoint_format='checkpoint'`.
  """
  # pylint: disable=protected-access
  model._track_trackable(tf.train.get_global_step(), 'estimator_global_step')
  saver = tf.train.Saver(
      graph_view.ObjectGraphView(model).frozen_saveable_objects(), sharded=True,
      max_to_keep=config.keep_checkpoint_max,
      keep_checkpoint_every_n_hours=config.keep_checkpoint_every_n_hours)
  saver._object_restore_saver = util.frozen_saver(model)
  return saver


def weight_shapes(model: tf.keras.Model,
                  custom_objects: Mapping[str, Any]) -> Dict[str, List[int]]:
  """Returns the shapes of a model's weights, by the names of the weights in an Estimator's graph.

  See saved_weights.save_initial_weights about the names.
  """
  with tf.Graph().as_default(), tf.keras.utils.CustomObjectScope(dict(custom_objects)):
    return {weight.op.name: weight.shape.as_list()
            for weight in tf.keras.models.clone_model(model).weights}


def register_schedules(*schedules: type) -> None:
  """Registers classes of learning rate schedules, so that models that use them can be converted.

  Defect: the optimizer is created again from its configuration, without custom objects
  (tensorflow_core/python/keras/models.py:665, optimizer_v2/optimizer_v2.py:717). Symptom:
  `ValueError: Unknown decay: Cosine` from model_to_estimator.
  """
  for schedule in schedules:
    tf.keras.utils.get_custom_objects()[schedule.__name__] = schedule


def add_optimizer_base_class(optimizer: Any, base_class: type) -> None:
  """Adds a base class to the optimizer of a compiled model, by replacing the optimizer's class.

  Defect: model_to_estimator creates the optimizer again by `opt.__class__.from_config`
  (tensorflow_core/python/keras/models.py:665). Symptom: only the class of the optimizer is
  preserved; a method that was replaced on the object, or a wrapper around the object, is lost.
  The new class has the name of the old class, because names of variables may contain this name.

  Args:
    optimizer: an optimizer of Keras or of `tf.train`.
    base_class: a class whose methods override the methods of the optimizer.
  """
  optimizer = getattr(optimizer, 'optimizer', optimizer)  # Keras wraps optimizers of `tf.train`.
  optimizer_class = type(optimizer)
  if not issubclass(optimizer_class, base_class):
    optimizer.__class__ = type(optimizer_class.__name__, (base_class, optimizer_class), {})
