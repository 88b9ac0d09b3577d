"""Converts a user's compiled model to an Estimator, for use with any `input_fn`."""

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
from estimator_train.training.building import check_fits_checkpoint
from estimator_train.training.checkpoints import initial_weights, save_hook
from estimator_train.training.converter import to_estimator


def convert(model: tf.keras.Model, settings: Settings) -> tf.estimator.Estimator:
  """Converts a compiled model to an Estimator; see to_estimator.

  Args:
    model: a compiled model; training starts from its current weights.
    settings: the settings, of which the model_dir, the devices and the seed are used.

  Raises:
    UserError: the model cannot be converted, or the checkpoint is of another model.
  """
  models.check_convertible(model, 'model')
  if not model.optimizer:
    raise UserError('the model is not compiled', repr(model.name),
                    'call model.compile(optimizer, loss) first')
  run_dir = RunDir(settings.model_dir)
  checkpoint, _ = save_hook.latest_checkpoint(run_dir.path)
  if checkpoint is not None:
    check_fits_checkpoint(model, settings, checkpoint, {})
  model.get_weights()  # Initializes the weights; only initialized ones are transferred.
  initial_weights.clear_stale_weights(run_dir, settings[groups.Model], settings.seed)
  devices = find_devices(settings[groups.Devices])
  strategy = make_local_strategy(settings[groups.Devices], devices)
  if strategy is not None:
    estimator_patches.keep_loss_unscaled(strategy)
  estimator = to_estimator(model, tf.estimator.RunConfig(
      model_dir=settings.model_dir, tf_random_seed=settings.seed, train_distribute=strategy,
      session_config=make_session_config(settings[groups.Devices], devices,
                                         has_custom_input=True)))
  initial_weights.record_fingerprint(model, run_dir, settings[groups.Model], settings.seed)
  return estimator
