"""Workarounds for TensorFlow 1.15, each beside what TensorFlow does without it."""

import functools
import os
import subprocess
import sys

import pytest
import tensorflow.compat.v1 as tf
from tensorflow.python.distribute import distribute_coordinator
from tensorflow.python.keras.optimizers import TFOptimizer

import estimator_train
from estimator_train.model.gradients import WeightAveraging, add_mixins
from estimator_train.tf_patches import environment, estimator, keras, saved_weights
from estimator_train.tf_patches.loss_scaling import LossScalingOptimizer


def test_what_a_process_keeps_is_released_or_restored(monkeypatch):
  distribute_coordinator._thread_local.server = object()
  estimator.release_server()
  assert distribute_coordinator._thread_local.server is None
  for before in (tf.Session(graph=tf.Graph()), None):
    tf.keras.backend.set_session(before)
    with keras.preserve_session():
      tf.keras.backend.set_session(tf.Session(graph=tf.Graph()))
    assert keras.backend._SESSION.session is before
  monkeypatch.setenv('PATH', '/nowhere')
  with environment.toco_on_path():
    subprocess.run([os.path.basename(sys.executable), '-c', ''], check=True)
  assert os.environ['PATH'] == '/nowhere'


class GraphRecorder(tf.train.SessionRunHook):
  """Records the names of the operations in the graph of a session."""

  def after_create_session(self, session, coord):
    self.names = [operation.name for operation in session.graph.get_operations()]


@pytest.mark.parametrize('num_replicas', [1, 2])
def test_no_session_of_one_process_checks_for_uninitialized_variables(tmp_path, num_replicas):
  model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(2,))])
  model.compile('sgd', 'mse', metrics=['mae'])
  converted = estimator_train.convert(model, model_dir=str(tmp_path),
                                      num_cpu_replicas=num_replicas)
  recorder = GraphRecorder()
  for run in (functools.partial(converted.train, max_steps=1), converted.evaluate):
    run(lambda: tf.data.Dataset.from_tensors((tf.ones([4, 2]), tf.ones([4, 1]))).repeat(2),
        hooks=[recorder])
    assert not [name for name in recorder.names if name.startswith('report_uninitialized')]
    assert recorder.names


def test_initial_values_are_read_on_the_cpu(monkeypatch):
  """The operation of CuDNNLSTM has no CPU kernel, and the session must leave the GPUs alone."""
  configs = []
  original = tf.Session.__init__

  def record(session, *args, **options):
    configs.append(options.get('config'))
    original(session, *args, **options)

  monkeypatch.setattr(tf.Session, '__init__', record)
  with tf.Graph().as_default() as graph:
    tf.set_random_seed(3)
    model = tf.keras.Sequential([tf.keras.layers.CuDNNLSTM(2, input_shape=[4, 3])])
    reader = saved_weights.ValueReader(graph)
    values = reader.read(model.weights)
    assert all((one == two).all() for one, two in zip(values, reader.read(model.weights)))
    assert reader.evaluate([tf.random.uniform([3], seed=1)])[0].shape == (3,)
  assert [value.shape for value in values] == [(3, 8), (2, 8), (16,)] and len(configs) == 3
  assert all(config.device_count == {'GPU': 0} for config in configs)


def adam_with_averages():
  optimizer = tf.keras.optimizers.Adam()
  add_mixins(optimizer, [(WeightAveraging, {'ema_decay': .5})])
  return optimizer


@pytest.mark.parametrize('make_optimizer', [
    tf.keras.optimizers.Adam, lambda: tf.keras.optimizers.SGD(clipnorm=1.), adam_with_averages,
    lambda: LossScalingOptimizer(tf.keras.optimizers.Adam()),
    lambda: TFOptimizer(tf.train.AdamOptimizer())],
                         ids=['adam', 'clipping', 'averages', 'loss scaling', 'tf.train'])
def test_the_graph_grows_linearly_with_the_replicas(make_optimizer):
  def add_step():
    weights = [tf.get_variable(name, (3, 2), use_resource=True) for name in 'vw']
    original = make_optimizer()
    optimizer = estimator.copy_optimizer(original, estimator.read_hyperparameters(original))
    loss = tf.add_n([tf.reduce_sum(tf.gather(weight, [0, 2]) ** 2) for weight in weights])
    return estimator.make_train_op(optimizer, loss, [weights], [])

  sizes = []
  for num_replicas in (2, 3, 4):
    strategy = tf.distribute.MirroredStrategy(
        ['/cpu:{}'.format(index) for index in range(num_replicas)])
    with tf.Graph().as_default() as graph, strategy.scope():
      strategy.extended.call_for_each_replica(add_step)
    operations = graph.get_operations()
    sizes.append((len(operations), sum(
        len(operation.inputs) + len(operation.control_inputs) for operation in operations)))
  assert all(last - middle == middle - first for first, middle, last in zip(*sizes)), sizes


@pytest.mark.parametrize('use_resource', [True, False])
def test_restored_initial_values_leave_variables_on_their_gpu(use_resource):
  with tf.Graph().as_default() as graph, tf.device('/gpu:0'):
    tf.Variable(lambda: saved_weights.make_restored_value('path', 'v', [2], tf.float32), name='v',
                use_resource=use_resource)
  restore, = (operation for operation in graph.get_operations() if operation.type == 'RestoreV2')
  assert restore.colocation_groups() == [b'loc:@' + restore.name.encode()]  # Only with itself.
  assert restore.device == '/device:CPU:0'
