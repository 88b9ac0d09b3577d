"""SIGTERM, SIGINT and SIGUSR1 at every point of a run: what it leaves, and that it resumes."""

import functools
import itertools
import json
import re
import shutil
import signal
import threading
import time
import types

import own_models
import pytest
import tensorflow.compat.v1 as tf
from conftest import wait_until
from mode_runs import QUICK, evaluated_steps, image_flags, signal_before

from estimator_train.checkpoints import finding
from estimator_train.data import opening
from estimator_train.data.image_source import ImageFileSource
from estimator_train.exporting import saved_model
from estimator_train.model import evaluation_samples, networks
from estimator_train.reports import throughput
from estimator_train.system import locks, signals, storage
from estimator_train.training import (
  preparation as training_model,
  progress,
  run as runs,
  steps as step_hooks,
)

CODES = {signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGHUP: 129}


@pytest.fixture
def inject(monkeypatch):
  return functools.partial(signal_before, monkeypatch)


@pytest.fixture
def train(run_program, tmp_path):
  def run(*arguments):
    return run_program('--model_dir', tmp_path, *QUICK, *arguments)

  return run


def left_over(folder):
  """Returns what nobody should find after a run: locks, and incomplete files."""
  return [path.name for path in folder.rglob('*')
          if re.search(r'^run\.lock$|\.part$|_temp_', path.name)]


def last_line(done, signum):
  """Returns the last line of the log of a run that a signal has stopped."""
  assert done.code == CODES[signum] and done.out == '' and 'Traceback' not in done.err, done.err
  return done.err.splitlines()[-1]


STARTS = ((runs, 'find_devices'), (opening.datasets, 'describe_data_set'),
          (networks, 'build_named_model'),
          (own_models, 'two_layers'),  # A function of the user's does not take it for its error.
          (training_model, 'to_estimator'), (step_hooks.StepMonitor, 'after_create_session'))


def test_while_starting(train, inject, tmp_path):
  for signum, (owner, name) in zip(itertools.cycle(CODES), STARTS):
    inject(owner, name, signum)
    done = train('--mode=train', '--train_steps=2')
    assert last_line(done, signum) == 'stopped by ' + signal.Signals(signum).name, name
    assert left_over(tmp_path) == []
  done = train('--mode=train', '--train_steps=2')
  assert done.code == 0 and done.result['global_step'] == 2, done.err


def test_while_caching(run_program, inject, image_folders, tmp_path, monkeypatch):
  """Also while another process fills the cache."""
  cache, model = tmp_path / 'cache', tmp_path / 'model'

  def run():
    return run_program('--mode=train', *image_flags(image_folders), '--image_size=8,8',
                       '--model=own_models:two_layers', '--batch_size=4', '--train_steps=1',
                       '--cache', cache, '--model_dir', model, '--on_bad_image=skip')

  inject(ImageFileSource, 'read_content', signal.SIGINT, at=3)  # In a thread.
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
    monkeypatch.setattr(locks, 'time', types.SimpleNamespace(sleep=time.sleep))
    inject(locks.time, 'sleep', signal.SIGTERM)
    done = run()
  assert done.code == 143 and 'waiting for another process' in done.err
  signals.install_raising_handlers()  # Forgets the error, which keeps the cache.
  wait_until(lambda: not any(thread.name == 'fill-cache' for thread in threading.enumerate()), 30)


SIX_STEPS = '--train_steps=6 --save_checkpoints_steps=3'


@pytest.mark.parametrize('owner, name, at, signum, flags, step, evaluated', [
    # After a step; in the midst of saving, after that of step 0; when only reports are left.
    (progress.ShowProgress, 'before_run', 3, signal.SIGHUP, SIX_STEPS, 3, [6]),
    (tf.train.Saver, 'save', 2, signal.SIGTERM, SIX_STEPS, 3, [6]),
    (throughput, 'write_throughput_report', 1, signal.SIGTERM, SIX_STEPS, 6, [6]),
    # Between steps, an evaluation has two batches; the last one follows the training.
    (evaluation_samples.SampleCollector, 'tensors_to_fetch', 2, signal.SIGINT,
     '--train_steps=4 --eval_every_steps=2', 2, [2, 4]),
    (evaluation_samples.SampleCollector, 'tensors_to_fetch', 3, signal.SIGINT,
     '--train_steps=2', 2, [2])])
def test_while_training(train, inject, tmp_path, owner, name, at, signum, flags, step, evaluated):
  flags = ['--export_dir={}'.format(tmp_path / 'exports'), *flags.split()]
  calls = inject(owner, name, signum, at=at)
  done = train(*flags)
  assert last_line(done, signum) == (
      'stopped by {} at step {}, whose checkpoint is saved; the same command resumes from there'
      .format(signal.Signals(signum).name, step))
  if name == 'tensors_to_fetch':  # The evaluation is cut short.
    assert 'the evaluation of {}/model.ckpt-2 was interrupted'.format(tmp_path) in done.err
    assert next(calls) == at + 1
  assert finding.find_latest_checkpoint_and_step(str(tmp_path))[1] == step
  assert left_over(tmp_path) == [] and list((tmp_path / 'exports').iterdir()) == []
  assert json.loads((tmp_path / 'throughput.json').read_text())['global_step'] == step
  assert (tmp_path / 'model.h5').exists() and (tmp_path / 'report' / 'curves.json').exists()
  assert not any((tmp_path / name).exists() for name in ('evaluation.json', 'best/best.json'))
  done = train(*flags)
  assert done.code == 0 and done.result['steps_run'] == evaluated[-1] - step
  assert evaluated_steps(done) == evaluated


def test_while_exporting(train, inject, tmp_path):
  """At the end of a training, and on its own, when the SavedModel has its temporary name."""
  exports = tmp_path / 'exports'
  for signum, flag in ((signal.SIGTERM, '--train_steps=2'), (signal.SIGINT, '--mode=export')):
    inject(saved_model, 'write_warm_up_requests', signum)
    done = train('--export_dir={}'.format(exports), flag)
    assert last_line(done, signum) == 'stopped by ' + signal.Signals(signum).name
    assert list(exports.iterdir()) == [] and left_over(tmp_path) == []
  done = train('--train_steps=2', '--export_dir={}'.format(exports))
  assert done.code == 0 and [str(path) for path in exports.iterdir()] == [
      done.result['export']['path']]


def test_a_second_sigint_ends_at_once(train, inject, tmp_path):
  inject(progress.ShowProgress, 'before_run', signal.SIGINT, at=2)
  inject(tf.train.Saver, 'save', signal.SIGINT, at=2)
  done = train('--mode=train', '--train_steps=6')
  assert last_line(done, signal.SIGINT) == 'stopped by SIGINT' and left_over(tmp_path) == []
  assert finding.find_latest_checkpoint_and_step(str(tmp_path))[1] == 0
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
