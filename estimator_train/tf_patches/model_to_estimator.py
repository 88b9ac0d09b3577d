"""`tf.keras.estimator.model_to_estimator`: the weights and the optimizer of the converted model.

Line numbers refer to tensorflow_estimator/python/estimator/keras.py, unless a file is named.
"""

import os
import shutil
from typing import Any, Callable, Sequence

import tensorflow.compat.v1 as tf


def initial_weights_path(model_dir: str) -> str:
  """Returns the path to which model_to_estimator writes a model's initial weights.

  Private name, no workaround: only lines 368 and 406 define the path.
  """
  return os.path.join(model_dir, 'keras', 'keras_model.ckpt')


def clear_initial_weights(model_dir: str) -> None:
  """Removes stale initial weights, so that model_to_estimator writes those of the model.

  Defect: lines 370 and 371 reuse the weights in `model_dir/keras` without a check. Symptom: the
  weights of a new model are ignored, and training starts from those of another run.

  This function also makes the folder again, because TensorFlow (line 376) ignores the umask and
  makes folders that only their owner can write to.
  """
  folder = os.path.dirname(initial_weights_path(model_dir))
  shutil.rmtree(folder, ignore_errors=True)
  os.makedirs(folder, exist_ok=True)


def warm_start_all_weights(model_fn: Callable[..., tf.estimator.EstimatorSpec],
                           config: tf.estimator.RunConfig,
                           weights: Sequence[tf.Variable]) -> tf.estimator.Estimator:
  """Makes an Estimator that starts from all of the model's initial weights.

  Defect: line 593 warm-starts with the default pattern, which matches trainable variables only
  (tensorflow_core/python/training/warm_starting_util.py:341). Symptom: weights of frozen layers
  start from random values, and the statistics of batch normalization from 0 and 1.

  Args:
    model_fn: the model_fn of the Estimator from model_to_estimator, or one that wraps it.
    config: the configuration of that Estimator.
    weights: the weights of the converted model.
  """
  return tf.estimator.Estimator(
      model_fn, config=config,
      warm_start_from=tf.estimator.WarmStartSettings(
          initial_weights_path(config.model_dir),
          vars_to_warm_start=['^{}(:0)?$'.format(weight.op.name) for weight in weights]))


def register_schedules(*schedules: type) -> None:
  """Registers classes of learning rate schedules, so that optimizers with them can be converted.

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
  preserved; a method replaced on the instance, or a wrapper around the instance, is lost. The new
  class has the name of the old one, because the names of the optimizer's variables may contain it.

  Args:
    optimizer: an optimizer of Keras or of `tf.train`.
    base_class: a class whose methods override those of the optimizer.
  """
  optimizer = getattr(optimizer, 'optimizer', optimizer)  # Keras wraps optimizers of `tf.train`.
  optimizer_class = type(optimizer)
  if not issubclass(optimizer_class, base_class):
    optimizer.__class__ = type(optimizer_class.__name__, (base_class, optimizer_class), {})
