"""N replicas take the same examples and reach the same weights as one, by every optimizer.

Without the correction in devices.make_strategy the `tf.train` rows fail, and without the repairs in
central_storage the rows of that strategy.
"""

import json

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import training_runs
from tensorflow.python.framework import test_util

from estimator_train.reports import throughput
from estimator_train.settings import Settings

pytestmark = pytest.mark.slow

STEPS = 20
# (--model, --optimizer, --learning_rate, largest relative difference). The adaptive ones divide by
# the root of gradients that are nearly nothing at first, which makes rounding larger.
OPTIMIZERS = {
    'sgd': ('own_models:two_layers', 'sgd', 0.1, 1e-5),
    'momentum': ('own_models:two_layers', 'momentum', 0.05, 1e-5),
    'adam': ('own_models:two_layers', 'adam', 0.001, 1e-4),
    'rmsprop': ('own_models:two_layers', 'rmsprop', 0.001, 1e-4),
    'tf.train sgd': ('own_models:compiled_with_sgd', 'sgd', 0.1, 1e-5),
    'tf.train momentum': ('own_models:compiled_with_momentum', 'sgd', 0.1, 1e-5),
    'tf.train adam': ('own_models:compiled_with_adam', 'sgd', 0.1, 1e-4),
}
STRATEGIES = [('one_device', 1)] + [
    (strategy, replicas) for strategy in ('mirrored', 'central_storage')
    for replicas in (1, 2, 3, 8)]


def train(folder, model, optimizer, learning_rate, strategy, replicas, **values):
  """Returns the weights after the last step, its loss, and the losses that TensorBoard got."""
  settings = Settings(**dict(
      dict(mode='train', model_dir=str(folder), model=model, optimizer=optimizer,  # noqa: C408
           learning_rate=learning_rate, distribution_strategy=strategy, num_cpu_replicas=replicas,
           train_steps=STEPS, batch_size=48, log_every_steps=5), **values))
  plan, trained = training_runs.train(settings)
  timing = trained.timing
  throughput.write_throughput_report(settings, plan.conditions, timing)
  checkpoint = tf.train.latest_checkpoint(str(folder))
  weights = {name: tf.train.load_variable(checkpoint, name)
             for name, shape in tf.train.list_variables(checkpoint)
             if shape and not name.startswith('training')}
  events = [event for path in folder.glob('events*')
            for event in tf.train.summary_iterator(str(path))]
  logged = {event.step: value.simple_value for event in events for value in event.summary.value
            if value.tag.startswith('loss')}
  return weights, timing.loss, logged


@pytest.fixture(scope='module')
def on_one_device(tmp_path_factory):
  """Trains without a strategy, once an optimizer."""
  found = {}

  def of(name):
    if name not in found:
      found[name] = train(tmp_path_factory.mktemp('one'), *OPTIMIZERS[name][:3], 'off', 1)
    return found[name]

  return of


def difference(weights, expected):
  """Returns the largest difference, each variable's relative to its largest value."""
  assert set(weights) == set(expected)
  return max(np.abs(weights[name] - expected[name]).max() / np.abs(expected[name]).max()
             for name in expected)


@pytest.mark.parametrize('strategy, replicas', STRATEGIES)
@pytest.mark.parametrize('optimizer', OPTIMIZERS)
def test_same_weights_and_losses(tmp_path, on_one_device, optimizer, strategy, replicas):
  expected, expected_loss, expected_log = on_one_device(optimizer)
  weights, loss, log = train(tmp_path, *OPTIMIZERS[optimizer][:3], strategy, replicas)
  assert difference(weights, expected) <= OPTIMIZERS[optimizer][3]
  # What is logged is the mean over the global batch, whatever the number of replicas.
  assert loss == pytest.approx(expected_loss, rel=1e-4)
  # TensorFlow's summary hook may be a step early; the first is the same in every run.
  common = sorted(set(log) & set(expected_log))
  assert common[0] == 1 and len(log) >= STEPS // 5
  assert [log[step] for step in common] == pytest.approx(
      [expected_log[step] for step in common], rel=1e-4)
  sizes = json.loads((tmp_path / 'throughput.json').read_text())
  assert (sizes['global_batch_size'], sizes['per_replica_batch_size']) == (48, 48 // replicas)


def test_the_loss_is_the_mean_over_the_global_batch(tmp_path):
  # At random weights that are all zero the loss is that of guessing, whatever is divided by what.
  _, loss, _ = train(tmp_path, 'own_models:compiled_with_sgd', 'sgd', 0.1, 'mirrored', 4,
                     train_steps=1, dataset='synthetic')
  assert loss == pytest.approx(np.log(10), rel=0.15)


@pytest.mark.parametrize('replicas', [2, 4])
def test_default_model(tmp_path, replicas):
  """ReLUs and poolings may flip on a rounding, which a small rate keeps rare in so few steps.

  Within 20 steps one does in the build with oneDNN, whose sums go by the size of the batch.
  """
  model = ('fashion_cnn', 'sgd', 0.01)
  steps = 8 if test_util.IsMklEnabled() else STEPS
  expected, _, _ = train(tmp_path / 'one', *model, 'off', 1, train_steps=steps)
  weights, _, _ = train(tmp_path / 'several', *model, 'mirrored', replicas, train_steps=steps)
  assert difference(weights, expected) <= 1e-5


def test_resume_in_between(tmp_path, on_one_device):
  """Twelve steps on three replicas, the rest on two."""
  expected, _, _ = on_one_device('momentum')
  how = OPTIMIZERS['momentum'][:3]
  train(tmp_path, *how, 'mirrored', 3, train_steps=12)
  weights, _, _ = train(tmp_path, *how, 'mirrored', 2)
  assert difference(weights, expected) <= 1e-5
