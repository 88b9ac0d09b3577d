"""From a Keras model to an Estimator, through `tf.keras.estimator.model_to_estimator`."""

from typing import Dict, NamedTuple

import tensorflow.compat.v1 as tf

from estimator_train.datasets.description import DataSet
from estimator_train.errors import UserError
from estimator_train.models import registry as models
from estimator_train.settings import Settings, scaled_learning_rate
from estimator_train.training import checkpoints, initial_weights, losses
from estimator_train.training.devices import Devices, make_session_config, make_strategy
from estimator_train.training.evaluation_metrics import make_metric_fn
from estimator_train.training.optimizers import make_optimizer
from estimator_train.training.schedules import WarmUp


class Converted(NamedTuple):
  """An Estimator and what its input must be like.

  Attributes:
    estimator: the converted model.
    one_hot: whether labels are one-hot, not class numbers.
  """
  estimator: tf.estimator.Estimator
  one_hot: bool


def convert(settings: Settings, dataset: DataSet, devices: Devices, warmup_steps: int,
            flags_before: Dict[str, str]) -> Converted:
  """Builds the Keras model, checks it against what `model_dir` holds, and converts it.

  Training is spread over the devices. Evaluation is on one: under `eval_distribute` TensorFlow
  1.15 loses examples of short batches.

  Args:
    settings: of this run.
    dataset: gives the model its shapes.
    devices: one replica each.
    warmup_steps: over which the learning rate rises.
    flags_before: the flags of the run that made `model_dir`, where they are known.

  Raises:
    UserError: the model cannot take these images, or the checkpoint is of another one.
  """
  # A graph of its own gives the layers the same names in every run of a process. The model is
  # built outside of the strategy's scope, which model_to_estimator needs.
  with tf.Graph().as_default():
    tf.set_random_seed(settings.seed)
    model = build_model(settings, dataset, warmup_steps)
    _check_fits(model, settings, flags_before)
    loads = settings.weights != 'none'
    if loads:
      # The first Keras session stays, whatever the RunConfig says later.
      tf.keras.backend.set_session(tf.Session(config=make_session_config(settings, devices)))
      initial_weights.load(model, settings.weights)
    initial_weights.clear_stale(settings)
    estimator = tf.keras.estimator.model_to_estimator(
        model, config=_make_run_config(settings, devices))
    initial_weights.record(model if loads else None, settings)
    tf.keras.backend.set_session(None)
  estimator = tf.estimator.add_metrics(
      _warm_start_every_weight(estimator, model), make_metric_fn(model.loss, len(dataset.labels)))
  return Converted(estimator, not losses.takes_class_numbers(model.loss))


def build_model(settings: Settings, dataset: DataSet, warmup_steps: int = 0) -> tf.keras.Model:
  """Builds the Keras model and compiles it, unless it is a user's and compiled already.

  Raises:
    UserError: it cannot be built for images of this shape.
  """
  try:
    model = models.build(settings.model, dataset.image_shape, len(dataset.labels))
  except ValueError as error:
    raise UserError('the model cannot be built for these images',
                    '--model={} for {} ({})'.format(
                        settings.model, 'x'.join(str(side) for side in dataset.image_shape), error),
                    'give a larger --image_size or another --model') from error
  if not model.optimizer:
    schedule = WarmUp(scaled_learning_rate(settings), warmup_steps)
    model.compile(make_optimizer(settings.optimizer, schedule), loss=losses.default_loss(model))
  return model


def _make_run_config(settings: Settings, devices: Devices) -> tf.estimator.RunConfig:
  return tf.estimator.RunConfig(
      model_dir=settings.model_dir,
      tf_random_seed=settings.seed,
      train_distribute=make_strategy(settings, devices),
      session_config=make_session_config(settings, devices),
      save_checkpoints_steps=None,  # checkpoints.SaveCheckpoints saves them.
      save_checkpoints_secs=None,
      save_summary_steps=settings.log_every_steps,
      log_step_count_steps=settings.log_every_steps)


def _warm_start_every_weight(estimator: tf.estimator.Estimator,
                             model: tf.keras.Model) -> tf.estimator.Estimator:
  """Has all of the model's weights arrive: model_to_estimator lets only the trainable ones."""
  return tf.estimator.Estimator(
      estimator.model_fn, config=estimator.config,
      warm_start_from=tf.estimator.WarmStartSettings(
          initial_weights.written_to(estimator.model_dir),
          vars_to_warm_start=['^{}(:0)?$'.format(weight.op.name) for weight in model.weights]))


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
