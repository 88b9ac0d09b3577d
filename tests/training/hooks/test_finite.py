"""What is not finite any more, losses and weights, ends a run before it is saved."""

import numpy as np
import own_models
import pytest
import tensorflow.compat.v1 as tf
import training_runs
from hook_runs import Steps

from estimator_train.errors import TrainingFailed
from estimator_train.training import optimizers
from estimator_train.training.hooks import finite

NAN, INF = float('nan'), float('inf')
COMMON = ['--dataset=synthetic', '--image_size=8,8', '--batch_size=4', '--log_every_steps=1']


def test_a_loss_that_is_not_finite_ends_the_run():
  steps = Steps()
  hook = finite.StopAtNonFiniteLoss(steps.counter, steps.metrics,
                                    schedule=optimizers.Piecewise([.5, .25], [16]))
  assert hook.last_finite_loss is None
  assert hook.loss_history == 'the last finite losses: none; learning rate 0.5'
  with pytest.raises(TrainingFailed, match='^the loss is inf at step 17$'):
    steps.run([1., 2., 3., 4., 5., .6, INF, 8.], hook, start=10)
  assert hook.last_finite_loss == pytest.approx(.6)
  assert hook.loss_history == (
      'the last finite losses: 2 at step 12, 3 at step 13, 4 at step 14, 5 at step 15, 0.6 at '
      'step 16; learning rate 0.25')


def test_steps_that_loss_scaling_skips(monkeypatch, caplog):
  monkeypatch.setattr(finite, 'MAX_SKIPPED_STEPS', 3)
  steps = Steps()
  hook = finite.StopAtNonFiniteLoss(steps.counter, steps.metrics, skips_updates=True,
                                    schedule=optimizers.Piecewise([.5, .25], [2]))
  steps.run([1., NAN], hook)
  assert hook.loss_history.endswith('; learning rate 0.5')
  steps.run([NAN, 3., NAN, INF, 4.], hook, start=1)
  assert hook.loss_history == (
      'the last finite losses: 1 at step 1, 3 at step 3, 4 at step 6; learning rate 0.25')
  assert caplog.text.count('loss scaling skips') == 4
  with pytest.raises(TrainingFailed, match='the loss is inf at step 9, the 3th such step in a row'):
    steps.run([NAN, NAN, INF, 1.], hook, start=6)


def test_weights_that_are_not_finite_are_not_saved():
  with tf.Graph().as_default(), tf.Session() as session:
    weights = [tf.get_variable(name, initializer=tf.constant(value)) for name, value in (
        ('a', [1., 2.]), ('mask', [0., -INF]), ('count', 3), ('b', [1., 2.]))]
    check = finite.CheckWeightsFinite(lambda: weights)
    check.begin()
    session.run(tf.global_variables_initializer())
    check.before_save(session, 0)
    check.before_save(session, 1)
    session.run(weights[3].assign([1., NAN]))
    with pytest.raises(TrainingFailed, match=r'^the weights are not finite after step 2 \(b\)$'):
      check.before_save(session, 2)
    session.run(weights[0].assign([INF, 1.]))
    with pytest.raises(TrainingFailed, match=r'after step 3 \(a and 1 others\)$'):
      check.before_save(session, 3)


class NanAt:
  """Returns a tensor that is nan in one of its runs, and a number in all others."""

  def __init__(self, bad_run, number):
    self.bad_run, self.number, self.runs = bad_run, number, 0

  def apply(self, tensor):
    def spoil(unused_value):
      self.runs += 1
      return np.float32(NAN if self.runs == self.bad_run else self.number)

    value = tf.numpy_function(spoil, [tensor], tf.float32)
    value.set_shape(())
    return value


def test_the_last_good_checkpoint(run_program, tmp_path, monkeypatch):
  """An update that spoils the weights, whose own step's loss is finite still."""
  monkeypatch.setattr(own_models.Probe, 'gradient', staticmethod(NanAt(5, 0).apply))
  arguments = COMMON + ['--model=own_models:probe', '--optimizer=sgd', '--model_dir', tmp_path,
                        '--save_checkpoints_steps=1', '--eval_every_steps=1', '--train_steps=4',
                        '--num_cpu_replicas=2']
  done = run_program(*arguments)
  assert done.code == 3 and done.out == '' and 'Traceback' not in done.err
  last = done.err.splitlines()[-1]
  assert last.startswith('error: the weights are not finite after step 3 (probe/weight); the last '
                         'finite losses: ')
  assert last.endswith(' at step 3; learning rate 0.001; the last good checkpoint is '
                       '{}/model.ckpt-2'.format(tmp_path))
  monkeypatch.setattr(own_models.Probe, 'gradient', staticmethod(own_models.one_over_all_replicas))
  done = run_program(*arguments)
  assert done.code == 0 and 'resuming from step 2' in done.err


def nan_in_evaluation(image_shape, num_classes):
  model = own_models.two_layers(image_shape, num_classes)
  model.add(tf.keras.layers.Lambda(
      lambda outputs: tf.keras.backend.in_train_phase(outputs, NAN * outputs)))
  return model


def test_a_loss_of_the_test_examples_that_is_not_finite(run_program, tmp_path):
  done = run_program('--train_steps=1', '--model=test_finite:nan_in_evaluation', '--model_dir',
                     tmp_path, *COMMON)
  assert done.code == 3 and done.err.splitlines()[-1] == (
      'error: the loss of the test examples is nan at step 1 ({}/best/1/model.ckpt-1)'.format(
          tmp_path))
  assert not (tmp_path / 'evaluation.json').exists()


def test_a_skipped_step_is_one_line_and_leaves_no_trace(run_program, tmp_path, monkeypatch):
  monkeypatch.setattr(own_models.Wait, 'delay', NanAt(3, 1))
  done = run_program('--mode=train', '--model=own_models:slow', '--train_steps=4', '--dtype=mixed',
                     '--on_nan=skip', '--model_dir', tmp_path, *COMMON)
  assert done.code == 0, done.err
  assert done.err.count('the loss is nan at step 3: loss scaling skips') == 1
  variables = training_runs.variables(tmp_path)
  assert variables['training/current_loss_scale'] == 2 ** 14
  assert all(np.isfinite(value).all() for value in variables.values())
