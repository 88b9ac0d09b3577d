"""N replicas take the same examples and reach the same weights as one, by every optimizer.

Without the correction in devices.make_strategy the rows of compiled models fail, and without the
repairs in central_storage the rows of that strategy.
"""

import functools

import pytest
import training_runs
from tensorflow.python.framework import test_util

SLOW = pytest.mark.slow
pytestmark = pytest.mark.optimized_graphs
# ReLUs and poolings may flip on a rounding, which a small rate keeps rare in so few steps. Within
# 20 steps one does with some numbers of replicas, and within 15 in the build with oneDNN, whose
# sums go by the size of the batch.
STEPS = 8 if test_util.IsMklEnabled() else 15
# By optimizer or model: the learning rate, and the largest relative difference. The adaptive ones
# divide by the root of gradients that are nearly nothing at first, which makes rounding larger. The
# compiled models have optimizers of `tf.train`.
RUNS = {
    'sgd': (.1, 1e-5), 'momentum': (.05, 1e-5), 'adam': (.001, 1e-4), 'rmsprop': (.001, 1e-4),
    'adamw': (.001, 1e-4), 'lars': (1, 1e-5), 'lamb': (.01, 1e-5), 'compiled_with_sgd': (.1, 1e-5),
    'compiled_with_momentum': (.1, 1e-5), 'compiled_with_adam': (.1, 1e-4),
    'fashion_cnn': (.01, 1e-5)}
UNMARKED = [('sgd', 'mirrored', 2), ('sgd', 'one_device', 1), ('adam', 'central_storage', 3),
            ('adamw', 'mirrored', 2), ('lars', 'mirrored', 2), ('lamb', 'mirrored', 2),
            ('compiled_with_adam', 'mirrored', 3), ('compiled_with_adam', 'central_storage', 8),
            ('fashion_cnn', 'mirrored', 2)]
# Each optimizer with each strategy, and each strategy with each number of replicas.
MARKED = [(name, strategy, (1, 2, 3, 8)[(number + (strategy == 'mirrored')) % 4])
          for number, name in enumerate(list(RUNS)[:-1])
          for strategy in ('mirrored', 'central_storage')] + [('fashion_cnn', 'mirrored', 4)]


def train(folder, name, strategy, replicas):
  """Returns the weights after the last step, its loss, and the losses that TensorBoard got."""
  is_model = name.startswith('compiled') or name == 'fashion_cnn'
  values = {'model': name if name == 'fashion_cnn' else 'own_models:' + name} if is_model else {
      'optimizer': name, 'weight_decay': .1 if name in ('adamw', 'lars') else 0.}
  _, trained = training_runs.train(folder, **{
      'optimizer': 'sgd', 'learning_rate': RUNS[name][0], 'distribution_strategy': strategy,
      'num_cpu_replicas': replicas, 'train_steps': STEPS, 'batch_size': 48, 'log_every_steps': 5,
      **values})
  return training_runs.weights(folder), trained.times.loss, training_runs.scalars(folder, 'loss')


@pytest.fixture(scope='module')
def on_one_device(tmp_path_factory):
  """Trains without a strategy, once an optimizer."""
  return functools.lru_cache(None)(
      lambda name: train(tmp_path_factory.mktemp('one'), name, 'off', 1))


@pytest.mark.parametrize('name, strategy, replicas', [
    *UNMARKED, *(pytest.param(*case, marks=SLOW) for case in MARKED if case not in UNMARKED)])
def test_same_weights_and_losses(tmp_path, on_one_device, name, strategy, replicas):
  expected, expected_loss, expected_log = on_one_device(name)
  weights, loss, log = train(tmp_path, name, strategy, replicas)
  training_runs.assert_same(weights, expected, RUNS[name][1])
  # What is logged is the mean over the global batch, whatever the number of replicas.
  assert loss == pytest.approx(expected_loss, rel=1e-4)
  # TensorFlow's summary hook may be a step early; the first is the same in every run.
  common = sorted(set(log) & set(expected_log))
  assert common[0] == 1 and len(log) >= STEPS // 5
  assert [log[step] for step in common] == pytest.approx(
      [expected_log[step] for step in common], rel=1e-4)
