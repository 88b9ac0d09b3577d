"""TimeHistory measures the training of any Estimator, and reports only what it observed."""

import json
import math
import re
import time

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import estimator_train
from estimator_train import TimeHistory
from estimator_train.reports import page

FEATURES = np.random.RandomState(0).normal(size=(64, 4)).astype(np.float32)
CLASSES = (FEATURES[:, 0] > 0).astype(np.int32)
COLUMNS = [tf.feature_column.numeric_column('x', shape=4)]


def dataset(batch_size=16, sleep_secs=0.):
  def slow(features):
    time.sleep(sleep_secs)
    return features

  data = tf.data.Dataset.from_tensor_slices((FEATURES, CLASSES)).repeat().batch(batch_size)
  if sleep_secs:
    data = data.map(lambda features, labels: (
        tf.ensure_shape(tf.py_func(slow, [features], tf.float32), [None, 4]), labels))
  return data.map(lambda features, labels: ({'x': features}, labels))


def canned(folder, **options):
  return tf.estimator.DNNClassifier(
      [8], COLUMNS, model_dir=str(folder), config=tf.estimator.RunConfig(**options))


def strict(text):
  """Parses JSON that does not contain nan, which is no JSON."""
  def reject(constant):
    raise AssertionError(constant)

  return json.loads(text, parse_constant=reject)


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
  """The folder, and the hook, of a canned Estimator after its training."""
  folder = tmp_path_factory.mktemp('canned')
  hook = TimeHistory(batch_size=16, report_dir=folder, warmup_steps=3)
  canned(folder, save_summary_steps=5).train(dataset, steps=20, hooks=[hook])
  return folder, hook


def test_a_canned_estimator(trained):
  _, hook = trained
  assert isinstance(hook, tf.train.SessionRunHook) and isinstance(hook, TimeHistory)
  assert len(hook.times) == 20 and min(hook.times) > 0
  report = hook.report()
  assert report['global_step'] == 20
  assert (report['steps_timed'], report['warmup_steps']) == (17, 3)
  assert report['examples_per_sec'] == pytest.approx(17 * 16 / report['wall_secs'])
  assert report['examples_per_sec_per_replica'] == report['examples_per_sec']
  assert report['session_run_secs']['max'] == pytest.approx(max(hook.times[3:]))
  assert 0 <= report['shares']['input'] <= 1
  assert report['time_to_first_step_secs'] > hook.times[0]
  assert (report['global_batch_size'], report['per_replica_batch_size']) == (16, 16)
  assert (report['num_replicas'], report['num_workers'], report['devices']) == (1, 1, ['/cpu:0'])
  assert [report[name] for name in ('model', 'dataset', 'distribution_strategy')] == [None] * 3


def test_files_of_the_report(trained):
  folder, hook = trained
  assert strict((folder / 'throughput.json').read_text()) == strict(json.dumps(hook.report()))
  text = (folder / 'report' / 'index.html').read_text(encoding='utf-8')
  text = re.sub('base64,[^"]*', '', text)
  assert 'examples/sec' in text and 'None' not in text and 'nan' not in text
  curves = strict((folder / 'report' / 'curves.json').read_text())
  assert len(curves['train_loss']) == 4


def test_an_input_fn_that_returns_tensors(tmp_path):
  hook = TimeHistory(batch_size=16, report_dir=tmp_path, warmup_steps=2)
  canned(tmp_path).train(tf.estimator.inputs.numpy_input_fn(
      {'x': FEATURES}, CLASSES, 16, num_epochs=None, shuffle=False), steps=12, hooks=[hook])
  report = hook.report()
  assert report['input_wait_secs'] is None
  assert report['shares']['input'] is None and report['shares']['compute'] is None
  assert report['verdict'] in (None, 'overhead-bound')
  text = (tmp_path / 'report' / 'index.html').read_text(encoding='utf-8')
  assert 'wait for input was not observed' in text
  assert 'compute-bound' not in text and 'limited by the computation' not in text


def test_a_slow_input_is_the_bottleneck(tmp_path):
  hook = TimeHistory(batch_size=16, warmup_steps=2)
  canned(tmp_path).train(lambda: dataset(sleep_secs=.03), steps=12, hooks=[hook])
  report = hook.report()
  assert report['verdict'] == 'input-bound'
  assert .02 < report['input_wait_secs']['p50'] <= report['step_secs']['p50']
  assert not (tmp_path / 'throughput.json').exists()


@pytest.mark.parametrize('convert', [True, False])
def test_replicas(tmp_path, convert):
  config = tf.estimator.RunConfig(
      model_dir=str(tmp_path), session_config=tf.ConfigProto(device_count={'CPU': 2}),
      train_distribute=tf.distribute.MirroredStrategy(['/cpu:0', '/cpu:1']))
  hook = TimeHistory(batch_size=16, warmup_steps=1)
  if convert:
    with tf.Graph().as_default():
      tf.keras.backend.set_session(None)
      inputs = tf.keras.layers.Input((4,), name='x')
      model = tf.keras.Model(inputs, tf.keras.layers.Dense(2, activation='softmax')(inputs))
      model.compile('sgd', 'sparse_categorical_crossentropy')
      estimator = estimator_train.convert(model, config=config)
      tf.keras.backend.set_session(None)
  else:
    estimator = tf.estimator.DNNClassifier([8], COLUMNS, config=config)
  estimator.train(lambda: dataset(8), steps=5, hooks=[hook])
  report = hook.report()
  assert (report['num_replicas'], report['per_replica_batch_size']) == (2, 8)
  assert report['devices'] == ['/cpu:0', '/cpu:1']
  assert report['distribution_strategy'] == 'mirrored'
  assert report['examples'] == 4 * 16
  assert report['examples_per_sec_per_replica'] == pytest.approx(report['examples_per_sec'] / 2)
  assert not math.isnan(report['shares']['input'])


def test_a_hook_that_is_used_again(tmp_path):
  hook = TimeHistory(batch_size=16, warmup_steps=0)
  estimator = canned(tmp_path)
  estimator.train(dataset, steps=4, hooks=[hook])
  first = hook.report()
  estimator.train(dataset, steps=3, hooks=[hook])
  second = hook.report()
  assert (first['global_step'], first['steps_timed']) == (4, 4)
  assert (second['global_step'], second['steps_timed'], len(hook.times)) == (7, 3, 3)
  assert first['time_to_first_step_secs'] == pytest.approx(
      sum(first['first_step_parts_secs'].values()))
  assert list(second['first_step_parts_secs']) == ['session', 'first_batch', 'first_step']


def test_train_and_evaluate(tmp_path):
  hook = TimeHistory(batch_size=16, report_dir=tmp_path, warmup_steps=0)
  tf.estimator.train_and_evaluate(
      canned(tmp_path, save_checkpoints_steps=3), tf.estimator.TrainSpec(dataset, 6, [hook]),
      tf.estimator.EvalSpec(dataset, steps=2, throttle_secs=0))
  report = hook.report()
  assert report['steps_timed'] == 6
  assert report['pauses']['checkpoint']['count'] == 1  # After step 3; that of step 6 is the end.
  # The evaluation takes longer than all steps, and is no part of them.
  assert report['pauses']['checkpoint']['secs'] > .1 > max(hook.times[1:])
  assert report['verdict'] != 'overhead-bound'
  assert report['steady_steps_per_sec'] > report['steps_per_sec']
  assert report['wall_secs'] > report['pauses']['checkpoint']['secs']
  assert strict((tmp_path / 'throughput.json').read_text())['global_step'] == 6


def test_an_unknown_batch_size(tmp_path):
  hook = TimeHistory(report_dir=tmp_path, warmup_steps=0)
  canned(tmp_path).train(dataset, steps=4, hooks=[hook])
  report = hook.report()
  for name in ('examples_per_sec', 'examples_per_sec_per_replica', 'steady_examples_per_sec',
               'examples', 'global_batch_size', 'per_replica_batch_size'):
    assert report[name] is None
  assert report['steps_per_sec'] == pytest.approx(4 / report['wall_secs'])
  assert 'steps/sec' in (tmp_path / 'report' / 'index.html').read_text(encoding='utf-8')


def test_without_an_estimator():
  hook = TimeHistory(batch_size=1)
  assert hook.report() == {} and hook.times == []
  with tf.Graph().as_default():
    number = tf.random.uniform([])
    session = tf.train.MonitoredSession(hooks=[hook])
  with session:  # The graph is no longer the default graph.
    for _ in range(12):
      session.run(number)
  report = hook.report()
  assert report['global_step'] is None and report['input_wait_secs'] is None
  assert report['steps_timed'] == 2


@pytest.mark.parametrize('task, writes', [
    (('chief', 0), True), (('worker', 0), False), (('worker', 1), False)])
def test_only_the_chief_of_a_cluster_writes(tmp_path, monkeypatch, task, writes):
  monkeypatch.setenv('TF_CONFIG', json.dumps({
      'cluster': {'chief': ['a:1'], 'worker': ['b:1', 'c:1']},
      'task': {'type': task[0], 'index': task[1]}}))
  hook = TimeHistory(batch_size=1, report_dir=tmp_path / 'out')
  with tf.Graph().as_default():
    number = tf.random.uniform([])
    with tf.train.MonitoredSession(hooks=[hook]) as session:
      session.run(number)
  assert (tmp_path / 'out' / 'throughput.json').exists() == writes
  assert hook.report()['num_workers'] == 3


@pytest.mark.parametrize('config', [
    '{', '[' * 100000, '[1]', '"x"', '1', 'null', '{"cluster": 1, "task": 2}',
    '{"cluster": {"worker": 3, "chief": null}, "task": {"index": "x"}}',
    '{"cluster": null, "task": null}', '{"task": {"type": "ps", "index": []}}'])
def test_malformed_tf_config_is_no_cluster(tmp_path, monkeypatch, config):
  hook = TimeHistory(batch_size=1, report_dir=tmp_path / 'out')
  monkeypatch.setenv('TF_CONFIG', config)
  with tf.Graph().as_default():
    number = tf.random.uniform([])
    with tf.train.MonitoredSession(hooks=[hook]) as session:
      session.run(number)
  assert (tmp_path / 'out' / 'throughput.json').exists() and hook.report()['num_workers'] == 1


@pytest.mark.parametrize('error, text', [
    (OSError(28, 'No space left on device'), 'OSError: No space left on device'),
    (ValueError('too large\nfor a page'), 'ValueError: too large for a page')])
def test_a_report_that_cannot_be_written(tmp_path, monkeypatch, caplog, error, text):
  def fail(folder):
    raise error

  monkeypatch.setattr(page, 'write_page', fail)
  canned(tmp_path).train(dataset, steps=2, hooks=[TimeHistory(report_dir=tmp_path)])
  (message,) = [record.getMessage() for record in caplog.records if 'written' in record.msg]
  assert message == 'the report in {} could not be written: {}'.format(tmp_path, text)


def test_an_interrupt_while_the_report_is_written(tmp_path, monkeypatch):
  def interrupt(folder):
    raise KeyboardInterrupt

  monkeypatch.setattr(page, 'write_page', interrupt)
  with pytest.raises(KeyboardInterrupt):
    canned(tmp_path).train(dataset, steps=2, hooks=[TimeHistory(report_dir=tmp_path)])


@pytest.mark.parametrize('arguments, message', [
    ({'batch_size': 0}, 'batch_size must be an integer of at least 1: batch_size=0'),
    ({'batch_size': 2.5}, 'batch_size must be an integer'),
    ({'batch_size': True}, 'batch_size must be an integer'),
    ({'warmup_steps': -1}, 'warmup_steps must be an integer of at least 0: warmup_steps=-1'),
])
def test_invalid_arguments(arguments, message):
  with pytest.raises(ValueError, match=message):
    TimeHistory(**arguments)


def train_in_session(hooks, steps, make_fetches=lambda step: step):
  """Trains on the numbers 0, 1, 2, … in a MonitoredTrainingSession; returns what was read."""
  read = []
  with tf.Graph().as_default():
    numbers = tf.data.Dataset.range(100)
    number = tf.data.make_one_shot_iterator(numbers).get_next()
    step = tf.train.create_global_step().assign_add(1)
    fetches = make_fetches([step, number])
    with tf.train.MonitoredTrainingSession(
        hooks=[tf.train.StopAtStepHook(last_step=steps), *hooks]) as session:
      while not session.should_stop():
        read.append(session.run(fetches))
  return read


def with_other_iterators(fetches):
  """Adds iterators that a step does not use, or may not use."""
  tf.data.make_one_shot_iterator(tf.data.Dataset.range(3)).get_next()
  tf.data.make_initializable_iterator(tf.data.Dataset.range(3)).get_next()
  first, second = (tf.data.make_one_shot_iterator(tf.data.Dataset.range(100)) for _ in range(2))
  return fetches + [tf.cond(tf.less(fetches[1], 5), first.get_next, second.get_next)]


def test_other_iterators_of_the_graph_do_not_advance():
  hook = TimeHistory(batch_size=1, warmup_steps=0)
  read = train_in_session([hook], 10, with_other_iterators)
  assert [number for _, number, _ in read] == list(range(10))
  assert hook.report()['steps_timed'] == 10 and hook.report()['input_wait_secs'] is not None


def test_a_run_that_reads_no_batch_does_not_advance_the_input():
  hook = TimeHistory()
  with tf.Graph().as_default():
    number = tf.data.make_one_shot_iterator(tf.data.Dataset.range(100)).get_next()
    step = tf.train.create_global_step()
    with tf.train.MonitoredTrainingSession(hooks=[hook]) as session:
      read = []
      for _ in range(4):
        session.run(step)
        read.append(session.run(number))
  assert read == [0, 1, 2, 3]


class RunsBeforeTheStep(tf.train.SessionRunHook):
  """A hook that uses the session before each step."""

  def begin(self):
    self._number = tf.constant(1)

  def before_run(self, run_context):
    run_context.session.run(self._number)


def test_a_hook_that_runs_the_session_before_the_step():
  def slow(number):
    time.sleep(.03)
    return number

  hook = TimeHistory(warmup_steps=1)
  train_in_session([hook, RunsBeforeTheStep()], 5, lambda fetches: [
      fetches[0], tf.py_func(slow, [fetches[1]], tf.int64)])
  assert min(hook.times) > .03
