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
    converter_command,
    deprecation,
    estimator,
    keras,
    model_to_estimator,
    replicated_variables,
    saved_weights,
    saver,
    session_start,
)
from estimator_train.tf_patches.model_copies import ModelCopier


def train(folder, replicas=1, is_patched=False, learning_rate=1., loss_of=lambda weight: weight):
  """Takes a step of a weight that begins with 1; returns what it becomes."""
  strategy = tf.distribute.MirroredStrategy(['/cpu:{}'.format(index) for index in range(replicas)])

  def model_fn(features, labels, mode):
    if is_patched:
      estimator.keep_loss_unscaled()
    weight = tf.get_variable('weight', (), initializer=tf.ones_initializer())
    loss = loss_of(weight) + 0. * tf.reduce_sum(features)
    step = tf.train.GradientDescentOptimizer(learning_rate).minimize(
        loss, tf.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=step)

  made = tf.estimator.Estimator(model_fn, config=tf.estimator.RunConfig(
      model_dir=str(folder), train_distribute=strategy,
      session_config=tf.ConfigProto(device_count={'CPU': replicas})))
  made.train(lambda: tf.data.Dataset.from_tensors([0.]).repeat(), steps=1)
  return made.get_variable_value('weight')


def test_the_loss_is_not_divided_by_the_replicas(tmp_path):
  # The gradient of each replica counts: their sum is 2.
  assert train(tmp_path / 'patched', replicas=2, is_patched=True) == -1
  assert train(tmp_path / 'stock', replicas=2) == 0


def test_estimators_nan_hook_is_quiet(tmp_path):
  def loss_of(weight):
    return weight * float('nan')

  after_run = tf.train.NanTensorHook.after_run
  with estimator.without_nan_hook():
    train(tmp_path / 'patched', loss_of=loss_of)
  assert tf.train.NanTensorHook.after_run is after_run
  with pytest.raises(tf.train.NanLossDuringTrainingError):
    train(tmp_path / 'stock', loss_of=loss_of)


def test_the_server_is_released():
  distribute_coordinator._thread_local.server = object()
  estimator.release_server()
  assert distribute_coordinator._thread_local.server is None


def test_an_event_file_begins_without_a_graph(tmp_path):
  def has_graph(folder):
    tf.summary.FileWriterCache.get(str(folder)).flush()
    (path,) = folder.glob('events.*')
    return any(tf.GraphDef.FromString(event.graph_def).node
               for event in tf.train.summary_iterator(str(path)))

  with tf.Graph().as_default():
    tf.constant(1)
    estimator.open_event_file(str(tmp_path / 'patched'))
    tf.summary.FileWriterCache.get(str(tmp_path / 'stock'))
    assert not has_graph(tmp_path / 'patched') and has_graph(tmp_path / 'stock')


def test_only_the_summary_of_the_loss_is_removed():
  with tf.Graph().as_default():
    loss, other = tf.constant(1.), tf.constant(2.)
    tf.summary.scalar('loss', loss)
    kept = tf.summary.scalar('other', other)
    estimator.remove_loss_summary(loss)
    assert tf.get_collection(tf.GraphKeys.SUMMARIES) == [kept]


@pytest.mark.parametrize('has_session', [True, False])
def test_keras_session_is_restored(has_session):
  with tf.Graph().as_default(), tf.Session() as session:
    tf.keras.backend.set_session(session if has_session else None)
    with keras.preserve_session():
      tf.keras.backend.set_session(tf.Session(graph=tf.Graph()))
    assert keras.backend._SESSION.session is (session if has_session else None)
    tf.keras.backend.set_session(None)


def test_a_registered_schedule_is_made_again():
  class Halved(tf.keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):
      return 0.5

    def get_config(self):
      return {}

  config = tf.keras.optimizers.SGD(Halved()).get_config()
  with tf.keras.utils.custom_object_scope({}):
    with pytest.raises(ValueError, match='Unknown decay: Halved'):
      tf.keras.optimizers.SGD.from_config(dict(config))
    model_to_estimator.register_schedules(Halved)
    made = tf.keras.optimizers.SGD.from_config(dict(config))
    assert isinstance(made._hyper['learning_rate'], Halved)


def test_a_base_class_outlives_the_optimizer():
  class Base:
    pass

  optimizer = tf.keras.optimizers.SGD(0.1)
  for _ in range(2):
    model_to_estimator.add_optimizer_base_class(optimizer, Base)
  made = type(optimizer).from_config(optimizer.get_config())
  assert isinstance(made, Base) and isinstance(made, tf.keras.optimizers.SGD)
  assert type(made).__name__ == 'SGD' and type(made).__mro__.count(Base) == 1


def test_the_checkpoint_file_has_relative_paths(tmp_path):
  paths = [str(tmp_path / 'model.ckpt-{}'.format(step)) for step in (1, 2)]
  saver.write_checkpoint_state(str(tmp_path), paths[1], paths)
  assert str(tmp_path) not in (tmp_path / 'checkpoint').read_text()
  tf.train.update_checkpoint_state(str(tmp_path), paths[1], paths)
  assert str(tmp_path) in (tmp_path / 'checkpoint').read_text()


def test_the_converters_command_is_found(monkeypatch):
  monkeypatch.setenv('PATH', '/nowhere')
  with converter_command.converter_on_path():
    subprocess.run([os.path.basename(sys.executable), '-c', ''], check=True)
  assert os.environ['PATH'] == '/nowhere'


def test_a_failed_attempt_to_save_is_forgotten(tmp_path):
  with tf.Graph().as_default(), tf.Session() as session:
    session.run(tf.get_variable('a', (), initializer=tf.ones_initializer()).initializer)
    checkpoints = tf.train.Saver(max_to_keep=1)
    checkpoints.save(session, str(tmp_path / 'model.ckpt'), global_step=1)
    before = checkpoints.last_checkpoints
    restore = saver.checkpoint_list_restorer(checkpoints)
    (tmp_path / 'checkpoint').unlink()
    (tmp_path / 'checkpoint').mkdir()  # Cannot be written.
    with pytest.raises(tf.errors.OpError):
      checkpoints.save(session, str(tmp_path / 'model.ckpt'), global_step=2)
    assert checkpoints.last_checkpoints != before  # TensorFlow keeps what failed.
    assert checkpoints._checkpoints_to_be_deleted
    restore()
    assert checkpoints.last_checkpoints == before
    assert not checkpoints._checkpoints_to_be_deleted


@pytest.mark.parametrize('is_patched, found', [(True, 0.5), (False, 0.1)])
def test_the_learning_rate_is_not_restored(tmp_path, is_patched, found):
  path = str(tmp_path / 'model.ckpt')
  for rate in (0.1, 0.5):
    with tf.Graph().as_default(), tf.Session() as session:
      variable = tf.get_variable('training/SGD/learning_rate', initializer=rate)
      hook = replicated_variables.SingleCopySaver(
          tf.estimator.RunConfig(), {'learning_rate'})
      hook.begin()
      (checkpoints,) = tf.get_collection(tf.GraphKeys.SAVERS)
      checkpoints.build()
      if rate == 0.1:
        session.run(variable.initializer)
        checkpoints.save(session, path)
        continue
      checkpoints.restore(session, path)
      if is_patched:
        session.run(tf.get_collection(tf.GraphKeys.LOCAL_INIT_OP))
      assert session.run(variable) == pytest.approx(found)


def test_deprecated_arguments_are_not_checked(monkeypatch):
  def fail(*unused_args, **unused_options):
    raise AssertionError('inspected')

  with tf.Graph().as_default():
    monkeypatch.setattr(tf_inspect, 'getcallargs', fail)
    with pytest.raises(KeyError), deprecation.without_checks():
      tf.reduce_sum([1.])
      raise KeyError
    with pytest.raises(AssertionError, match='inspected'):
      tf.reduce_sum([1.])


def start_session(local_init=(), is_initialized=True):
  """Starts a session as an Estimator does; returns what it has run, without fetched values."""
  weight = tf.get_variable('weight', (), use_resource=True)
  tf.add_to_collection(tf.GraphKeys.READY_FOR_LOCAL_INIT_OP, tf.report_uninitialized_variables(
      tf.global_variables()))
  session_start.share_ready_op()
  for op in local_init:
    session_start.add_local_init_op(op)
  tf.train.MonitoredSession(tf.train.ChiefSessionCreator(tf.train.Scaffold(
      init_op=weight.initializer if is_initialized else tf.no_op()))).close()


def test_the_checks_of_a_new_session_are_one():
  with tf.Graph().as_default() as graph:
    start_session()
    ready, = graph.get_collection(tf.GraphKeys.READY_OP)
    assert graph.get_collection(tf.GraphKeys.READY_FOR_LOCAL_INIT_OP) == [ready]
  with tf.Graph().as_default() as graph:
    tf.get_variable('local', (), collections=[tf.GraphKeys.LOCAL_VARIABLES])
    start_session()  # The second check, after the local variables are initialized, has them too.
    ready, = graph.get_collection(tf.GraphKeys.READY_OP)
    assert graph.get_collection(tf.GraphKeys.READY_FOR_LOCAL_INIT_OP) != [ready]
  with tf.Graph().as_default(), pytest.raises(RuntimeError, match='weight'):
    start_session(is_initialized=False)


def test_operations_are_added_to_the_local_initialization(tmp_path):
  with tf.Graph().as_default():
    tf.get_variable('local', (), collections=[tf.GraphKeys.LOCAL_VARIABLES])
    start_session([tf.write_file(str(tmp_path / name), '') for name in ('first', 'second')])
  assert {path.name for path in tmp_path.iterdir()} == {'first', 'second'}


def test_the_global_step_is_read_through_the_tensor_of_the_hooks(tmp_path):
  with tf.Graph().as_default() as graph, tf.Session() as session:
    step = tf.train.create_global_step()
    session.run(step.assign(3))
    assert session_start.read_global_step(session) == 3
    hook = tf.train.CheckpointSaverHook(str(tmp_path), save_steps=1)
    hook.begin()
    session.run(step.assign(4))
    fetched = []
    session.run = lambda tensor: fetched.append(tensor) or tf.Session.run(session, tensor)
    assert session_start.read_global_step(session) == 4
    assert fetched == [hook._global_step_tensor]
    assert fetched[0].graph is graph


@pytest.mark.parametrize('is_patched, reads', [(True, 2), (False, 3)])
def test_a_sharded_saver_reads_a_variable_once(tmp_path, is_patched, reads):
  strategy = tf.distribute.MirroredStrategy(['/cpu:0'])
  with tf.Graph().as_default() as graph, tf.Session() as session, strategy.scope():
    weight = tf.get_variable('weight', ())
    before = len(graph.get_operations())
    saving = tf.train.Saver(
        sharded=True, builder=saver.SingleReadSaverBuilder() if is_patched else None)
    made = [op.type for op in graph.get_operations()[before:]]
    assert made.count('ReadVariableOp') == reads  # To restore the variable takes one.
    session.run(weight.primary.assign(5.))
    path = saving.save(session, str(tmp_path / 'model.ckpt'))
    session.run(weight.primary.assign(6.))
    saving.restore(session, path)
    assert session.run(weight.primary) == 5


def test_names_of_variables_are_those_of_their_operations():
  strategy = tf.distribute.MirroredStrategy(['/cpu:0', '/cpu:1'])
  with tf.Graph().as_default():
    with strategy.scope(), tf.variable_scope('scope'):
      tf.get_variable('replicated', ())
    tf.get_variable('resource', (), use_resource=True)
    tf.get_variable('reference', (), use_resource=False)
    with strategy.scope():
      assert [replicated_variables.variable_name(variable)
              for variable in tf.global_variables()] == [
                  variable.op.name for variable in tf.global_variables()]


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
