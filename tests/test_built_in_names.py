"""A choice that a flag allows has an implementation; another one is an error, never a default."""

import tensorflow.compat.v1 as tf

from estimator_train.models import model_inputs
from estimator_train.settings import Settings, learning_rate_scale
from estimator_train.settings.flag_type import all_flags
from estimator_train.settings.flags import OPTIMIZERS
from estimator_train.training import optimizers, schedules

SETTINGS = Settings(mode='train', dataset='synthetic', model_dir='x', train_steps=1)


def test_every_choice_has_an_implementation():
  with tf.Graph().as_default():
    for name in OPTIMIZERS:
      assert optimizers.make_optimizer(name, 0.1).get_config()['name'].lower() == name
    for name in all_flags()['preprocess'].choices:
      model_inputs.make_preprocess_function(name, 8, 8, 3)
    for name in all_flags()['lr_schedule'].choices:
      given = {'piecewise': {'lr_boundaries_epochs': [1.], 'lr_values': [1e-3, .01]},
               'exponential': {'lr_values': [1e-4]}}.get(name, {})
      schedules.make_schedule(SETTINGS.evolve(lr_schedule=name, **given), 10, 1, 10)
  for name in all_flags()['scale_learning_rate'].choices:
    learning_rate_scale(SETTINGS.evolve(scale_learning_rate=name))
