"""From a Keras model to an Estimator, through `tf.keras.estimator.model_to_estimator`."""

import os
import shutil
from typing import Dict

import tensorflow.compat.v1 as tf

from estimator_train.datasets.description import DataSet
from estimator_train.errors import UserError
from estimator_train.models import registry as models
from estimator_train.settings import Settings
from estimator_train.training import checkpoints
from estimator_train.training.devices import Devices, make_session_config, make_strategy
from estimator_train.training.evaluation_metrics import make_metric_fn
from estimator_train.training.optimizers import make_optimizer

_LOSS = 'categorical_crossentropy'


def make_estimator(settings: Settings, dataset: DataSet, devices: Devices,
                   flags_before: Dict[str, str]) -> tf.estimator.Estimator:
  """Builds the Keras model, checks it against what `model_dir` holds, and converts it.

  Training is spread over the devices. Evaluation is on one: under `eval_distribute` TensorFlow
  1.15 loses examples of short batches.

  Args:
    settings: of this run.
    dataset: gives the model its shapes.
    devices: one replica each.
    flags_before: the flags of the run that made `model_dir`, where they are known.

  Raises:
    UserError: the model cannot take these images, or the checkpoint is of another one.
  """
  # A graph of its own gives the layers the same names in every run of a process. The model is
  # built outside of the strategy's scope, which model_to_estimator needs.
  with tf.Graph().as_default():
    tf.set_random_seed(settings.seed)
    model = _build(settings, dataset)
    _check_fits(model, settings, flags_before)
    estimator = tf.keras.estimator.model_to_estimator(
        model, config=_make_run_config(settings, devices))
  return tf.estimator.add_metrics(estimator, make_metric_fn(_LOSS, len(dataset.labels)))


def _build(settings: Settings, dataset: DataSet) -> tf.keras.Model:
  try:
    model = models.build(settings.model, dataset.image_shape, len(dataset.labels))
  except ValueError as error:
    raise UserError('the model cannot be built for these images',
                    '--model={} for {} ({})'.format(
                        settings.model, 'x'.join(str(side) for side in dataset.image_shape), error),
                    'give a larger --image_size or another --model') from error
  model.compile(make_optimizer(settings.optimizer, settings.learning_rate), loss=_LOSS)
  return model


def _make_run_config(settings: Settings, devices: Devices) -> tf.estimator.RunConfig:
  assert settings.model_dir is not None
  if tf.train.latest_checkpoint(settings.model_dir) is None:
    # model_to_estimator takes initial weights that it finds there for this model's, and a run
    # that ended before its first checkpoint leaves some.
    shutil.rmtree(os.path.join(settings.model_dir, 'keras'), ignore_errors=True)
  return tf.estimator.RunConfig(
      model_dir=settings.model_dir,
      tf_random_seed=settings.seed,
      train_distribute=make_strategy(settings, devices),
      session_config=make_session_config(settings, devices),
      save_checkpoints_steps=None,  # checkpoints.SaveCheckpoints saves them.
      save_checkpoints_secs=None,
      save_summary_steps=settings.log_every_steps,
      log_step_count_steps=settings.log_every_steps)


def _check_fits(model: tf.keras.Model, settings: Settings, flags_before: Dict[str, str]) -> None:
  """Raises a UserError that names both when the checkpoint is of another model or optimizer."""
  assert settings.model_dir is not None
  path, step = checkpoints.latest(settings.model_dir)
  if path is None:
    return
  for flag, given, difference in (
      ('model', settings.model, checkpoints.model_difference(model, path)),
      ('optimizer', settings.optimizer,
       checkpoints.optimizer_difference(model, path) if settings.trains else None)):
    if difference:
      before = flags_before.get(flag, 'unknown')
      raise UserError(
          '--model_dir holds a checkpoint of another {}'.format(flag),
          '{} at step {} is of --{}={}, not of --{}={} ({})'.format(
              settings.model_dir, step, flag, before, flag, given, difference),
          'give another --model_dir' if before in ('unknown', given)
          else 'give another --model_dir, or --{}={}'.format(flag, before))
