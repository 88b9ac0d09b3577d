"""Workarounds for TensorFlow 1.15, each beside what TensorFlow does without it."""

import os
import subprocess
import sys

import pytest
import tensorflow.compat.v1 as tf
from tensorflow.python.distribute import distribute_coordinator
from tensorflow.python.util import tf_inspect

from estimator_train.models import registry
from estimator_train.tf_patches import (
    checkpoints,
    environment,
    estimator,
    keras,
    optimizers,
    saved_weights,
    sessions,
)
from estimator_train.tf_patches.model_copies import ModelCopier


@pytest.fixture
def session():
  """A session of a graph of its own, which are the default ones."""
  with tf.Graph().as_default(), tf.Session() as session:
    yield session


def take_step(folder, is_patched):
  """Takes a step of a weight that begins with 1 on two replicas; returns what it becomes."""
  def model_fn(features, labels, mode):
    if is_patched:
      estimator.keep_loss_unscaled()
    weight = tf.get_variable('weight', (), initializer=tf.ones_initializer())
    loss = weight + 0. * tf.reduce_sum(features)
    step = tf.train.GradientDescentOptimizer(1.).minimize(loss, tf.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=step)

  made = tf.estimator.Estimator(model_fn, config=tf.estimator.RunConfig(
      model_dir=str(folder), train_distribute=tf.distribute.MirroredStrategy(['/cpu:0', '/cpu:1']),
      session_config=tf.ConfigProto(device_count={'CPU': 2})))
  made.train(lambda: tf.data.Dataset.from_tensors([0.]).repeat(), steps=1)
  return made.get_variable_value('weight')


def test_the_loss_is_not_divided_by_the_replicas(tmp_path):
  # The gradient of each replica counts: their sum is 2.
  assert take_step(tmp_path / 'patched', is_patched=True) == -1
  assert take_step(tmp_path / 'stock', is_patched=False) == 0


def test_an_event_file_begins_without_a_graph(tmp_path, session):
  def has_graph(folder):
    tf.summary.FileWriterCache.get(str(folder)).flush()
    (path,) = folder.glob('events.*')
    return any(tf.GraphDef.FromString(event.graph_def).node
               for event in tf.train.summary_iterator(str(path)))

  tf.constant(1)
  estimator.open_event_file(str(tmp_path / 'patched'))
  tf.summary.FileWriterCache.get(str(tmp_path / 'stock'))
  assert not has_graph(tmp_path / 'patched') and has_graph(tmp_path / 'stock')


def test_only_the_summary_of_the_loss_is_removed(session):
  loss, other = tf.constant(1.), tf.constant(2.)
  tf.summary.scalar('loss', loss)
  kept = tf.summary.scalar('other', other)
  estimator.remove_loss_summary(loss)
  assert tf.get_collection(tf.GraphKeys.SUMMARIES) == [kept]


def test_what_a_process_keeps_is_released_or_restored(session, monkeypatch):
  distribute_coordinator._thread_local.server = object()
  estimator.release_server()
  assert distribute_coordinator._thread_local.server is None
  for before in (session, None):
    tf.keras.backend.set_session(before)
    with keras.preserve_session():
      tf.keras.backend.set_session(tf.Session(graph=tf.Graph()))
    assert keras.backend._SESSION.session is before
  monkeypatch.setenv('PATH', '/nowhere')
  with environment.converter_on_path():
    subprocess.run([os.path.basename(sys.executable), '-c', ''], check=True)
  assert os.environ['PATH'] == '/nowhere'


class Halved(tf.keras.optimizers.schedules.LearningRateSchedule):

  def __call__(self, step):
    return 0.5

  def get_config(self):
    return {}


class Base:
  pass


def test_schedules_and_base_classes_outlive_a_copy_of_the_optimizer():
  config = tf.keras.optimizers.SGD(Halved()).get_config()
  with tf.keras.utils.custom_object_scope({}):
    with pytest.raises(ValueError, match='Unknown decay: Halved'):
      tf.keras.optimizers.SGD.from_config(dict(config))
    optimizers.register_schedules(Halved)
    optimizer = tf.keras.optimizers.SGD.from_config(dict(config))
    assert isinstance(optimizer._hyper['learning_rate'], Halved)
    for _ in range(2):
      optimizers.add_optimizer_base_class(optimizer, Base)
    made = type(optimizer).from_config(optimizer.get_config())
  assert isinstance(made, Base) and isinstance(made, tf.keras.optimizers.SGD)
  assert type(made).__name__ == 'SGD' and type(made).__mro__.count(Base) == 1


def test_the_checkpoint_file_has_relative_paths(tmp_path):
  paths = [str(tmp_path / 'model.ckpt-{}'.format(step)) for step in (1, 2)]
  checkpoints.write_checkpoint_state(str(tmp_path), paths[1], paths)
  assert str(tmp_path) not in (tmp_path / 'checkpoint').read_text()
  tf.train.update_checkpoint_state(str(tmp_path), paths[1], paths)
  assert str(tmp_path) in (tmp_path / 'checkpoint').read_text()


def test_a_failed_attempt_to_save_is_forgotten(tmp_path, session):
  session.run(tf.get_variable('a', (), initializer=tf.ones_initializer()).initializer)
  saving = tf.train.Saver(max_to_keep=1)
  saving.save(session, str(tmp_path / 'model.ckpt'), global_step=1)
  before = saving.last_checkpoints
  restore = checkpoints.checkpoint_list_restorer(saving)
  (tmp_path / 'checkpoint').unlink()
  (tmp_path / 'checkpoint').mkdir()  # Cannot be written.
  with pytest.raises(tf.errors.OpError):
    saving.save(session, str(tmp_path / 'model.ckpt'), global_step=2)
  assert saving.last_checkpoints != before  # TensorFlow keeps what failed.
  assert saving._checkpoints_to_be_deleted
  restore()
  assert saving.last_checkpoints == before and not saving._checkpoints_to_be_deleted


@pytest.mark.parametrize('is_patched, reads', [(True, 2), (False, 3)])
def test_a_sharded_saver_reads_a_variable_once(tmp_path, session, is_patched, reads):
  with tf.distribute.MirroredStrategy(['/cpu:0']).scope():
    weight = tf.get_variable('weight', ())
    before = len(session.graph.get_operations())
    saving = tf.train.Saver(
        sharded=True, builder=checkpoints.SingleReadSaverBuilder() if is_patched else None)
    made = [op.type for op in session.graph.get_operations()[before:]]
    assert made.count('ReadVariableOp') == reads  # To restore the variable takes one.
    session.run(weight.primary.assign(5.))
    path = saving.save(session, str(tmp_path / 'model.ckpt'))
    session.run(weight.primary.assign(6.))
    saving.restore(session, path)
    assert session.run(weight.primary) == 5


def test_deprecated_arguments_are_not_checked(session, monkeypatch):
  def fail(*unused_args, **unused_options):
    raise AssertionError('inspected')

  monkeypatch.setattr(tf_inspect, 'getcallargs', fail)
  with pytest.raises(KeyError), sessions.without_deprecation_checks():
    tf.reduce_sum([1.])
    raise KeyError
  with pytest.raises(AssertionError, match='inspected'):
    tf.reduce_sum([1.])


@pytest.mark.parametrize('has_local, is_initialized', [
    (False, True), (True, True), (False, False)])
def test_the_checks_of_a_new_session_are_one(tmp_path, session, has_local, is_initialized):
  """Unless local variables are initialized in between, which the second check has, too."""
  weight = tf.get_variable('weight', (), use_resource=True)
  if has_local:
    tf.get_variable('local', (), collections=[tf.GraphKeys.LOCAL_VARIABLES])
  tf.add_to_collection(tf.GraphKeys.READY_FOR_LOCAL_INIT_OP, tf.report_uninitialized_variables(
      tf.global_variables()))
  sessions.share_ready_op()
  for name in ('first', 'second'):
    sessions.add_local_init_op(tf.write_file(str(tmp_path / name), ''))
  creator = tf.train.ChiefSessionCreator(tf.train.Scaffold(
      init_op=weight.initializer if is_initialized else tf.no_op()))
  if not is_initialized:
    with pytest.raises(RuntimeError, match='weight'):
      tf.train.MonitoredSession(creator)
    return
  tf.train.MonitoredSession(creator).close()
  assert {path.name for path in tmp_path.iterdir()} == {'first', 'second'}
  ready, = tf.get_collection(tf.GraphKeys.READY_OP)
  assert (tf.get_collection(tf.GraphKeys.READY_FOR_LOCAL_INIT_OP) == [ready]) != has_local


def test_the_global_step_is_read_through_the_tensor_of_the_hooks(tmp_path, session):
  step = tf.train.create_global_step()
  session.run(step.assign(3))
  assert sessions.read_global_step(session) == 3
  hook = tf.train.CheckpointSaverHook(str(tmp_path), save_steps=1)
  hook.begin()
  session.run(step.assign(4))
  fetched = []
  session.run = lambda tensor: fetched.append(tensor) or tf.Session.run(session, tensor)
  assert sessions.read_global_step(session) == 4
  assert fetched == [hook._global_step_tensor]


def test_names_of_variables_are_those_of_their_operations(session):
  strategy = tf.distribute.MirroredStrategy(['/cpu:0', '/cpu:1'])
  with strategy.scope(), tf.variable_scope('scope'):
    tf.get_variable('replicated', ())
  for name, use_resource in (('resource', True), ('reference', False)):
    tf.get_variable(name, (), use_resource=use_resource)
  with strategy.scope():
    variables = tf.global_variables()
    assert [checkpoints.variable_name(variable) for variable in variables] == [
        variable.op.name for variable in variables]


@pytest.mark.parametrize('name', [
    'fashion_cnn', 'mnist_conv8', 'mnist_deep', 'mnist_dense', 'mnist_practical'])
def test_random_weights_are_saved_without_a_copy(tmp_path, name):
  def save(folder, is_copied):
    config = tf.estimator.RunConfig(model_dir=str(tmp_path / folder), tf_random_seed=7)
    with tf.Graph().as_default():
      if is_copied:
        tf.set_random_seed(7)
      else:
        saved_weights.start_graph(7)
      model = registry.build(name, (28, 28, 1), 10)
      model.compile('adam', 'categorical_crossentropy')
      if is_copied:
        saved_weights.save_initial_weights(ModelCopier(model), None, config)
      else:
        saved_weights.save_random_weights(model, config)
    return {path.name: path.read_bytes() for path in (tmp_path / folder / 'keras').iterdir()
            if path.name != 'checkpoint'}  # This file has the path of the folder.

  assert save('itself', is_copied=False) == save('copy', is_copied=True)
