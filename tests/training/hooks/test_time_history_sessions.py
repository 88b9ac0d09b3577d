"""TimeHistory in later trainings of a process, with any session, and with lost ones."""

import json
import os
import subprocess
import sys
import time

import pytest
import tensorflow.compat.v1 as tf
from conftest import ROOT
from hook_runs import train_in_session

from estimator_train import TimeHistory

# Each case is a process that has imported TensorFlow, but has had no session.
SCRIPT = """
import json, os, sys
import hook_runs
import tensorflow.compat.v1 as tf
import estimator_train

def train(case, folder):
  data, estimator = hook_runs.dataset, hook_runs.canned(folder)
  if case == 'notebook':
    sys.ps1 = 'In : '
  if case == 'later':
    estimator.train(data, steps=1)
  if case == 'converted':
    model = tf.keras.Sequential([tf.keras.layers.Dense(2, 'softmax', input_shape=(4,), name='x')])
    model.compile('sgd', 'sparse_categorical_crossentropy')
    estimator = estimator_train.convert(model, model_dir=folder)
    data = lambda: hook_runs.dataset().map(lambda features, labels: (features['x'], labels))
  hook = estimator_train.TimeHistory()
  estimator.train(data, steps=2, hooks=[hook])
  print(json.dumps([case, list(hook.report()['first_step_parts_secs'])]), flush=True)

for case in ('script', 'converted', 'later', 'notebook'):
  if not os.fork():
    train(case, os.path.join(sys.argv[1], case))
    os._exit(0)
  os.wait()
"""


def test_the_start_of_the_time_to_the_first_step(tmp_path):
  output = subprocess.run(
      [sys.executable, '-c', SCRIPT, str(tmp_path)], stdout=subprocess.PIPE, timeout=240,
      check=True, cwd=str(ROOT / 'tests' / 'training' / 'hooks'),
      env=dict(os.environ, PYTHONPATH=str(ROOT))).stdout
  of_training = ['session', 'first_batch', 'first_step']
  of_process = ['import', 'graph'] + of_training
  assert dict(map(json.loads, output.splitlines())) == {
      'script': of_process, 'converted': of_process, 'later': of_training, 'notebook': of_training}


def test_other_iterators_of_the_graph_do_not_advance():
  def with_other_iterators(fetches):
    first, second, unused = (
        tf.data.make_one_shot_iterator(tf.data.Dataset.range(count)) for count in (99, 99, 3))
    unused.get_next()
    tf.data.make_initializable_iterator(tf.data.Dataset.range(3)).get_next()
    return fetches + [tf.cond(tf.less(fetches[1], 5), first.get_next, second.get_next)]

  hook = TimeHistory(batch_size=1, warmup_steps=0)
  read = train_in_session([hook], 10, with_other_iterators)
  assert [number for _, number, _ in read] == list(range(10))
  assert hook.report()['steps_timed'] == 10 and hook.report()['input_wait_secs'] is not None


def test_a_run_that_reads_no_batch_does_not_advance_the_input():
  with tf.Graph().as_default():
    number = tf.data.make_one_shot_iterator(tf.data.Dataset.range(100)).get_next()
    step = tf.train.create_global_step()
    with tf.train.MonitoredTrainingSession(hooks=[TimeHistory()]) as session:
      assert [session.run(fetch) for fetch in [step, number] * 4][1::2] == [0, 1, 2, 3]


class RunsBeforeTheStep(tf.train.SessionRunHook):
  """A hook that uses the session before each step."""

  def begin(self):
    self._number = tf.constant(1)

  def before_run(self, run_context):
    run_context.session.run(self._number)


def test_a_hook_that_is_given_twice_with_one_that_runs_the_session_before_the_step():
  at = []

  def note(number):
    at.append(time.perf_counter())
    return number

  hook = TimeHistory(batch_size=16, warmup_steps=0)
  train_in_session([hook, RunsBeforeTheStep(), hook], 5, lambda fetches: [
      fetches[0], tf.py_func(note, [fetches[1]], tf.int64)])
  assert all(began < now < ended for began, now, ended in zip(
      hook._steps.began, at, hook._steps.ended))
  report = hook.report()
  assert (len(at), len(hook.times), report['steps_timed'], report['examples']) == (5, 5, 5, 80)
  assert report['input_wait_secs'] is not None


class Aborts(tf.train.SessionRunHook):
  """A hook that fails at the given runs like a lost parameter server; keeps the sessions."""

  def __init__(self, runs):
    self._failing_runs, self._runs, self.sessions = runs, 0, []

  def after_create_session(self, session, coord):
    self.sessions.append(session)

  def before_run(self, run_context):
    self._runs += 1
    if self._runs in self._failing_runs:
      raise tf.errors.AbortedError(None, None, 'lost')


def test_repeated_steps_and_the_pause_of_a_recovery(tmp_path):
  hook, aborts = TimeHistory(batch_size=16, warmup_steps=0), Aborts({9, 10})
  train_in_session([hook, aborts], 10, checkpoint_dir=str(tmp_path), save_checkpoint_steps=3)
  report = hook.report()
  # The eight steps before the failure end with checkpoint 6, from which training resumes.
  assert (report['global_step'], report['steps_timed'], len(hook.times)) == (10, 10, 10)
  assert report['examples'] == 10 * 16
  # After steps 3 and 9. The pause after step 6 is part of the recovery.
  assert report['pauses']['checkpoint']['count'] == 2
  assert report['pauses']['recovery']['count'] == 1
  assert 0 < report['pauses']['recovery']['secs'] < report['wall_secs']
  assert report['steady_steps_per_sec'] > report['steps_per_sec']
  assert len(aborts.sessions) == 3
  assert not any('run' in vars(session) for session in aborts.sessions)


def test_a_recovery_without_a_checkpoint_or_a_global_step():
  hook = TimeHistory(warmup_steps=0)
  assert hook.report() == {} and hook.times == []
  with tf.Graph().as_default():
    number = tf.random.uniform([])
    with tf.train.MonitoredSession(hooks=[hook, Aborts({3})]) as session:
      for _ in range(6):
        session.run(number)
  report = hook.report()
  assert report['steps_timed'] == 6 and report['global_step'] is None
  assert list(report['pauses']) == ['recovery']
  assert report['time_to_first_step_secs'] == pytest.approx(
      sum(report['first_step_parts_secs'].values()))
