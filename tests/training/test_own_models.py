"""Models as users write them train, and count as they should."""

import json
import math
import re

import pytest
import tensorflow.compat.v1 as tf
from mode_runs import QUICK
from training_runs import scalars

FLAGS = [*QUICK, '--train_steps=2']


@pytest.mark.parametrize('name', [
    'of_any_size', 'with_scalar_loss', 'with_own_layer_and_loss_by_name', 'with_undescribed_layer',
    'with_unsaveable_layer'])
def test_trains_and_evaluates(run_well, tmp_path, name):
  done = run_well(*FLAGS, '--model=own_models:' + name, '--model_dir', tmp_path)
  evaluation = json.loads((tmp_path / 'evaluation.json').read_text())
  assert evaluation['examples'] == 40 and 0 <= evaluation['accuracy'] <= 1
  # All these losses are the cross-entropy, of weights that have hardly moved.
  assert evaluation['average_loss'] == pytest.approx(math.log(10), rel=0.25)
  assert done.result['train_loss'] == pytest.approx(math.log(10), rel=0.3)
  is_saved = 'model.h5 is not written, because Keras cannot serialize a layer of' not in done.err
  assert is_saved == any(tmp_path.glob('model.h5*'))
  assert is_saved == (name not in ('with_undescribed_layer', 'with_unsaveable_layer'))


@pytest.mark.parametrize('flags', [(), ('--class_weights=balanced', '--cache_features')])
def test_metrics_and_loss_weights_of_a_compiled_model(run_well, tmp_path, flags):
  done = run_well('--dataset=fashion_mnist_sample', '--model=own_models:with_loss_weight',
                  '--model_dir={}'.format(tmp_path), '--batch_size=50', '--train_steps=1',
                  '--log_every_steps=1', *flags)
  assert done.result['train_loss'] == pytest.approx(3 * math.log(10), rel=0.3)
  assert scalars(tmp_path / 'eval', 'acc')[1] == pytest.approx(done.result['accuracy'])


def test_starts_from_the_weights_that_the_function_has_loaded(run_well, tmp_path):
  run_well(*FLAGS, '--mode=train', '--model=own_models:with_loaded_weights', '--model_dir',
           tmp_path)
  reader = tf.train.load_checkpoint(str(tmp_path / 'keras' / 'keras_model.ckpt'))
  for name in ('dense/kernel', 'dense_1/bias'):
    assert (reader.get_tensor(name) == .25).all()


def test_an_error_that_appears_only_in_the_estimator(run_program, tmp_path):
  done = run_program(*FLAGS, '--model=own_models:with_failing_optimizer', '--model_dir', tmp_path)
  assert done.code == 2 and done.out == '' and 'Traceback' not in done.err
  assert re.search(r"^error: .* converted .*own_models.py:\d+: KeyError: 'no such slot'",
                   done.err.splitlines()[-1])
  assert tf.train.latest_checkpoint(str(tmp_path)) is None
