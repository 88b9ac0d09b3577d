"""`--ema_decay` averages the weights, and evaluations and exports use the averages."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import training_runs

from estimator_train.checkpoints import restoring
from estimator_train.data import binary_files, mnist
from estimator_train.errors import UserError

DECAY = .8


def train(folder, **values):
  training_runs.train(folder, **{
      'optimizer': 'momentum', 'learning_rate': .1, 'batch_size': 48, 'train_steps': 4,
      'save_checkpoints_steps': 1, 'distribution_strategy': 'off', 'ema_decay': DECAY, **values})


@pytest.mark.parametrize('values', [
    {'weight_decay': .1},
    {'distribution_strategy': 'mirrored', 'num_cpu_replicas': 2, 'dtype': 'mixed',
     'gradient_accumulation_steps': 2, 'gradient_clip_norm': .01},
    {'distribution_strategy': 'central_storage', 'num_cpu_replicas': 2}])
def test_averages_of_the_weights_after_each_step(tmp_path, values):
  train(tmp_path / 'averaged', **values)
  states = training_runs.variables_by_step(tmp_path / 'averaged')
  names = restoring.map_weights_to_averages(tf.train.latest_checkpoint(str(tmp_path / 'averaged')))
  assert len(names) == 4
  factors = np.array([DECAY ** age for age in (3, 2, 1, 0)])
  for weight, average in names.items():
    expected = np.tensordot(factors / factors.sum(), [state[weight] for state in states[1:]], 1)
    np.testing.assert_allclose(states[-1][average], expected, atol=1e-7)
    np.testing.assert_array_equal(states[1][average], states[1][weight])
  train(tmp_path / 'without', ema_decay=None, **values)
  without = training_runs.variables(tmp_path / 'without')
  for name, value in without.items():
    np.testing.assert_array_equal(value, states[-1][name], name)
  assert set(states[-1]) == {*without, *names.values(), 'training/Momentum/num_averaged'}


def test_evaluations_and_model_h5_have_the_averages(run_well, tmp_path):
  """Also of a run with loss scaling, which evaluations do without."""
  arguments = ['--model_dir={}'.format(tmp_path), '--batch_size=48', '--optimizer=sgd',
               '--learning_rate=0.2', '--ema_decay=0.9', '--model=own_models:two_layers']
  result = run_well(*arguments, '--train_steps=3', '--eval_every_steps=3', '--dtype=mixed').result
  saved = training_runs.variables(tmp_path)
  dataset = mnist.describe_data_set('fashion_mnist_sample')
  images, classes = binary_files.IdxSource(dataset.spec, dataset.test).load_arrays()
  with tf.Graph().as_default(), tf.Session().as_default():
    model = tf.keras.models.load_model(str(tmp_path / 'model.h5'))
    for weight in model.weights:
      name = 'training/SGD/{}/average'.format(weight.op.name)
      np.testing.assert_array_equal(tf.keras.backend.get_value(weight), saved[name])
    loss, accuracy = model.evaluate(images / 255., np.eye(10)[classes], verbose=0)
  for found in (result, result['best'], run_well('--mode=evaluate', *arguments).result):
    assert found['average_loss'] == pytest.approx(loss, rel=1e-5)
    assert found['accuracy'] == pytest.approx(accuracy)


def test_resuming_needs_the_averages(tmp_path):
  train(tmp_path, ema_decay=None, train_steps=1)
  with pytest.raises(UserError, match='does not fit --ema_decay: .*no averages of the weights'):
    train(tmp_path)
