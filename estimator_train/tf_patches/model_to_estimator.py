"""Works around defects of `tf.keras.estimator.model_to_estimator`, and calls its private functions.

Line numbers refer to tensorflow_estimator/python/estimator/keras.py, unless a file is named.
"""

import os
import re
from typing import Any, Dict, List, Mapping, Optional, Sequence, Set

import tensorflow.compat.v1 as tf
from tensorflow.python.keras import models
from tensorflow.python.training.tracking import graph_view, util
from tensorflow_estimator.python.estimator import keras

from estimator_train.tf_patches.keras import set_trainable_flags, trainable_flags


def initial_weights_path(model_dir: str) -> str:
  """Returns the path to which model_to_estimator writes a model's initial weights.

  Not a workaround for a defect: this function repeats the path of lines 368 and 406, because
  TensorFlow has no public name for the path.
  """
  return os.path.join(model_dir, 'keras', 'keras_model.ckpt')


def _make_folder(path: str) -> None:
  """Makes a local folder with the usual permissions, or one in another file system, such as gs://.

  Local folders that TensorFlow makes (line 376) ignore the umask.
  """
  if '://' in path:
    tf.gfile.MakeDirs(path)
  else:
    os.makedirs(path, exist_ok=True)


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


def save_initial_weights(model: tf.keras.Model, values: Optional[Sequence[Any]],
                         config: tf.estimator.RunConfig,
                         custom_objects: Optional[Dict[str, Any]] = None,
                         object_based: bool = False) -> List[str]:
  """Saves initial weights, and returns the names that they have in an Estimator's graph.

  Defect: line 370 reuses the weights in `model_dir/keras` without a check. Symptom: the weights of
  a new model are ignored, and training starts from the weights of an earlier model. Line 396 also
  builds the training graph, which takes most of the time of a conversion.

  Args:
    model: a model that is defined by its inputs and outputs. The returned names can differ from the
      names in the graph of `model`: if this graph contains other models, its names have suffixes.
    values: the values of the weights, or None for random values, with the seed in `config`.
    config: the configuration of the Estimator. In a cluster, the chief always writes the weights;
      another task writes the weights only if there is no file yet.
    custom_objects: the user's functions and classes, by name.
    object_based: whether to write an object-based checkpoint.
  """
  path = initial_weights_path(config.model_dir)
  # Line 376 would make a folder that only its owner can write to.
  _make_folder(os.path.dirname(path))
  with tf.Graph().as_default(), tf.Session(config=config.session_config) as session:
    tf.set_random_seed(config.tf_random_seed)
    global_step = tf.train.create_global_step()
    with tf.keras.utils.CustomObjectScope(custom_objects or {}):
      copy = tf.keras.models.clone_model(model)
    set_trainable_flags(copy, trainable_flags(model))
    if config.is_chief or not tf.train.checkpoint_exists(path):
      session.run([global_step.initializer] + [weight.initializer for weight in copy.weights])
      if values is not None:
        copy.set_weights(values)
      if object_based:
        copy._track_trackable(global_step, 'estimator_global_step')
        copy.save_weights(path, save_format='tf')
      else:
        tf.train.Saver([global_step, *copy.weights]).save(session, path, write_meta_graph=False)
    return [weight.op.name for weight in copy.weights]


def weight_shapes(model: tf.keras.Model,
                  custom_objects: Mapping[str, Any]) -> Dict[str, List[int]]:
  """Returns the shapes of a model's weights, by the names of the weights in an Estimator's graph.

  See save_initial_weights about the names.
  """
  with tf.Graph().as_default(), tf.keras.utils.CustomObjectScope(dict(custom_objects)):
    return {weight.op.name: weight.shape.as_list()
            for weight in tf.keras.models.clone_model(model).weights}


class PositionalWeights:
  """Saves initial weights by position, for a model whose weights get names only in its first call.

  Defect: model_to_estimator loses the weights of subclasses of tf.keras.Model, and of other models
  without known inputs; line 574 only warns. Symptom: training starts from random weights.

  Args:
    values: the values of the weights, in the order of `model.weights`.
    config: the configuration of the Estimator.
  """

  def __init__(self, values: Sequence[Any], config: tf.estimator.RunConfig) -> None:
    self._path = initial_weights_path(config.model_dir)
    self._shapes = [list(value.shape) for value in values]
    _make_folder(os.path.dirname(self._path))
    if config.is_chief or not tf.train.checkpoint_exists(self._path):
      with tf.Graph().as_default(), tf.Session(config=config.session_config) as session:
        placeholders = [tf.placeholder(value.dtype, value.shape) for value in values]
        session.run(tf.raw_ops.SaveV2(
            prefix=self._path, tensor_names=[str(index) for index in range(len(values))],
            shape_and_slices=[''] * len(values), tensors=placeholders),
                    dict(zip(placeholders, values)))

  def initialize(self, model: tf.keras.Model) -> None:
    """Makes the weights of a model from build_model start from the saved values.

    Raises:
      ValueError: the weights do not have the number and the shapes of the saved values.
    """
    shapes = [weight.shape.as_list() for weight in model.weights]
    if shapes != self._shapes:
      raise ValueError(
          'a copy of a model must have the weights of the model: {}: shapes {}, not {}: return all '
          'arguments of the model from get_config'.format(model.name, shapes, self._shapes))
    tf.train.init_from_checkpoint(self._path, {
        str(index): weight for index, weight in enumerate(model.weights)})


def warm_start_settings(model_dir: str, names: Sequence[str]) -> tf.estimator.WarmStartSettings:
  """Returns the settings with which an Estimator starts from all of the initial weights.

  Defect: line 593 warm-starts with the default pattern, which matches trainable variables only
  (tensorflow_core/python/training/warm_starting_util.py:341). Symptom: weights of frozen layers
  start from random values, and the statistics of batch normalization start from 0 and 1.

  Args:
    model_dir: the path of the folder of the Estimator.
    names: the names of the weights in the graph of the Estimator.
  """
  return tf.estimator.WarmStartSettings(
      initial_weights_path(model_dir),
      vars_to_warm_start=['^{}(:0)?$'.format(re.escape(name)) for name in names])


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
