"""SIGTERM, SIGINT and SIGUSR1 at every point of a run: what it leaves, and that it resumes."""

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
from mode_runs import QUICK, evaluated_steps, image_flags

from estimator_train import models
from estimator_train.data import image_source
from estimator_train.exporting import saved_model
from estimator_train.reports import throughput
from estimator_train.system import signals, storage
from estimator_train.training import evaluation_metrics, model as training_model, run as runs
from estimator_train.training.checkpoints import restoring
from estimator_train.training.hooks import progress, step_measurements as step_hooks

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
    return run_program('--model_dir', tmp_path, *QUICK, *arguments)

  return run


def left_over(folder):
  """Returns what nobody should find after a run: locks, and incomplete files."""
  return [path.name for path in folder.rglob('*')
          if path.name == 'run.lock' or path.name.endswith('.part') or '_temp_' in path.name
          or path.name.startswith('temp-')]


STARTS = ((runs, 'find_devices'), (runs.datasets, 'describe'), (models, 'build'),
          (own_models, 'two_layers'),  # A function of the user's does not take it for its error.
          (training_model, 'to_estimator'), (step_hooks.StepMonitor, 'after_create_session'))


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


def test_while_caching(run_program, inject, image_folders, tmp_path, monkeypatch):
  """Also while another process fills the cache."""
  cache, model = tmp_path / 'cache', tmp_path / 'model'

  def run():
    return run_program('--mode=train', *image_flags(image_folders), '--image_size=8,8',
                       '--model=own_models:two_layers', '--batch_size=4', '--train_steps=1',
                       '--cache', cache, '--model_dir', model, '--on_bad_image=skip')

  inject(image_source, 'read_regular_file', signal.SIGINT, at=3)  # In a thread.
  done = run()
  assert done.code == 130 and left_over(tmp_path) == [], done.err
  assert not (model / 'skipped_images.json').exists()
  done = run()
  assert done.code == 0, done.err
  (file,) = cache.iterdir()
  assert file.suffix == '.npy'

  file.unlink()
  shutil.rmtree(str(model))
  with storage.open_locked(str(file) + '.part'):
    # Only the sleep of this wait: threads of earlier tests sleep too.
    monkeypatch.setattr(storage, 'time', types.SimpleNamespace(sleep=time.sleep))
    inject(storage.time, 'sleep', signal.SIGTERM)
    done = run()
  assert done.code == 143 and 'waiting for another process' in done.err
  signals.install_handlers()  # Forgets the error, which keeps the cache.
  wait_until(lambda: not any(thread.name == 'fill-cache' for thread in threading.enumerate()), 30)


# After a step; in the midst of saving, after that of step 0; when only reports are left.
@pytest.mark.parametrize('owner, name, at, signum, step', [
    (progress.ShowProgress, 'before_run', 3, signal.SIGHUP, 3),
    (tf.train.Saver, 'save', 2, signal.SIGTERM, 3),
    (throughput, 'write_throughput_report', 1, signal.SIGTERM, 6)])
def test_while_training(train, inject, tmp_path, owner, name, at, signum, step):
  arguments = ['--train_steps=6', '--save_checkpoints_steps=3',
               '--export_dir={}'.format(tmp_path / 'exports')]
  inject(owner, name, signum, at=at)
  done = train(*arguments)
  assert done.code == CODES[signum] and done.out == '', done.err
  assert done.err.splitlines()[-1] == (
      'stopped by {} at step {}, whose checkpoint is saved; the same command resumes from there'
      .format(signal.Signals(signum).name, step))
  assert restoring.latest_checkpoint_and_step(str(tmp_path))[1] == step
  assert left_over(tmp_path) == [] and list((tmp_path / 'exports').iterdir()) == []
  assert json.loads((tmp_path / 'throughput.json').read_text())['global_step'] == step
  assert (tmp_path / 'model.h5').exists() and not (tmp_path / 'evaluation.json').exists()
  done = train(*arguments)
  assert done.code == 0 and done.result['steps_run'] == 6 - step and evaluated_steps(done) == [6]


def test_while_exporting(train, inject, tmp_path, monkeypatch):
  """At the end of a training, and on its own, when the SavedModel has its temporary name."""
  exports = tmp_path / 'exports'
  for signum, arguments in ((signal.SIGTERM, ['--train_steps=2']),
                            (signal.SIGINT, ['--mode=export'])):
    with monkeypatch.context() as patch:
      inject(saved_model, 'write_warm_up_requests', signum, after=True, patch=patch)
      done = train('--export_dir={}'.format(exports), *arguments)
    assert done.code == CODES[signum] and done.out == '', done.err
    assert done.err.splitlines()[-1] == 'stopped by ' + signal.Signals(signum).name
    assert list(exports.iterdir()) == [] and left_over(tmp_path) == []
  done = train('--train_steps=2', '--export_dir={}'.format(exports))
  assert done.code == 0 and [str(path) for path in exports.iterdir()] == [
      done.result['export']['path']]


# Between steps, an evaluation has two batches; the last one follows the training.
@pytest.mark.parametrize('extra, at, step, evaluated', [
    (['--train_steps=4', '--eval_every_steps=2'], 2, 2, [2, 4]), (['--train_steps=2'], 3, 2, [2])])
def test_an_evaluation_is_cut_short(train, inject, tmp_path, monkeypatch, extra, at, step,
                                    evaluated):
  batches = []
  tensors = evaluation_metrics.SampleCollector.tensors
  monkeypatch.setattr(evaluation_metrics.SampleCollector, 'tensors',
                      lambda *given: batches.append(None) or tensors(*given))
  inject(evaluation_metrics.SampleCollector, 'tensors', signal.SIGINT, at=at)
  done = train(*extra)
  assert done.code == 130 and done.out == '' and len(batches) == at
  assert 'the evaluation of {}/model.ckpt-2 was interrupted'.format(tmp_path) in done.err
  assert ' at step {}, whose checkpoint is saved'.format(step) in done.err.splitlines()[-1]
  assert (tmp_path / 'throughput.json').exists() and left_over(tmp_path) == []
  assert (tmp_path / 'report' / 'curves.json').exists()
  assert not (tmp_path / 'evaluation.json').exists()
  assert not (tmp_path / 'best' / 'best.json').exists()
  done = train(*extra)
  assert done.code == 0 and evaluated_steps(done) == evaluated


def test_a_second_sigint_ends_at_once(train, inject, tmp_path):
  inject(progress.ShowProgress, 'before_run', signal.SIGINT, at=2)
  inject(tf.train.Saver, 'save', signal.SIGINT, at=2)
  done = train('--mode=train', '--train_steps=6')
  assert done.code == 130 and done.err.splitlines()[-1] == 'stopped by SIGINT'
  assert 'Traceback' not in done.err and left_over(tmp_path) == []
  assert restoring.latest_checkpoint_and_step(str(tmp_path))[1] == 0
  assert not (tmp_path / 'model.h5').exists()
  done = train('--mode=train', '--train_steps=6')
  assert done.code == 0 and done.result['steps_run'] == 6


def test_a_signal_to_save(train, inject, tmp_path):
  inject(training_model, 'to_estimator', signal.SIGUSR1)
  inject(progress.ShowProgress, 'before_run', signal.SIGUSR1, at=2)
  done = train('--mode=train', '--train_steps=7', '--save_checkpoints_steps=3')
  assert done.code == 0, done.err
  assert done.err.count('SIGUSR1: nothing to save, since no training is in progress') == 1
  assert done.err.count('SIGUSR1: saved {}/model.ckpt-2\n'.format(tmp_path)) == 1
  # The others come when they would have.
  assert sorted(int(path.suffixes[0][len('.ckpt-'):]) for path in tmp_path.glob('*.index')) == [
      0, 2, 3, 6, 7]
