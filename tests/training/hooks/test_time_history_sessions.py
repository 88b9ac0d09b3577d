"""TimeHistory in later trainings of a process, and with sessions that are lost or saved."""

import json
import os
import subprocess
import sys

import pytest
import tensorflow.compat.v1 as tf
from conftest import ROOT
from test_time_history import canned, dataset, train_in_session

from estimator_train import TimeHistory
from estimator_train.tf_patches import session_runs

SCRIPT = """
import json, sys
import test_time_history as tests
import tensorflow.compat.v1 as tf
import estimator_train
case, folder = sys.argv[1:]
if case == 'notebook':
  sys.ps1 = 'In : '
if case == 'converted':
  model = tf.keras.Sequential([tf.keras.layers.Dense(2, 'softmax', input_shape=(4,), name='x')])
  model.compile('sgd', 'sparse_categorical_crossentropy')
  estimator = estimator_train.convert(model, model_dir=folder)
  data = lambda: tests.dataset().map(lambda features, labels: (features['x'], labels))
else:
  estimator, data = tests.canned(folder), tests.dataset
if case == 'later':
  estimator.train(data, steps=1)
hook = estimator_train.TimeHistory()
estimator.train(data, steps=2, hooks=[hook])
print(json.dumps(hook.report()['first_step_parts_secs']))
"""


@pytest.mark.parametrize('case, from_process_start', [
    ('script', True), ('converted', True), ('later', False), ('notebook', False)])
def test_the_start_of_the_time_to_the_first_step(tmp_path, case, from_process_start):
  output = subprocess.run(
      [sys.executable, '-c', SCRIPT, case, str(tmp_path)], stdout=subprocess.PIPE, timeout=120,
      check=True, cwd=str(ROOT / 'tests' / 'training' / 'hooks'), env=dict(
          os.environ, PYTHONPATH=os.pathsep.join([str(ROOT), str(ROOT / 'tests')]))).stdout
  parts = json.loads(output)
  assert ('import' in parts and 'graph' in parts) == from_process_start
  assert list(parts)[-3:] == ['session', 'first_batch', 'first_step']


def test_a_hook_that_is_given_twice(tmp_path):
  hook = TimeHistory(batch_size=16, warmup_steps=0)
  canned(tmp_path).train(dataset, steps=5, hooks=[hook, hook])
  report = hook.report()
  assert (len(hook.times), report['steps_timed'], report['examples']) == (5, 5, 5 * 16)
  assert report['input_wait_secs'] is not None and min(hook.times) > 0


class Aborts(tf.train.SessionRunHook):
  """A hook that fails at the given runs like a lost parameter server; keeps the sessions."""

  def __init__(self, runs):
    self._failing_runs = runs
    self._runs = 0
    self.sessions = []

  def after_create_session(self, session, coord):
    self.sessions.append(session)

  def before_run(self, run_context):
    self._runs += 1
    if self._runs in self._failing_runs:
      raise tf.errors.AbortedError(None, None, 'lost')


def test_repeated_steps_and_the_pause_of_a_recovery(tmp_path):
  hook, aborts = TimeHistory(batch_size=16, warmup_steps=0), Aborts({9, 10})
  canned(tmp_path, save_checkpoints_steps=3).train(dataset, steps=10, hooks=[hook, aborts])
  report = hook.report()
  # The eight steps before the failure end with checkpoint 6, from which training resumes.
  assert (report['global_step'], report['steps_timed'], len(hook.times)) == (10, 10, 10)
  assert report['examples'] == 10 * 16
  # After steps 3 and 9. The pause after step 6 is part of the recovery.
  assert report['pauses']['checkpoint']['count'] == 2
  assert report['pauses']['recovery']['count'] == 1
  assert max(hook.times[1:]) < report['pauses']['recovery']['secs'] < report['wall_secs']
  assert report['steady_steps_per_sec'] > report['steps_per_sec']
  assert len(aborts.sessions) == 3
  assert not any('run' in vars(session) for session in aborts.sessions)


@pytest.mark.parametrize('has_global_step, steps', [(True, 4), (False, 6)])
def test_a_recovery_without_a_checkpoint(has_global_step, steps):
  hook = TimeHistory(warmup_steps=0)
  with tf.Graph().as_default():
    number = tf.random.uniform([])
    if has_global_step:
      number = tf.train.create_global_step().assign_add(1)
    with tf.train.MonitoredSession(hooks=[hook, Aborts({3})]) as session:
      for _ in range(6):
        session.run(number)
  report = hook.report()
  assert report['steps_timed'] == steps  # A new session starts at step 0.
  assert report['global_step'] == (4 if has_global_step else None)
  assert list(report['pauses']) == ([] if has_global_step else ['recovery'])
  parts = report['first_step_parts_secs']
  assert report['time_to_first_step_secs'] == pytest.approx(sum(parts.values()))


class SavesItself(tf.train.SessionRunHook):
  """A hook that saves a checkpoint with a saver of its own after each second step."""

  def __init__(self, path, scope):
    self._path, self._scope, self._runs = str(path), scope, 0

  def begin(self):
    with tf.name_scope(self._scope):
      self._saver = tf.train.Saver([tf.train.get_global_step()])

  def after_run(self, run_context, run_values):
    self._runs += 1
    if self._runs % 2 == 0:
      self._saver.save(run_context.session, self._path, global_step=self._runs)


@pytest.mark.parametrize('scope', ['', 'teacher'])
def test_a_saver_in_a_name_scope(tmp_path, scope):
  hook = TimeHistory(warmup_steps=0)
  train_in_session([SavesItself(tmp_path / 'model', scope), hook], 6)
  assert hook.report()['pauses']['checkpoint']['count'] == 2


class FetchesByName(tf.train.SessionRunHook):
  """A hook that reads the global step by its name, which starts like those of savers."""

  def begin(self):
    tf.identity(tf.train.get_global_step(), name='saved_step')

  def after_run(self, run_context, run_values):
    run_context.session.run('saved_step:0')


def test_a_run_that_only_has_the_name_of_a_saver():
  hook = TimeHistory(warmup_steps=0)
  train_in_session([FetchesByName(), hook], 4)
  assert hook.report()['pauses'] == {}


def test_another_replacement_of_the_method_run_is_kept():
  def traced_run(*args, **options):
    return tf.Session.run(session, *args, **options)

  with tf.Graph().as_default(), tf.Session() as session:
    session.run = traced_run
    first, second = session_runs.SessionRunTimer(), session_runs.SessionRunTimer()
    first.attach(session)
    second.attach(session)
    second_run = session.run
    first.detach()  # The timers are detached in the order of the hooks.
    assert session.run is second_run
    second.detach()
    assert session.run(tf.constant(3)) == 3
    session.run = traced_run
    first.attach(session)
    first.detach()
    assert session.run is traced_run
