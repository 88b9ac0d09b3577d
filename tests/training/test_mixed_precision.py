"""--dtype=mixed and --enable_xla: what they do to the graph; loss scaling step by step."""

import json
import logging
import os
import subprocess
import sys

import numpy as np
import own_models
import pytest
import tensorflow.compat.v1 as tf
from conftest import ROOT
from tensorflow.core.protobuf.device_properties_pb2 import DeviceProperties, NamedDevice
from tensorflow.python.grappler import cluster, tf_optimizer
from training_runs import train as train_settings

from estimator_train.distribution import devices
from estimator_train.errors import UserError
from estimator_train.models import registry
from estimator_train.settings import Settings, groups
from estimator_train.tf_patches import devices as tensorflow_devices
from estimator_train.tf_patches.loss_scaling import LossScalingOptimizer
from estimator_train.training.checkpoints import save_hook
from estimator_train.training.optimizers import make_optimizer

# What takes long here is TensorFlow, and the same on any Python.
pytestmark = pytest.mark.slow

ON_CPU, ON_GPU = (devices.Devices((name,), (name,)) for name in ('/cpu:0', '/gpu:0'))


def settings_of(**values):
  return Settings(**dict({'mode': 'train', 'model_dir': 'x', 'train_steps': 1}, **values))


def ready(settings, on):
  devices.prepare_devices(settings[groups.Devices], on, settings.trains)


class Scaled:
  """Takes steps of 3 w with a rate of 0.25, from w = 1; the loss is times whatever is fed."""

  def __init__(self, optimizer):
    self.weight = tf.get_variable('w', (), initializer=tf.ones_initializer(), use_resource=True)
    self.factor = tf.placeholder(tf.float32, ())
    self.optimizer = LossScalingOptimizer(optimizer)
    self.optimizer.iterations = tf.train.get_or_create_global_step()
    self.step = self.optimizer.get_updates(3 * self.weight * self.factor, [self.weight])
    self.variables = {variable.op.name: variable for variable in tf.global_variables()}
    self.session = tf.Session()
    self.session.run(tf.global_variables_initializer())

  def take(self, factor):
    self.session.run(self.step, {self.factor: factor})
    return self.read('w', 'current_loss_scale', 'good_steps', 'global_step')

  def read(self, *names):
    return [float(self.session.run(self.variables[name])) for name in names]


@pytest.fixture
def scaled():
  with tf.Graph().as_default():
    made = Scaled(make_optimizer('sgd', 0.25))
    yield made
    made.session.close()


@pytest.mark.parametrize('bad', [float('inf'), float('nan'), 1e35])
def test_a_step_whose_gradient_is_not_finite_is_left_out_and_counted(scaled, bad):
  assert scaled.take(1) == [0.25, 2 ** 15, 1, 1]
  assert scaled.take(bad) == [0.25, 2 ** 14, 0, 2]
  assert scaled.take(1) == [-0.5, 2 ** 14, 1, 3]


def test_the_scale_doubles_after_2000_good_steps(scaled):
  scaled.session.run(scaled.variables['good_steps'].assign(1998))
  assert scaled.take(1)[1:3] == [2 ** 15, 1999]
  assert scaled.take(1)[1:3] == [2 ** 16, 0]


def test_the_scale_does_not_fall_below_1(scaled):
  for _ in range(17):
    left = scaled.take(float('inf'))
  assert left == [1, 1, 0, 17]


def test_moments_are_left_out_too():
  with tf.Graph().as_default():
    adam = Scaled(make_optimizer('adam', 0.25))
    with adam.session:
      names = ['w', 'Adam/w/m', 'Adam/w/v']
      adam.take(1)
      before = adam.read(*names)
      adam.take(float('nan'))
      assert adam.read(*names) == before
      adam.take(1)
      assert not np.isclose(adam.read(*names), before).any()


def test_is_made_again_from_its_configuration():
  optimizer = LossScalingOptimizer(make_optimizer('momentum', 0.25))
  config = json.loads(json.dumps(optimizer.get_config()))
  again = LossScalingOptimizer.from_config(config)
  assert again.get_config() == config and config['name'] == 'Momentum'
  assert config['optimizer']['config']['momentum'] == 0.9


@pytest.fixture
def train(tmp_path):
  """Trains three steps, and returns the checkpoints after each by their steps."""
  def run(name='model', **values):
    folder = tmp_path / name
    train_settings(settings_of(**dict(dict(  # noqa: C408
        model='own_models:two_layers', model_dir=str(folder), batch_size=4, optimizer='momentum',
        train_steps=3, save_checkpoints_steps=1,
        dtype='mixed'), **values)))
    return {step: stored('{}/model.ckpt-{}'.format(folder, step))
            for step in range(save_hook.latest_checkpoint_and_step(str(folder))[1] + 1)}

  return run


def stored(path):
  return {name: tf.train.load_variable(path, name) for name, _ in tf.train.list_variables(path)}


@pytest.mark.parametrize('strategy, replicas', [
    ('off', 1), ('one_device', 1), ('mirrored', 2), ('central_storage', 2)])
def test_same_weights_as_without(train, strategy, replicas):
  """The scale is a power of two, which does not round."""
  expected = train('fp32', dtype='fp32', distribution_strategy='off')[3]
  found = train(distribution_strategy=strategy, num_cpu_replicas=replicas)[3]
  scale = {name.rpartition('/')[2]: found.pop(name) for name in set(found) - set(expected)}
  assert scale == {'current_loss_scale': 2 ** 15, 'good_steps': 3}
  assert set(found) == set(expected)
  for name in expected:
    np.testing.assert_allclose(found[name], expected[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize('strategy, replicas', [('mirrored', 2), ('central_storage', 2)])
def test_one_replica_that_overflows_holds_all_back(train, monkeypatch, strategy, replicas):
  calls = []

  def third_is_inf(weight):  # That is in the second step, of either replica.
    calls.append(None)
    return np.float32(np.inf if len(calls) == 3 else 0)

  def gradient(weight):
    value = tf.numpy_function(third_is_inf, [weight], tf.float32)
    value.set_shape(())
    return value

  monkeypatch.setattr(own_models.Probe, 'gradient', staticmethod(gradient))
  after = train(model='own_models:probe', distribution_strategy=strategy,
                num_cpu_replicas=replicas)
  weights = [name for name in after[1] if 'dense' in name]
  assert len(weights) == 4  # With the momenta.
  for name in weights:
    assert (after[2][name] == after[1][name]).all() and (after[3][name] != after[2][name]).any()
  assert [after[step]['training/current_loss_scale'] for step in range(4)] == [
      2 ** 15, 2 ** 15, 2 ** 14, 2 ** 14]
  assert [after[step]['global_step'] for step in range(4)] == [0, 1, 2, 3]


def test_resumes_with_its_scale_and_without(train):
  train(train_steps=2)
  assert train()[3]['training/good_steps'] == 3
  assert train(train_steps=4, dtype='fp32')[4]['global_step'] == 4
  with pytest.raises(UserError, match='fit --dtype: .* with --dtype=fp32, not --dtype=mixed'):
    train(train_steps=5)


def test_evaluates_whatever_it_was_trained_in(run_program, tmp_path):
  arguments = ['--model_dir={}'.format(tmp_path), '--model=own_models:two_layers']
  done = run_program('--train_steps=2', '--batch_size=8', '--dtype=mixed', *arguments)
  assert done.code == 0, done.err
  assert '--dtype=mixed: computing in float32' in done.err
  for dtype in ('mixed', 'fp32'):
    again = run_program('--mode=evaluate', '--dtype=' + dtype, *arguments)
    assert again.code == 0, again.err
    assert again.result['average_loss'] == pytest.approx(done.result['average_loss'])


@pytest.mark.parametrize('dtype, capability, halves', [
    ('mixed', '7.0', True), ('mixed', '6.1', False), ('fp32', '7.0', False)])
def test_what_a_gpu_would_compute_in_float16(dtype, capability, halves):
  """TensorFlow's rewrite of the network's graph, for a machine that is only described to it."""
  with tf.Graph().as_default(), tf.device('/gpu:0'):
    model = registry.build('fashion_cnn', (28, 28, 1), 10)
    loss = tf.reduce_mean(model(tf.placeholder(tf.float32, (8, 28, 28, 1))))
    gradients = tf.gradients(loss, model.trainable_weights)
    tf.add_to_collection('train_op', tf.add_n([tf.reduce_sum(value) for value in gradients]))
    graph = tf.train.export_meta_graph()
  here = '/job:localhost/replica:0/task:0/device:'
  machine = cluster.Cluster(devices=[
      NamedDevice(name=here + 'CPU:0', properties=DeviceProperties(
          type='CPU', frequency=1000, num_cores=2)),
      NamedDevice(name=here + 'GPU:0', properties=DeviceProperties(
          type='GPU', vendor='nvidia', frequency=1000, num_cores=10,
          environment={'architecture': capability}))])
  config = devices.make_session_config(settings_of(dtype=dtype), ON_GPU)
  rewritten = tf_optimizer.OptimizeGraph(config, graph, cluster=machine)
  kinds = ('Conv2D', 'Conv2DBackpropFilter', 'Conv2DBackpropInput')
  types = {node.attr['T'].type for node in rewritten.node if node.op in kinds}
  assert {node.op for node in rewritten.node} >= set(kinds)
  assert types == {tf.float16.as_datatype_enum if halves else tf.float32.as_datatype_enum}


@pytest.mark.parametrize('capabilities, old', [
    (['7.0', '10.0'], []), (['7.5', '6.1'], ['1']), (['3.5', '5.2'], ['0', '1'])])
def test_gpus_that_are_too_old_are_named(monkeypatch, caplog, capabilities, old):
  class Device:
    device_type = 'GPU'

    def __init__(self, index, capability):
      self.physical_device_desc = (
          'device: {}, name: A, pci bus id: 0, compute capability: {}'.format(index, capability))

  monkeypatch.setattr(tensorflow_devices.device_lib, 'list_local_devices', lambda config: [
      Device(index, capability) for index, capability in enumerate(capabilities)])
  ready(settings_of(dtype='mixed'), ON_GPU)
  assert [part.partition(',')[0] for part in caplog.text.split('device: ')[1:]] == old


@pytest.mark.parametrize('values, warns', [
    ({}, False), ({'dtype': 'mixed'}, True), ({'dtype': 'mixed', 'mode': 'evaluate'}, False)])
def test_warns_on_a_cpu_where_it_trains(caplog, values, warns):
  caplog.set_level(logging.INFO, 'estimator_train')
  ready(settings_of(**values), ON_CPU)
  assert ('7.0 or newer; this run uses /cpu:0' in caplog.text) == warns


@pytest.mark.parametrize('given', ['', '--tf_xla_min_cluster_size=2'])
def test_xla_is_let_compile_for_cpus(monkeypatch, given):
  monkeypatch.setenv('TF_XLA_FLAGS', given)
  ready(settings_of(), ON_CPU)
  ready(settings_of(enable_xla=True), ON_GPU)
  assert os.environ['TF_XLA_FLAGS'] == given
  for _ in range(2):
    ready(settings_of(enable_xla=True), ON_CPU)
    assert os.environ['TF_XLA_FLAGS'] == (given + ' --tf_xla_cpu_global_jit').strip()


def test_what_xla_compiles(tmp_path):
  """In a process of its own, as TensorFlow reads XLA's flags once."""
  environment = {name: value for name, value in os.environ.items() if name != 'TF_XLA_FLAGS'}
  subprocess.run(
      [sys.executable, '-m', 'estimator_train', '--mode=train', '--dataset=synthetic',
       '--image_size=8,8', '--model=own_models:two_layers', '--batch_size=4', '--train_steps=3',
       '--trace_steps=3:3', '--noreport_page', '--model_dir={}'.format(tmp_path),
       '--enable_xla', '--dtype=mixed'],
      env=dict(environment, PYTHONPATH='{0}:{0}/tests'.format(ROOT)), check=True, timeout=300)
  events = json.loads((tmp_path / 'trace.json').read_text())['traceEvents']
  ran = {event['args']['op'] for event in events if 'op' in event.get('args', {})}
  assert '_XlaRun' in ran and 'Timestamp' in ran
  figures = json.loads((tmp_path / 'throughput.json').read_text())
  assert figures['enable_xla'] and figures['dtype'] == 'mixed'
  assert figures['input_wait_secs']['max'] >= 0
