"""`tf.keras.estimator.model_to_estimator`: which weights and which optimizer arrive.

Lines are of tensorflow_estimator/python/estimator/keras.py unless another file is named.
"""

import os
import shutil
from typing import Any, Callable, Sequence

import tensorflow.compat.v1 as tf


def initial_weights_path(model_dir: str) -> str:
  """Returns where model_to_estimator writes a model's initial weights.

  Private name, no workaround: the path is written in lines 368 and 406 only.
  """
  return os.path.join(model_dir, 'keras', 'keras_model.ckpt')


def clear_initial_weights(model_dir: str) -> None:
  """Removes initial weights that are left over, so that model_to_estimator writes its own.

  Defect: lines 370 and 371 take what lies in `model_dir/keras` without a look. Symptom: the new
  model's weights are ignored, and training begins with those of another run.

  The folder is made again here, as TensorFlow makes folders that only their owner can write to
  (line 376), whatever the umask says.
  """
  folder = os.path.dirname(initial_weights_path(model_dir))
  shutil.rmtree(folder, ignore_errors=True)
  os.makedirs(folder, exist_ok=True)


def with_all_weights(model_fn: Callable[..., tf.estimator.EstimatorSpec],
                     config: tf.estimator.RunConfig,
                     weights: Sequence[tf.Variable]) -> tf.estimator.Estimator:
  """Makes an Estimator in which all of the model's initial weights arrive.

  Defect: line 593 warm-starts with the default pattern, which is of trainable variables only
  (tensorflow_core/python/training/warm_starting_util.py:341). Symptom: weights of frozen layers,
  and the statistics of batch norm, begin random.

  Args:
    model_fn: of the Estimator that model_to_estimator made, or one around it.
    config: of that Estimator.
    weights: of the model that was converted.
  """
  return tf.estimator.Estimator(
      model_fn, config=config,
      warm_start_from=tf.estimator.WarmStartSettings(
          initial_weights_path(config.model_dir),
          vars_to_warm_start=['^{}(:0)?$'.format(weight.op.name) for weight in weights]))


def register_schedules(*schedules: type) -> None:
  """Registers classes of learning rate schedules, so that an optimizer with one can be converted.

  Defect: the optimizer is made again from its configuration without custom objects
  (tensorflow_core/python/keras/models.py:665, optimizer_v2/optimizer_v2.py:717). Symptom:
  `ValueError: Unknown decay: Cosine` from model_to_estimator.
  """
  for schedule in schedules:
    tf.keras.utils.get_custom_objects()[schedule.__name__] = schedule


def add_base_class(optimizer: Any, base: type) -> None:
  """Puts a base class before the class of a compiled model's optimizer.

  Defect: model_to_estimator makes the optimizer again by `opt.__class__.from_config`
  (tensorflow_core/python/keras/models.py:665). Symptom: a method that is replaced on the instance,
  or a wrapper around it, is lost. The class is what arrives, so the class is what changes; its name
  stays, as variables are named by it.

  Args:
    optimizer: Keras's or one of `tf.train`.
    base: whose methods come before those of the optimizer.
  """
  optimizer = getattr(optimizer, 'optimizer', optimizer)  # Keras wraps those of `tf.train`.
  kind = type(optimizer)
  if not issubclass(kind, base):
    optimizer.__class__ = type(kind.__name__, (base, kind), {})
