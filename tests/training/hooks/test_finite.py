"""What is not finite any more, losses and weights, ends a run before it is saved."""

import numpy as np
import own_models
import pytest
import tensorflow.compat.v1 as tf

from estimator_train.errors import TrainingFailed
from estimator_train.training import schedules
from estimator_train.training.evaluation import evaluator
from estimator_train.training.hooks import finite
from estimator_train.training.hooks.batch_metrics import BatchMetrics
from estimator_train.training.hooks.step_counter import StepCounter

# What takes long here is TensorFlow, and the same on any Python.
pytestmark = pytest.mark.slow

NAN, INF = float('nan'), float('inf')
COMMON = ['--dataset=synthetic', '--image_size=8,8', '--batch_size=4', '--log_every_steps=1']


@pytest.fixture
def counter():
  return StepCounter()


@pytest.fixture
def metrics():
  return BatchMetrics()


@pytest.fixture
def run_steps(counter, metrics):
  """Runs steps whose losses, after a number of steps before, are these."""
  def run(losses, hook, before=0):
    with tf.Graph().as_default():
      step = tf.train.get_or_create_global_step()
      tf.add_to_collection(tf.GraphKeys.LOSSES, tf.placeholder_with_default(0., ()))
      loss, = tf.get_collection(tf.GraphKeys.LOSSES)
      add = step.assign_add(1)
      hooks = [Start(step, before), counter, metrics, hook]
      with tf.train.MonitoredSession(hooks=hooks) as session:
        for value in losses:
          session.run(add, {loss: value})

  return run


class Start(tf.train.SessionRunHook):

  def __init__(self, step, number):
    self._step, self._number = step, number

  def begin(self):
    self._assign = self._step.assign(self._number)

  def after_create_session(self, session, coord):
    session.run(self._assign)


@pytest.mark.parametrize('bad, word', [(NAN, 'nan'), (INF, 'inf')])
def test_a_loss_that_is_not_finite_ends_the_run(run_steps, counter, metrics, bad, word):
  hook = finite.StopAtNonFiniteLoss(counter, metrics, schedule=schedules.Piecewise([.5, .25], [12]))
  with pytest.raises(TrainingFailed, match='^the loss is {} at step 13$'.format(word)):
    run_steps([1., 2., bad, 4.], hook, before=10)
  assert hook.last_finite_loss == 2
  assert hook.loss_history == ('the last finite losses: 1 at step 11, 2 at step 12; '
                               'learning rate 0.25')


def test_last_losses_are_kept(run_steps, counter, metrics):
  hook = finite.StopAtNonFiniteLoss(counter, metrics)
  assert hook.last_finite_loss is None
  assert hook.loss_history.startswith('the last finite losses: none; ')
  run_steps([.1 * number for number in range(9)], hook)
  assert hook.last_finite_loss == pytest.approx(.8)
  assert hook.loss_history == (
      'the last finite losses: 0.4 at step 5, 0.5 at step 6, 0.6 at step 7, 0.7 at step 8, 0.8 at '
      'step 9; learning rate set by the model')


def test_skipped_steps(run_steps, counter, metrics, monkeypatch, caplog):
  monkeypatch.setattr(finite, 'MAX_SKIPPED_STEPS', 3)
  hook = finite.StopAtNonFiniteLoss(counter, metrics, skips_updates=True)
  run_steps([1., NAN, INF, 2., NAN, NAN, 3., NAN], hook)
  assert hook.last_finite_loss == 3 and caplog.text.count('loss scaling skips') == 5
  with pytest.raises(TrainingFailed, match='the loss is inf at step 4, the 3th such step in a row'):
    run_steps([4., NAN, NAN, INF, 1.],
              finite.StopAtNonFiniteLoss(counter, metrics, skips_updates=True))


def test_the_learning_rate_is_not_that_of_an_earlier_skipped_step(run_steps, counter, metrics):
  hook = finite.StopAtNonFiniteLoss(counter, metrics, skips_updates=True,
                                    schedule=schedules.Piecewise([.5, .25], [2]))
  run_steps([1., NAN], hook)
  assert hook.loss_history.endswith('; learning rate 0.5')
  run_steps([NAN, 3., 4.], hook, before=1)
  assert hook.loss_history == ('the last finite losses: 1 at step 1, 3 at step 3, 4 at step 4; '
                               'learning rate 0.25')


def test_weights_that_are_not_finite_are_not_saved():
  with tf.Graph().as_default(), tf.Session() as session:
    weights = [tf.get_variable(name, initializer=tf.constant(value)) for name, value in (
        ('a', [1., 2.]), ('mask', [0., -INF]), ('count', 3), ('b', [1., 2.]))]
    keep = finite.CheckWeightsFinite(lambda: weights)
    keep.begin()
    session.run(tf.global_variables_initializer())
    keep.before_save(session, 0)
    keep.before_save(session, 1)
    session.run(weights[3].assign([1., NAN]))
    with pytest.raises(TrainingFailed, match=r'^the weights are not finite after step 2 \(b\)$'):
      keep.before_save(session, 2)
    session.run(weights[0].assign([INF, 1.]))
    with pytest.raises(TrainingFailed, match=r'after step 3 \(a and 1 others\)$'):
      keep.before_save(session, 3)


@pytest.mark.parametrize('replicas', [1, 2])
def test_the_last_good_checkpoint(run_program, tmp_path, monkeypatch, replicas):
  """An update that spoils the weights, whose own step's loss is finite still."""
  steps = []

  def third_is_nan(weight):
    steps.append(None)
    return np.float32(NAN if len(steps) > 2 * replicas else 0)

  def gradient(weight):
    value = tf.numpy_function(third_is_nan, [weight], tf.float32)
    value.set_shape(())
    return value

  monkeypatch.setattr(own_models.Probe, 'gradient', staticmethod(gradient))
  arguments = COMMON + ['--model=own_models:probe', '--optimizer=sgd', '--model_dir', tmp_path,
                        '--save_checkpoints_steps=1', '--eval_every_steps=1', '--train_steps=6',
                        '--num_cpu_replicas={}'.format(replicas)]
  done = run_program(*arguments)
  assert done.code == 3 and done.out == '' and 'Traceback' not in done.err
  last = done.err.splitlines()[-1]
  assert last.startswith('error: the weights are not finite after step 3 (probe/weight); the last '
                         'finite losses: ')
  assert ' at step 3; learning rate 0.001; the last good checkpoint is ' in last
  assert last.endswith(' is {}/model.ckpt-2'.format(tmp_path))
  monkeypatch.setattr(own_models.Probe, 'gradient', staticmethod(own_models.one_over_all_replicas))
  done = run_program(*arguments)
  assert done.code == 0 and 'resuming from step 2' in done.err


def test_a_loss_of_the_test_examples_that_is_not_finite(run_program, tmp_path, monkeypatch):
  arguments = COMMON + ['--model=own_models:two_layers', '--model_dir', tmp_path]
  assert run_program('--train_steps=1', *arguments).code == 0
  before = (tmp_path / 'evaluation.json').read_bytes()
  whole = evaluator._EvaluationGraph.run
  monkeypatch.setattr(evaluator._EvaluationGraph, 'run', lambda *given: dict(
      whole(*given), average_loss=np.float32(NAN)))
  done = run_program('--mode=evaluate', *arguments)
  assert done.code == 3 and done.err.splitlines()[-1] == (
      'error: the loss of the test examples is nan at step 1 ({}/model.ckpt-1)'.format(tmp_path))
  assert (tmp_path / 'evaluation.json').read_bytes() == before


def test_skipping_goes_on(run_program, tmp_path, monkeypatch):
  """The third of four steps has no finite loss; what is left of it is one line."""
  steps = []

  class Spoil:
    def apply(self, tensor):
      def spoil(value):
        steps.append(None)
        return np.float32(NAN) if len(steps) == 3 else np.float32(1)

      value = tf.numpy_function(spoil, [tensor], tf.float32)
      value.set_shape(())
      return value

  monkeypatch.setattr(own_models.Wait, 'delay', Spoil())
  done = run_program('--mode=train', '--model=own_models:slow', '--train_steps=4', '--dtype=mixed',
                     '--on_nan=skip', '--model_dir', tmp_path, *COMMON)
  assert done.code == 0, done.err
  assert done.err.count('the loss is nan at step 3: loss scaling skips') == 1
  assert tf.train.load_variable(str(tmp_path), 'training/current_loss_scale') == 2 ** 14
  for name, _ in tf.train.list_variables(str(tmp_path)):
    assert np.isfinite(tf.train.load_variable(str(tmp_path), name)).all(), name
