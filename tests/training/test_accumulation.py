"""`--gradient_accumulation_steps` trains like the whole batch, in less memory."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import training_runs
from training_runs import assert_same

import estimator_train
from estimator_train.errors import UserError


def data_set(split):
  return estimator_train.DataSet('any', ['a', 'b', 'c'], (4, 4, 1), split, split)


def weighted():
  """A data set of examples with different weights."""
  numbers = np.random.RandomState(1)
  examples = (numbers.rand(96, 4, 4, 1).astype(np.float32) * 255, numbers.randint(3, size=96),
              numbers.rand(96).astype(np.float32))
  return data_set(estimator_train.ExampleSplit(
      lambda: tf.data.Dataset.from_tensor_slices(examples)))


def constant():
  """A data set of equal images."""
  return data_set(estimator_train.ArraySplit(
      np.full([96, 4, 4, 1], 255, np.uint8), np.arange(96) % 3))


def train(folder, micro_batches=1, **values):
  """Returns the variables after ten steps."""
  training_runs.train(folder, **{
      'optimizer': 'momentum', 'learning_rate': .1, 'batch_size': 48, 'train_steps': 10,
      'distribution_strategy': 'off', 'gradient_accumulation_steps': micro_batches, **values})
  return training_runs.variables(folder)


@pytest.mark.optimized_graphs  # With a loop.
@pytest.mark.parametrize('micro_batches, values', [
    (2, {'dataset': weighted, 'label_smoothing': .1, 'weight_decay': .01}),
    (4, {'distribution_strategy': 'mirrored', 'num_cpu_replicas': 2, 'dtype': 'mixed',
         'gradient_clip_norm': .01}),
    (3, {'distribution_strategy': 'central_storage', 'num_cpu_replicas': 2, 'optimizer': 'lars'}),
    # The sparse gradient of each row is a sum of thousands.
    (2, {'model': 'own_models:embedding', 'gradient_clip_norm': .01})])
def test_like_the_whole_batch(tmp_path, micro_batches, values):
  whole, parts = tmp_path / 'whole', tmp_path / 'parts'
  assert_same(train(parts, micro_batches, **values), train(whole, **values))
  assert_same(training_runs.weights(parts), training_runs.weights(whole),
              1e-5 if 'embedding' in values.get('model', '') else 1e-6)
  for tag in ('loss', 'accuracy'):
    values = [training_runs.scalars(folder, tag)[1] for folder in (whole, parts)]
    assert values[0] == pytest.approx(values[1])


def test_resumes_with_another_number_of_parts(tmp_path):
  train(tmp_path / 'resumed', 2, train_steps=4)
  assert_same(train(tmp_path / 'resumed', 3), train(tmp_path / 'whole'), 1e-6)


def test_statistics_are_of_micro_batches_in_their_order(tmp_path):
  """Two updates with a momentum of 0.9 from the mean 0 and the variance 1 to 1 and 0."""
  found = train(tmp_path, 2, dataset=constant, model='own_models:batch_norm', train_steps=1)
  assert found['batch_normalization/moving_mean'] == pytest.approx(.19)
  assert found['batch_normalization/moving_variance'] == pytest.approx(.81)


@pytest.mark.parametrize('micro_batches, values, message', [
    (2, {'model': 'own_models:batch_norm', 'distribution_strategy': 'central_storage'},
     'batch normalization cannot .*: give .*=mirrored'),
    (5, {'distribution_strategy': 'mirrored'}, 'replicas times --gradient_accumulation_steps: '
     '--batch_size=48 for 2 replicas --gradient_accumulation_steps=5: use 40 or 50')])
def test_what_cannot_be_accumulated(tmp_path, micro_batches, values, message):
  with pytest.raises(UserError, match=message):
    train(tmp_path, micro_batches, num_cpu_replicas=2, **values)
