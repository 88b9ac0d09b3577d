"""`--mixup_alpha` mixes the same pairs of images and labels, however the run is distributed."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import training_runs
from conftest import batches
from input_plans import plan

from estimator_train.data.augmentation import draw_mixup_weights, mix_pairs
from estimator_train.data.order import Shard
from estimator_train.errors import UserError

IMAGES = np.random.RandomState(0).randint(0, 256, [48, 2, 3, 1]).astype(np.uint8)
LABELS = np.eye(4, dtype=np.float32)[np.arange(48) % 4]
ALPHA = .4


@pytest.mark.parametrize('shard', [
    Shard(start, workers, rank, batch_size) for start, batch_size, workers in (
        (0, 12, 1), (0, 12, 2), (0, 2, 2), (20, 4, 2), (4 * 48 + 2, 6, 2))
    for rank in range(workers)], ids=str)
def test_each_pair_has_its_own_weight(shard):
  """On any worker, and in a resumed run, of images that are read in their order, repeated."""
  batch_size, positions = shard.worker_batch_size, shard.to_global_positions(np.arange(24))
  order, _, batch = plan((2, 3, 1), 4, batch_size, one_hot=True, seed=7, shard=shard)
  found, _ = batches(lambda: mix_pairs(
      tf.data.Dataset.from_tensor_slices(
          (IMAGES[positions % 48], LABELS[positions % 48])).batch(batch_size), order, batch, ALPHA))
  weights = draw_mixup_weights(7, positions // 2, ALPHA)
  assert len(np.unique(weights)) == 12
  images, labels = map(np.concatenate, zip(*found))
  for mixed, values in ((images, IMAGES.astype(np.float64)), (labels, LABELS)):
    of_example = weights.reshape((24,) + (1,) * (values.ndim - 1))
    np.testing.assert_allclose(mixed, of_example * values[positions % 48]
                               + (1 - of_example) * values[(positions ^ 1) % 48],
                               rtol=1e-5, atol=1e-4)
    assert mixed.dtype == np.float32


@pytest.mark.parametrize('alpha', [.2, 1., 8.])
def test_weights_are_from_the_beta_distribution(alpha):
  pairs = np.arange(20000)
  weights = draw_mixup_weights(1, pairs, alpha)
  assert weights.mean() == pytest.approx(.5, abs=.01)
  assert weights.var() == pytest.approx(1 / (8 * alpha + 4), rel=.03)
  np.testing.assert_array_equal(draw_mixup_weights(1, pairs[777:790], alpha), weights[777:790])
  assert not np.array_equal(draw_mixup_weights(2, pairs, alpha), weights)


def train(folder, **values):
  training_runs.train(folder, **{
      'optimizer': 'momentum', 'learning_rate': .05, 'batch_size': 48, 'train_steps': 6,
      'mixup_alpha': ALPHA, 'augment': 'flip,pad_crop', 'cache': 'memory', **values})


def test_replicas_and_resumed_runs_train_alike(tmp_path):
  train(tmp_path / 'one')
  train(tmp_path / 'two', num_cpu_replicas=2)
  training_runs.assert_same_weights(tmp_path / 'two', tmp_path / 'one')
  for stop in (2, None):
    train(tmp_path / 'resumed', end_step=stop)
  training_runs.assert_same(*(training_runs.variables(tmp_path / name)
                              for name in ('resumed', 'one')), 0)
  train(tmp_path / 'unmixed', mixup_alpha=0.)
  with pytest.raises(AssertionError):
    training_runs.assert_same_weights(tmp_path / 'unmixed', tmp_path / 'one', 1e-2)


@pytest.mark.parametrize('values, words', [
    ({'batch_size': 6, 'num_cpu_replicas': 2}, '--batch_size=6 for 2 .* give --batch_size=8$'),
    ({'model': 'own_models:compiled_with_sgd', 'optimizer': 'adam', 'learning_rate': .001},
     'own optimizer: .*--mixup_alpha=0.4'),
    ({'dataset': 'synthetic', 'augment': 'none', 'cache': 'auto', 'image_size': (28, 28, 1)},
     'cannot be augmented: --mixup_alpha=0.4 .*omit --mixup_alpha')])
def test_errors(tmp_path, values, words):
  with pytest.raises(UserError, match=words):
    train(tmp_path, **values)
