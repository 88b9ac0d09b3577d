"""A choice that a flag allows, but that nothing implements, is an error; never another choice."""

import types

import pytest
import tensorflow.compat.v1 as tf

from estimator_train.cluster.worker import Worker
from estimator_train.datasets import registry as datasets
from estimator_train.distribution import devices
from estimator_train.distribution.engines import make_engine
from estimator_train.errors import UserError
from estimator_train.exporting import export
from estimator_train.models import preprocessing, registry as models
from estimator_train.settings import Settings, choices, learning_rate_scale
from estimator_train.training import optimizers, schedules

SETTINGS = Settings(mode='train', dataset='synthetic', model_dir='x', train_steps=1)
ONE, TWO = (devices.Devices(names, names) for names in (('/cpu:0',), ('/cpu:0', '/cpu:1')))


class Unchecked(types.SimpleNamespace):
  """Looks like settings and each group of them, with values that the constructor would refuse."""

  def __init__(self, *made_up, **values):
    super().__init__(**dict(dict(SETTINGS.items(), trains=True, evaluates=False, data_dir='y',
                                 export_dir='y', **dict.fromkeys(made_up, 'made_up')), **values))

  def __getitem__(self, group):
    return self


@pytest.mark.parametrize('error, make', [
    (ValueError, lambda: optimizers.make_optimizer('made_up', 0.1)),
    (ValueError, lambda: schedules.make_schedule(Unchecked('lr_schedule'), 10, 1, 10)),
    (ValueError, lambda: learning_rate_scale(Unchecked('scale_learning_rate'))),
    (ValueError, lambda: preprocessing.make_preprocess('made_up', 8, 8, 1)),
    (UserError, lambda: models.build('made_up', (8, 8, 1), 2)),
    (UserError, lambda: models.build('registry', (8, 8, 1), 2)),  # A module, but no model.
    (UserError, lambda: models.imagenet_weights('made_up', (8, 8, 1))),
    (UserError, lambda: datasets.describe(Unchecked('dataset'))),
    (UserError, lambda: datasets.describe_classes(Unchecked('dataset'))),
    (UserError, lambda: datasets.get(Unchecked('dataset'))),
    (ValueError, lambda: export.export_checkpoint(Unchecked('export_format'), None, 'x')),
    (ValueError, lambda: devices.make_local_strategy(Unchecked('distribution_strategy'), ONE)),
    (ValueError, lambda: make_engine(Unchecked('distribution_strategy'), Worker(size=2), ONE)),
    (ValueError, lambda: devices.make_local_strategy(Unchecked('all_reduce_alg'), TWO)),
    (ValueError, lambda: devices.collective_communication(Unchecked(
        'all_reduce_alg', distribution_strategy='multi_worker_mirrored'))),
])
def test_a_choice_without_an_implementation_is_an_error(error, make):
  with pytest.raises(error, match='made_up|registry'):
    make()


def test_every_choice_has_an_implementation():
  with tf.Graph().as_default():
    for name in choices.OPTIMIZERS:
      assert optimizers.make_optimizer(name, 0.1).get_config()['name'].lower() == name
    for name in choices.PREPROCESSINGS:
      preprocessing.make_preprocess(name, 8, 8, 3)
    for name in choices.LR_SCHEDULES:
      schedules.make_schedule(Unchecked(
          lr_schedule=name, lr_boundaries_epochs=(1.,), lr_values=(0.1, 0.01)), 10, 1, 10)
  for name in choices.LEARNING_RATE_SCALINGS:
    learning_rate_scale(SETTINGS.evolve(scale_learning_rate=name))
