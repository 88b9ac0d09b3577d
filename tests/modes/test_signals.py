"""SIGTERM, SIGINT and SIGUSR1 at every point of a run: what it leaves, and that it goes on."""

import json
import os
import shutil
import signal
import threading
import time
import types

import own_models
import pytest
import tensorflow.compat.v1 as tf
from conftest import wait_until

from estimator_train.exporting import h5_model, saved_model
from estimator_train.files import atomic
from estimator_train.inputs import array_cache, image_files
from estimator_train.models import registry as models
from estimator_train.process import signals
from estimator_train.reports import throughput
from estimator_train.training import plan, prepared_model
from estimator_train.training.checkpoints import save_hook
from estimator_train.training.evaluation import evaluator, sample_predictions
from estimator_train.training.hooks import progress, step_counter

COMMON = ['--model=own_models:two_layers', '--dataset=synthetic', '--image_size=8,8',
          '--batch_size=4', '--log_every_steps=1', '--num_gpus=0']
CODES = {signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGHUP: 129}


@pytest.fixture
def inject(monkeypatch):
  """Has a function send a signal, before or after it is called for the n-th time."""
  def injected(owner, name, signum, at=1, after=False, patch=monkeypatch):
    whole, calls = getattr(owner, name), []

    def call(*args, **kwargs):
      calls.append(None)
      if len(calls) == at and not after:
        os.kill(os.getpid(), signum)
      result = whole(*args, **kwargs)
      if len(calls) == at and after:
        os.kill(os.getpid(), signum)
      return result

    patch.setattr(owner, name, call)

  return injected


@pytest.fixture
def train(run_program, tmp_path):
  def run(*arguments):
    return run_program('--model_dir', tmp_path, *(COMMON + list(arguments)))

  return run


def left_over(folder):
  """Returns what nobody should find after a run: locks, and what was written aside."""
  return [path.name for path in folder.rglob('*')
          if path.name == 'run.lock' or path.name.endswith('.part') or '_temp_' in path.name
          or path.name.startswith('temp-')]


def evaluated(done):
  return [int(line.rpartition(' ')[2]) for line in done.err.splitlines()
          if line.startswith('accuracy ')]


STARTS = ((plan, 'find_devices'), (plan.datasets, 'describe'), (models, 'build'),
          (prepared_model, 'to_estimator'),
          (step_counter.StepCounter, 'after_create_session'))


def test_while_starting(train, inject, tmp_path, monkeypatch):
  for number, (owner, name) in enumerate(STARTS):
    signum = sorted(CODES)[number % 3]
    with monkeypatch.context() as patch:
      inject(owner, name, signum, patch=patch)
      done = train('--mode=train', '--train_steps=2')
    assert done.code == CODES[signum] and done.out == '', name
    assert done.err.splitlines()[-1] == 'stopped by ' + signal.Signals(signum).name
    assert 'Traceback' not in done.err and left_over(tmp_path) == []
  done = train('--mode=train', '--train_steps=2')
  assert done.code == 0 and done.result['global_step'] == 2, done.err


def test_a_function_of_the_users_does_not_take_it_for_its_error(train, inject):
  inject(own_models, 'two_layers', signal.SIGTERM)
  done = train('--mode=train', '--train_steps=2')
  assert done.code == 143 and done.err.splitlines()[-1] == 'stopped by SIGTERM'


def test_while_caching(run_program, inject, image_folders, tmp_path):
  cache = tmp_path / 'cache'
  arguments = ['--mode=train', '--dataset=image_folder', '--model=own_models:two_layers',
               '--train_pattern={}/train/*/*.jpeg'.format(image_folders),
               '--eval_pattern={}/test/*/*.jpeg'.format(image_folders), '--image_size=8,8',
               '--batch_size=4', '--train_steps=1', '--cache={}'.format(cache),
               '--model_dir={}'.format(tmp_path / 'model'), '--on_bad_image=skip']
  inject(image_files, 'read_regular_file', signal.SIGINT, at=3)  # In a thread.
  done = run_program(*arguments)
  assert done.code == 130 and left_over(tmp_path) == [], done.err
  assert not (tmp_path / 'model' / 'skipped_images.json').exists()
  inject(array_cache, 'open_writer', signal.SIGTERM)
  done = run_program(*arguments)
  assert done.code == 143, done.err
  done = run_program(*arguments)
  assert done.code == 0, done.err
  assert [path.suffix for path in cache.iterdir()] == ['.npy']


def test_while_another_process_fills_the_cache(run_program, inject, image_folders, tmp_path,
                                               monkeypatch):
  arguments = ['--mode=train', '--dataset=image_folder', '--model=own_models:two_layers',
               '--train_pattern={}/train/*/*.jpeg'.format(image_folders),
               '--eval_pattern={}/test/*/*.jpeg'.format(image_folders), '--image_size=8,8',
               '--batch_size=4', '--train_steps=1', '--cache={}'.format(tmp_path / 'cache'),
               '--model_dir={}'.format(tmp_path / 'model')]
  assert run_program(*arguments).code == 0
  (cache,) = (tmp_path / 'cache').iterdir()
  cache.unlink()
  shutil.rmtree(str(tmp_path / 'model'))
  with atomic.open_locked(str(cache) + '.part'):
    # Only the sleep of this wait: threads of earlier tests sleep too.
    monkeypatch.setattr(atomic, 'time', types.SimpleNamespace(sleep=time.sleep))
    inject(atomic.time, 'sleep', signal.SIGTERM)
    done = run_program(*arguments)
  assert done.code == 143 and 'waiting for another process' in done.err
  signals.install_handlers()  # Forgets the error, which keeps the cache.
  wait_until(lambda: not any(thread.name == 'fill-cache' for thread in threading.enumerate()), 30)


@pytest.mark.parametrize('stage, signum', [
    ('step', signal.SIGHUP), ('save', signal.SIGTERM), ('reports', signal.SIGTERM)])
def test_while_training(train, inject, tmp_path, stage, signum):
  """After the step; in the midst of a checkpoint's; when all is trained, and reports are left."""
  owner, name, at = {
      'step': (progress.ShowProgress, 'before_run', 3),
      'save': (tf.train.Saver, 'save', 2),  # After step 0.
      'reports': (throughput, 'write_throughput_report', 1)}[stage]
  inject(owner, name, signum, at=at)
  done = train('--train_steps=6', '--save_checkpoints_steps=3')
  step = 6 if stage == 'reports' else 3
  assert done.code == CODES[signum] and done.out == '', done.err
  assert done.err.splitlines()[-1] == (
      'stopped by {} at step {}, whose checkpoint is saved; the same command resumes from there'
      .format(signal.Signals(signum).name, step))
  assert save_hook.latest_checkpoint_and_step(str(tmp_path))[1] == step
  assert left_over(tmp_path) == []
  assert json.loads((tmp_path / 'throughput.json').read_text())['global_step'] == step
  assert (tmp_path / 'model.h5').exists() and not (tmp_path / 'evaluation.json').exists()
  done = train('--train_steps=6', '--save_checkpoints_steps=3')
  assert done.code == 0 and done.result['steps_run'] == 6 - step and evaluated(done) == [6]


@pytest.mark.parametrize('signum', sorted(CODES))
def test_while_exporting(train, inject, tmp_path, monkeypatch, signum):
  """At the end of a training, and on its own; the SavedModel is written by then, but aside."""
  exports = tmp_path / 'exports'
  for arguments in (['--train_steps=2'], ['--mode=export']):
    with monkeypatch.context() as patch:
      inject(saved_model, 'write_image_model', signum, after=True, patch=patch)
      done = train('--export_dir={}'.format(exports), *arguments)
    assert done.code == CODES[signum] and done.out == '', done.err
    assert done.err.splitlines()[-1] == 'stopped by ' + signal.Signals(signum).name
    assert list(exports.iterdir()) == [] and left_over(tmp_path) == []
  done = train('--train_steps=2', '--export_dir={}'.format(exports))
  assert done.code == 0 and [str(path) for path in exports.iterdir()] == [
      done.result['export']['path']]


def test_an_evaluation_between_steps_is_cut_short(train, inject, tmp_path, monkeypatch):
  batches = []
  before_run = sample_predictions.SamplePredictionsHook.before_run
  monkeypatch.setattr(sample_predictions.SamplePredictionsHook, 'before_run',
                      lambda *given: batches.append(None) or before_run(*given))
  inject(sample_predictions.SamplePredictionsHook, 'before_run', signal.SIGINT, at=2)
  done = train('--train_steps=4', '--eval_every_steps=2')
  assert done.code == 130 and len(batches) == 2
  assert 'the evaluation of {}/model.ckpt-2 was interrupted'.format(tmp_path) in done.err
  assert ' at step 2, whose checkpoint is saved' in done.err.splitlines()[-1]
  assert (tmp_path / 'throughput.json').exists() and left_over(tmp_path) == []
  assert not (tmp_path / 'evaluation.json').exists()
  assert not (tmp_path / 'best' / 'best.json').exists()
  done = train('--train_steps=4', '--eval_every_steps=2')
  assert done.code == 0 and evaluated(done) == [2, 4]


def test_no_evaluation_begins_after_a_signal(train, inject, monkeypatch):
  monkeypatch.setattr(evaluator.Evaluator, 'evaluate', None)
  inject(progress.ShowProgress, 'before_run', signal.SIGTERM, at=2)
  done = train('--train_steps=6', '--eval_every_steps=2')
  assert done.code == 143 and ' at step 2, whose checkpoint is saved' in done.err.splitlines()[-1]


def test_the_last_evaluation_is_cut_short(train, inject, tmp_path):
  inject(sample_predictions.SamplePredictionsHook, 'before_run', signal.SIGTERM, at=3)
  done = train('--train_steps=2')
  assert done.code == 143 and done.out == '' and 'was interrupted' in done.err
  assert (tmp_path / 'report' / 'curves.json').exists()
  assert not (tmp_path / 'evaluation.json').exists()
  done = train('--train_steps=2')
  assert done.code == 0 and done.result['steps_run'] == 0 and evaluated(done) == [2]


@pytest.mark.parametrize('owner, name, at, step', [
    pytest.param(tf.train.Saver, 'save', 2, 0, id='saving'),
    pytest.param(h5_model, 'write_h5', 1, 2, id='reports')])
def test_a_second_sigint_ends_at_once(train, inject, tmp_path, owner, name, at, step):
  inject(progress.ShowProgress, 'before_run', signal.SIGINT, at=2)
  inject(owner, name, signal.SIGINT, at=at, after=name == 'write_h5')
  done = train('--mode=train', '--train_steps=6')
  assert done.code == 130 and done.err.splitlines()[-1] == 'stopped by SIGINT'
  assert 'Traceback' not in done.err and left_over(tmp_path) == []
  assert save_hook.latest_checkpoint_and_step(str(tmp_path))[1] == step
  assert not (tmp_path / 'model.h5').exists()
  done = train('--mode=train', '--train_steps=6')
  assert done.code == 0 and done.result['steps_run'] == 6 - step


def test_a_signal_to_save(train, inject, tmp_path):
  inject(progress.ShowProgress, 'before_run', signal.SIGUSR1, at=2)
  done = train('--mode=train', '--train_steps=7', '--save_checkpoints_steps=3')
  assert done.code == 0, done.err
  assert done.err.count('SIGUSR1: saved {}/model.ckpt-2\n'.format(tmp_path)) == 1
  # The others come when they would have.
  assert sorted(int(path.suffixes[0][len('.ckpt-'):]) for path in tmp_path.glob('*.index')) == [
      0, 2, 3, 6, 7]


@pytest.mark.parametrize('point', [(prepared_model, 'to_estimator'),
                                   (h5_model, 'save_latest_model')])
def test_nothing_to_save(train, inject, tmp_path, point):
  inject(*point, signal.SIGUSR1)
  done = train('--mode=train', '--train_steps=1')
  assert done.code == 0
  assert done.err.count('SIGUSR1: nothing to save, since no training is in progress') == 1
