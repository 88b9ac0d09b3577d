"""The conversion of a model that was built and compiled elsewhere, for any `input_fn`."""

import tensorflow.compat.v1 as tf

from estimator_train.distribution.devices import (
  find_devices,
  make_local_strategy,
  make_session_config,
)
from estimator_train.errors import UserError
from estimator_train.models import registry as models
from estimator_train.run_dir.run_files import RunDir
from estimator_train.settings import Settings, groups
from estimator_train.tf_patches import estimator as estimator_patches
from estimator_train.training.building import check_fits
from estimator_train.training.checkpoints import initial_weights, save_hook
from estimator_train.training.converter import to_estimator


def convert(model: tf.keras.Model, settings: Settings) -> tf.estimator.Estimator:
  """Converts a model; see to_estimator.

  Args:
    model: begins with the weights that it has now.
    settings: say where, on which devices, and the seed of what is random in a step.

  Raises:
    UserError: it cannot be converted, or the checkpoint is of another one.
  """
  models.check_kind(model, 'model')
  if not model.optimizer:
    raise UserError('the model is not compiled', repr(model.name),
                    'call model.compile(optimizer, loss) first')
  run_dir = RunDir(settings.model_dir)
  checkpoint, _ = save_hook.latest(run_dir.path)
  if checkpoint is not None:
    check_fits(model, settings, checkpoint, {})
  model.get_weights()  # Draws those that were not set, for only such are converted as they are.
  initial_weights.clear_stale(run_dir, settings[groups.Model], settings.seed)
  devices = find_devices(settings[groups.Devices])
  strategy = make_local_strategy(settings[groups.Devices], devices)
  if strategy is not None:
    estimator_patches.keep_loss_unscaled(strategy)
  estimator = to_estimator(model, tf.estimator.RunConfig(
      model_dir=settings.model_dir, tf_random_seed=settings.seed, train_distribute=strategy,
      session_config=make_session_config(settings[groups.Devices], devices, others_input=True)))
  initial_weights.record(model, run_dir, settings[groups.Model], settings.seed)
  return estimator
