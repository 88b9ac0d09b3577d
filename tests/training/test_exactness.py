"""N replicas take the same examples and reach the same weights as one, by every optimizer.

Without the correction in devices.make_strategy the `tf.train` rows fail, and without the repairs in
central_storage the rows of that strategy.
"""

import pytest
import training_runs
from tensorflow.python.framework import test_util
from training_runs import assert_same

SLOW = pytest.mark.slow
pytestmark = pytest.mark.optimized_graphs
STEPS = 20
# (--model, --optimizer, --learning_rate, largest relative difference). The adaptive ones divide by
# the root of gradients that are nearly nothing at first, which makes rounding larger.
OPTIMIZERS = {
    'sgd': ('own_models:two_layers', 'sgd', 0.1, 1e-5),
    'momentum': ('own_models:two_layers', 'momentum', 0.05, 1e-5),
    'adam': ('own_models:two_layers', 'adam', 0.001, 1e-4),
    'rmsprop': ('own_models:two_layers', 'rmsprop', 0.001, 1e-4),
    'adamw': ('own_models:two_layers', 'adamw', 0.001, 1e-4),
    'lars': ('own_models:two_layers', 'lars', 1, 1e-5),
    'lamb': ('own_models:two_layers', 'lamb', 0.01, 1e-5),
    'tf.train sgd': ('own_models:compiled_with_sgd', 'sgd', 0.1, 1e-5),
    'tf.train momentum': ('own_models:compiled_with_momentum', 'sgd', 0.1, 1e-5),
    'tf.train adam': ('own_models:compiled_with_adam', 'sgd', 0.1, 1e-4),
}
UNMARKED = [('sgd', 'mirrored', 2), ('sgd', 'one_device', 1), ('adam', 'central_storage', 3),
            ('adamw', 'mirrored', 2), ('lars', 'mirrored', 2), ('lamb', 'mirrored', 2),
            ('tf.train adam', 'mirrored', 3), ('tf.train adam', 'central_storage', 8)]
# Each optimizer on two numbers of replicas, and each strategy with each number of replicas.
MARKED = [('sgd', 'central_storage', 1), ('momentum', 'mirrored', 3),
          ('momentum', 'central_storage', 2), ('adam', 'mirrored', 8), ('rmsprop', 'mirrored', 2),
          ('rmsprop', 'central_storage', 3), ('adamw', 'central_storage', 3),
          ('lars', 'central_storage', 3), ('lamb', 'central_storage', 4),
          ('tf.train sgd', 'mirrored', 8),
          ('tf.train sgd', 'central_storage', 2), ('tf.train momentum', 'mirrored', 1),
          ('tf.train momentum', 'central_storage', 3), ('tf.train adam', 'one_device', 1)]


def train(folder, model, optimizer, learning_rate, strategy, replicas, **values):
  """Returns the weights after the last step, its loss, and the losses that TensorBoard got."""
  _, trained = training_runs.train(folder, **{
      'model': model, 'optimizer': optimizer, 'learning_rate': learning_rate,
      'distribution_strategy': strategy, 'num_cpu_replicas': replicas, 'train_steps': STEPS,
      'batch_size': 48, 'log_every_steps': 5,
      'weight_decay': 0.1 if optimizer in ('adamw', 'lars') else 0., **values})
  return training_runs.weights(folder), trained.timing.loss, training_runs.scalars(folder, 'loss')


@pytest.fixture(scope='module')
def on_one_device(tmp_path_factory):
  """Trains without a strategy, once an optimizer."""
  found = {}

  def of(name):
    if name not in found:
      found[name] = train(tmp_path_factory.mktemp('one'), *OPTIMIZERS[name][:3], 'off', 1)
    return found[name]

  return of


@pytest.mark.parametrize('optimizer, strategy, replicas', [
    *UNMARKED, *(pytest.param(*case, marks=SLOW) for case in MARKED)])
def test_same_weights_and_losses(tmp_path, on_one_device, optimizer, strategy, replicas):
  expected, expected_loss, expected_log = on_one_device(optimizer)
  weights, loss, log = train(tmp_path, *OPTIMIZERS[optimizer][:3], strategy, replicas)
  assert_same(weights, expected, OPTIMIZERS[optimizer][3])
  # What is logged is the mean over the global batch, whatever the number of replicas.
  assert loss == pytest.approx(expected_loss, rel=1e-4)
  # TensorFlow's summary hook may be a step early; the first is the same in every run.
  common = sorted(set(log) & set(expected_log))
  assert common[0] == 1 and len(log) >= STEPS // 5
  assert [log[step] for step in common] == pytest.approx(
      [expected_log[step] for step in common], rel=1e-4)


@pytest.mark.parametrize('replicas', [2, pytest.param(4, marks=SLOW)])
def test_default_model(tmp_path, replicas):
  """ReLUs and poolings may flip on a rounding, which a small rate keeps rare in so few steps.

  Within 20 steps one does in the build with oneDNN, whose sums go by the size of the batch.
  """
  model = ('fashion_cnn', 'sgd', 0.01)
  steps = 8 if test_util.IsMklEnabled() else STEPS
  expected, _, _ = train(tmp_path / 'one', *model, 'off', 1, train_steps=steps)
  weights, _, _ = train(tmp_path / 'several', *model, 'mirrored', replicas, train_steps=steps)
  assert_same(weights, expected)
