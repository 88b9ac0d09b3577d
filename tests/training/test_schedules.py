"""The learning rate by hand, and what grows it with the batch."""

import pytest
import tensorflow.compat.v1 as tf

from estimator_train.errors import UserError
from estimator_train.settings import Settings, lr_warmup_steps, scaled_learning_rate
from estimator_train.training.optimizers import make_optimizer
from estimator_train.training.schedules import WarmUp


@pytest.mark.parametrize('warmup_steps, expected', [
    (0, [0.8, 0.8, 0.8, 0.8, 0.8]), (1, [0.8, 0.8, 0.8, 0.8, 0.8]),
    (4, [0.2, 0.4, 0.6, 0.8, 0.8])])
def test_warm_up(warmup_steps, expected):
  with tf.Graph().as_default(), tf.Session() as session:
    rates = [WarmUp(0.8, warmup_steps)(tf.constant(step, tf.int64)) for step in range(5)]
    assert session.run(rates) == pytest.approx(expected)


def test_optimizer_is_made_again_from_its_configuration():
  config = make_optimizer('adam', WarmUp(0.25, 3)).get_config()
  again = tf.keras.optimizers.Adam.from_config(config).get_config()
  assert again['learning_rate'] == {
      'class_name': 'WarmUp', 'config': {'learning_rate': 0.25, 'warmup_steps': 3}}


@pytest.mark.parametrize('scaling, batch_size, rate', [
    ('none', 512, 0.001), ('linear', 512, 0.004), ('sqrt', 512, 0.002), ('linear', 64, 0.0005)])
def test_scaled_learning_rate(scaling, batch_size, rate):
  settings = Settings(model_dir='x', train_steps=1, batch_size=batch_size, learning_rate=0.001,
                      scale_learning_rate=scaling, base_batch_size=128)
  assert scaled_learning_rate(settings) == pytest.approx(rate)


@pytest.mark.parametrize('epochs, steps', [(0, 0), (1, 10), (0.25, 3)])
def test_warm_up_steps(epochs, steps):
  settings = Settings(model_dir='x', train_steps=1, batch_size=10, lr_warmup_epochs=epochs)
  assert lr_warmup_steps(settings, 100) == steps


def test_warm_up_without_end():
  settings = Settings(model_dir='x', train_steps=1, lr_warmup_epochs=1, dataset='synthetic')
  with pytest.raises(UserError, match='no epochs to warm up over'):
    lr_warmup_steps(settings, None)
