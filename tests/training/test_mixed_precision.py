"""--dtype=mixed and --enable_xla: what they do to the graph; loss scaling step by step."""

import json
import re
import sys
import types

import own_models
import pytest
import tensorflow.compat.v1 as tf
import training_runs
from conftest import ROOT, run_process
from mode_runs import QUICK

from estimator_train.distribution import devices
from estimator_train.errors import UserError
from estimator_train.model.gradients import WeightAveraging, add_mixins
from estimator_train.model.optimizers import make_optimizer
from estimator_train.settings import Settings
from estimator_train.tf_patches import strategies
from estimator_train.tf_patches.loss_scaling import LossScalingOptimizer
from estimator_train.tf_patches.optimizers import hyperparameter_names

ON_CPU, ON_GPU = (devices.Devices((name,), (name,)) for name in ('/cpu:0', '/gpu:0'))


def settings_of(**values):
  return Settings(**dict({'mode': 'train', 'model_dir': 'x', 'train_steps': 1}, **values))


@pytest.mark.parametrize('values, factors, expected', [
    # After each step: the weight, the scale, the good steps since its last change, all steps, and
    # the average of the weight with a decay of 0.5, in which steps that are skipped do not count.
    *(({}, [1, bad, 1], [[0.25, 2 ** 15, 1, 1, 0.25], [0.25, 2 ** 14, 0, 2, 0.25],
                         [-0.5, 2 ** 14, 1, 3, -0.25]]) for bad in (float('nan'), 1e35)),
    ({'good_steps': 1998}, [1, 1], [[0.25, 2 ** 15, 1999, 1, 0.25], [-0.5, 2 ** 16, 0, 2, -0.25]]),
    ({'current_loss_scale': 2}, [float('inf')] * 2, [[1, 1, 0, 1, 0], [1, 1, 0, 2, 0]])])
def test_scale_follows_finite_gradients(values, factors, expected):
  """Each step is one of 3 w at a rate of 0.25 from w = 1, with the loss multiplied by a factor."""
  with tf.Graph().as_default(), tf.Session() as session:
    weight = tf.get_variable('w', (), initializer=tf.ones_initializer(), use_resource=True)
    factor = tf.placeholder(tf.float32, ())
    optimizer = make_optimizer('sgd', 0.25)
    add_mixins(optimizer, [(WeightAveraging, {'ema_decay': .5})])
    optimizer = LossScalingOptimizer(optimizer)
    optimizer.iterations = tf.train.get_or_create_global_step()
    updates = optimizer.get_updates(3 * weight * factor, [weight])
    variables = {variable.op.name.rpartition('/')[2]: variable
                 for variable in tf.global_variables()}
    session.run(tf.global_variables_initializer())
    session.run([variables[name].assign(value) for name, value in values.items()])
    for value, state in zip(factors, expected):
      session.run(updates, {factor: value})
      assert session.run([variables[name] for name in (
          'w', 'current_loss_scale', 'good_steps', 'global_step', 'average')]) == state


def test_hyperparameters_are_those_of_the_wrapped_optimizer():
  """A resumed run uses the momentum of a changed model, not that of the checkpoint."""
  assert hyperparameter_names(LossScalingOptimizer(make_optimizer('momentum', 0.1))) == {
      'learning_rate', 'decay', 'momentum'}


@pytest.fixture
def train(tmp_path):
  """Trains three steps, and returns the checkpoints, the first before the first step."""
  def run(**values):
    training_runs.train(tmp_path, **{
        'batch_size': 4, 'optimizer': 'momentum', 'train_steps': 3, 'save_checkpoints_steps': 1,
        'dtype': 'mixed', **values})
    return training_runs.variables_by_step(tmp_path)

  return run


@pytest.mark.parametrize('strategy', ['mirrored', 'central_storage'])
def test_a_loss_of_one_replica_that_is_not_finite_holds_all_back(
    train, monkeypatch, caplog, strategy):
  # The third run is in the second step, of either replica.
  monkeypatch.setattr(own_models.Wait, 'delay', types.SimpleNamespace(
      apply=own_models.nan_in_run(3)))
  after = train(model='own_models:slow', on_nan='skip', distribution_strategy=strategy,
                num_cpu_replicas=2)
  assert caplog.text.count('the loss is nan at step 2: loss scaling skips') == 1
  weights = [name for name in after[1] if 'dense' in name]
  assert len(weights) == 8  # With the momenta.
  for name in weights:
    assert (after[2][name] == after[1][name]).all() and (after[3][name] != after[2][name]).any()
  assert [(state['global_step'], state['training/current_loss_scale']) for state in after] == [
      (0, 2 ** 15), (1, 2 ** 15), (2, 2 ** 14), (3, 2 ** 14)]


def test_momentum_keeps_rows_without_a_gradient():
  """As in fp32: each of two steps has a sparse gradient of one of three rows."""
  with tf.Graph().as_default(), tf.Session() as session:
    weight = tf.get_variable('w', (3,), initializer=tf.ones_initializer(), use_resource=True)
    row = tf.placeholder(tf.int32, ())
    optimizer = LossScalingOptimizer(make_optimizer('momentum', 0.25))
    optimizer.iterations = tf.train.get_or_create_global_step()
    updates = optimizer.get_updates(tf.gather(weight, [row, row])[0], [weight])
    session.run(tf.global_variables_initializer())
    for number, expected in enumerate([[.75, 1, 1], [.75, .75, 1]]):
      session.run(updates, {row: number})
      assert session.run(weight).tolist() == expected


def test_resumes_with_its_scale_and_without(train):
  train(train_steps=2)
  assert train()[3]['training/good_steps'] == 3
  assert train(train_steps=4, dtype='fp32')[4]['global_step'] == 4
  with pytest.raises(UserError, match='fit --dtype: .* with --dtype=fp32, not --dtype=mixed'):
    train(train_steps=5)


def test_options_of_sessions():
  for values, rewrites, compiles in (({}, False, False), ({'dtype': 'mixed'}, True, False),
                                     ({'enable_xla': True}, False, True)):
    options = devices.make_session_config(settings_of(**values), ON_GPU).graph_options
    assert (options.rewrite_options.auto_mixed_precision == options.rewrite_options.ON) == rewrites
    assert (options.optimizer_options.global_jit_level == tf.OptimizerOptions.ON_1) == compiles


@pytest.mark.parametrize('on, values, capabilities, named', [
    (ON_GPU, {'dtype': 'mixed'}, ['7.0', '10.0'], []),
    (ON_GPU, {'dtype': 'mixed'}, ['7.5', '6.1'], ['device: 1']),
    (ON_CPU, {'dtype': 'mixed'}, [], ['this run uses /cpu:0']), (ON_CPU, {}, [], []),
    (ON_CPU, {'dtype': 'mixed', 'mode': 'evaluate'}, [], [])])
def test_warns_of_devices_that_compute_in_float32(monkeypatch, caplog, on, values, capabilities,
                                                  named):
  monkeypatch.setattr(strategies.device_lib, 'list_local_devices', lambda config: [
      types.SimpleNamespace(device_type='GPU', physical_device_desc=(
          'device: {}, name: A, pci bus id: 0, compute capability: {}'.format(*numbered)))
      for numbered in enumerate(capabilities)])
  caplog.set_level('INFO', 'estimator_train')
  settings = settings_of(**values)
  devices.prepare_devices(settings.devices, on, settings.run.trains)
  assert re.findall('device: [01]|this run uses /cpu:0', caplog.text) == named


def test_what_xla_compiles(tmp_path, monkeypatch):
  """In a process of its own, as TensorFlow reads XLA's flags once."""
  monkeypatch.delenv('TF_XLA_FLAGS', raising=False)
  run_process(sys.executable, '-m', 'estimator_train', *QUICK, '--mode=train', '--train_steps=3',
              '--trace_steps=3:3', '--noreport_page', '--model_dir', tmp_path, '--enable_xla',
              '--dtype=mixed', env={'PYTHONPATH': '{0}:{0}/tests'.format(ROOT)}, check=True)
  events = json.loads((tmp_path / 'trace.json').read_text())['traceEvents']
  ran = {event['args']['op'] for event in events if 'op' in event.get('args', {})}
  assert '_XlaRun' in ran and 'Timestamp' in ran
  figures = json.loads((tmp_path / 'throughput.json').read_text())
  assert figures['enable_xla'] and figures['dtype'] == 'mixed'
  assert figures['input_wait_secs']['max'] >= 0
