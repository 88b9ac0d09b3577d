"""TimeHistory measures the training of any Estimator, and reports only what it observed."""

import functools
import json
import re
import sys
import time
from unittest import mock

import pytest
import tensorflow.compat.v1 as tf
from hook_runs import CLASSES, FEATURES, canned, dataset, train_in_session
from tensorflow.python.client import session as client_session
from tensorflow.python.eager import monitoring

from estimator_train import TimeHistory, convert
from estimator_train.reports import page

# The parts of the time to the first step that belong to the training itself.
OF_TRAINING = ['session', 'first_batch', 'first_step']

# Parses JSON that does not contain nan, which is no JSON.
strict = functools.partial(json.loads, parse_constant=pytest.fail)


def text_of_page(folder):
  text = (folder / 'report' / 'index.html').read_text(encoding='utf-8')
  return re.sub('base64,[^"]*', '', text)


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
  """Two trainings of an Estimator: the folder, the hook, its report after the first one, and a
  second hook that does not know the batch size."""
  folder = tmp_path_factory.mktemp('canned')
  hook = TimeHistory(batch_size=16, report_dir=folder, warmup_steps=3)
  other = TimeHistory(report_dir=folder / 'other', warmup_steps=0)
  estimator = canned(folder, save_summary_steps=5)
  estimator.train(dataset, steps=8, hooks=[hook])
  first = hook.report()
  estimator.train(dataset, steps=20, hooks=[hook, other])
  return folder, hook, first, other


def test_a_canned_estimator(trained):
  _, hook, first, _ = trained
  assert len(hook.times) == 20 and min(hook.times) > 0
  report = hook.report()
  assert (report['steps_timed'], report['warmup_steps']) == (17, 3)
  assert report['examples_per_sec'] == pytest.approx(17 * 16 / report['wall_secs'])
  assert report['session_run_secs']['max'] == pytest.approx(max(hook.times[3:]))
  assert 0 <= report['shares']['input'] <= 1
  assert (report['global_batch_size'], report['per_replica_batch_size']) == (16, 16)
  assert (report['num_replicas'], report['num_workers'], report['devices']) == (1, 1, ['/cpu:0'])
  assert [report[name] for name in ('model', 'dataset', 'distribution_strategy')] == [None] * 3
  # The measurement starts again with a training.
  assert (first['global_step'], first['steps_timed'], report['global_step']) == (8, 5, 28)
  assert list(report['first_step_parts_secs']) == OF_TRAINING
  for figures in (first, report):
    assert figures['time_to_first_step_secs'] == pytest.approx(
        sum(figures['first_step_parts_secs'].values()))


def test_files_of_the_report_and_an_unknown_batch_size(trained):
  folder, hook, _, other = trained
  assert strict((folder / 'throughput.json').read_text()) == strict(json.dumps(hook.report()))
  text = text_of_page(folder)
  assert 'examples/sec' in text and 'None' not in text and 'nan' not in text
  curves = strict((folder / 'report' / 'curves.json').read_text())
  # Each step of the last training, after those that TensorFlow logged in the first one.
  steps = [step for step, _ in curves['train_loss']]
  assert steps[0] == 1 and steps[-21] in (5, 6) and steps[-20:] == list(range(9, 29))
  report = other.report()
  assert {report[name] for name in (
      'examples_per_sec', 'examples_per_sec_per_replica', 'steady_examples_per_sec', 'examples',
      'global_batch_size', 'per_replica_batch_size')} == {None}
  assert report['steps_per_sec'] == pytest.approx(20 / report['wall_secs'])
  assert 'steps/sec' in text_of_page(folder / 'other')


def test_an_input_fn_that_returns_tensors(tmp_path):
  hook = TimeHistory(batch_size=16, report_dir=tmp_path, warmup_steps=2)
  canned(tmp_path).train(tf.estimator.inputs.numpy_input_fn(
      {'x': FEATURES}, CLASSES, 16, num_epochs=None, shuffle=False), steps=12, hooks=[hook])
  report = hook.report()
  assert [report['input_wait_secs'], report['shares']['input'], report['shares']['compute']] == [
      None] * 3
  text = text_of_page(tmp_path)
  assert 'wait for input was not observed' in text and 'compute-bound' not in text


def test_replicas_and_the_pause_of_an_evaluation(tmp_path):
  hook = TimeHistory(batch_size=16, report_dir=tmp_path, warmup_steps=0)
  estimator = canned(
      tmp_path, save_checkpoints_steps=3, session_config=tf.ConfigProto(device_count={'CPU': 2}),
      train_distribute=tf.distribute.MirroredStrategy(['/cpu:0', '/cpu:1']))
  tf.estimator.train_and_evaluate(
      estimator, tf.estimator.TrainSpec(lambda: dataset(8), 6, [hook]),
      tf.estimator.EvalSpec(lambda: time.sleep(.5) or dataset(), steps=2, throttle_secs=0))
  report = hook.report()
  assert (report['num_replicas'], report['per_replica_batch_size']) == (2, 8)
  assert report['devices'] == ['/cpu:0', '/cpu:1']
  assert report['distribution_strategy'] == 'mirrored'
  assert (report['steps_timed'], report['examples']) == (6, 6 * 16)
  assert report['examples_per_sec_per_replica'] == pytest.approx(report['examples_per_sec'] / 2)
  assert 0 < report['shares']['input'] <= 1
  assert 0 < report['input_wait_secs']['p50'] <= report['step_secs']['p50']
  pause = report['pauses']['checkpoint']
  assert pause['count'] == 1 and pause['secs'] > .5  # After step 3; that of step 6 is the end.
  assert sum(hook.times) + pause['secs'] < report['wall_secs'] + hook.times[0]
  assert report['steady_steps_per_sec'] > report['steps_per_sec']
  assert strict((tmp_path / 'throughput.json').read_text())['global_step'] == 6


CLUSTER = '"cluster": {"chief": ["a:1"], "worker": ["b:1", "c:1"]}'


def test_only_the_chief_of_a_cluster_writes(tmp_path, monkeypatch):
  monkeypatch.setattr(page, 'write_page', lambda folder: None)
  for number, (writes, num_workers, config) in enumerate((
      (True, 3, '{%s, "task": {"type": "chief", "index": 0}}' % CLUSTER),
      (False, 3, '{%s, "task": {"type": "worker", "index": 1}}' % CLUSTER),
      *((True, 1, config) for config in (  # What is malformed is no cluster.
          '{', '[' * 100000, 'null', '{"cluster": {"worker": 3}, "task": {"index": "x"}}')))):
    hook = TimeHistory(batch_size=1, report_dir=tmp_path / str(number))
    monkeypatch.setenv('TF_CONFIG', config)
    train_in_session([hook], 1)
    assert (tmp_path / str(number) / 'throughput.json').exists() == writes, config
    assert hook.report()['num_workers'] == num_workers, config


def test_a_report_that_cannot_be_written(tmp_path, monkeypatch, caplog):
  monkeypatch.setattr(page, 'write_page', mock.Mock(side_effect=ValueError('too\nlarge')))
  train_in_session([TimeHistory(report_dir=tmp_path)], 2)
  assert [text for text in caplog.messages if 'could not be written' in text] == [
      'the report in {} could not be written: ValueError: too large'.format(tmp_path)]


def test_invalid_arguments():
  for name, value, message in (
      ('batch_size', 0, 'of at least 1: batch_size=0'), ('batch_size', True, ''),
      ('warmup_steps', -1, 'of at least 0: warmup_steps=-1')):
    with pytest.raises(ValueError, match='{} must be an integer.*{}'.format(name, message)):
      TimeHistory(**{name: value})


@pytest.mark.parametrize('case, parts', [
    ('script', ['import', 'graph', *OF_TRAINING]), ('converted', ['import', 'graph', *OF_TRAINING]),
    ('notebook', OF_TRAINING)])
def test_the_start_of_the_time_to_the_first_step(tmp_path, monkeypatch, own_graph, case, parts):
  """In a process that has had no session; `trained` has one that has trained before."""
  monkeypatch.setattr(client_session, '_python_session_create_counter',
                      monitoring.Counter('/tests/sessions of a ' + case, ''))
  estimator, data = canned(tmp_path), dataset
  if case == 'notebook':
    monkeypatch.setattr(sys, 'ps1', 'In : ', raising=False)
  if case == 'converted':
    model = tf.keras.Sequential([tf.keras.layers.Dense(2, 'softmax', input_shape=(4,), name='x')])
    model.compile('sgd', 'sparse_categorical_crossentropy')
    estimator, data = convert(model, model_dir=str(tmp_path)), lambda: dataset().map(
        lambda features, labels: (features['x'], labels))
  hook = TimeHistory()
  estimator.train(data, steps=2, hooks=[hook])
  assert list(hook.report()['first_step_parts_secs']) == parts


def test_other_iterators_of_the_graph_and_runs_of_other_hooks():
  """The iterators do not advance, and the runs are no part of a step."""
  def with_other_iterators(fetches):
    first, second, unused = (
        tf.data.make_one_shot_iterator(tf.data.Dataset.range(count)) for count in (99, 99, 3))
    unused.get_next()
    tf.data.make_initializable_iterator(tf.data.Dataset.range(3)).get_next()
    wait = tf.py_func(lambda: time.sleep(.05), [], [])
    other_hook.before_run = lambda context: context.session.run(wait)
    return fetches + [tf.cond(tf.less(fetches[1], 5), first.get_next, second.get_next)]

  hook, other_hook = TimeHistory(batch_size=16, warmup_steps=0), tf.train.SessionRunHook()
  read = train_in_session([hook, other_hook], 10, with_other_iterators)
  assert [number for _, number, _ in read] == list(range(10))
  report = hook.report()
  assert (len(hook.times), report['steps_timed'], report['examples']) == (10, 10, 160)
  # A slow machine may delay a step, but not each one.
  assert min(hook.times[1:]) < .05 <= report['between_secs']['p50']
  assert report['input_wait_secs'] is not None


def test_a_run_that_reads_no_batch_does_not_advance_the_input():
  with tf.Graph().as_default():
    number = tf.data.make_one_shot_iterator(tf.data.Dataset.range(100)).get_next()
    step = tf.train.create_global_step()
    with tf.train.MonitoredTrainingSession(hooks=[TimeHistory()]) as session:
      assert [session.run(fetch) for fetch in [step, number] * 4][1::2] == [0, 1, 2, 3]


def test_repeated_steps_and_the_pause_of_a_recovery(tmp_path):
  hook, aborts = TimeHistory(batch_size=16, warmup_steps=0), tf.train.SessionRunHook()
  lost = tf.errors.AbortedError(None, None, 'a lost parameter server')
  aborts.before_run = mock.Mock(side_effect=[None] * 8 + [lost] * 2 + [None] * 9)
  train_in_session([hook, aborts], 10, checkpoint_dir=str(tmp_path),
                   save_checkpoint_steps=3)
  report = hook.report()
  # The eight steps before the failure end with checkpoint 6, from which training resumes.
  assert (report['global_step'], report['steps_timed'], len(hook.times)) == (10, 10, 10)
  assert report['examples'] == 10 * 16
  # After steps 3 and 9. The pause after step 6 is part of the recovery.
  assert report['pauses']['checkpoint']['count'] == 2
  assert report['pauses']['recovery']['count'] == 1
  assert 0 < report['pauses']['recovery']['secs'] < report['wall_secs']
  assert report['steady_steps_per_sec'] > report['steps_per_sec']
