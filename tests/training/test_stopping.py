"""What ends a run: a loss that is not finite, a signal, or a step or an evaluation that hangs."""

import itertools
import os
import signal
import threading
from types import SimpleNamespace

import own_models
import pytest
import tensorflow.compat.v1 as tf
from hook_runs import Steps
from mode_runs import QUICK

from estimator_train.distribution.peers import Peers
from estimator_train.errors import TrainingFailed
from estimator_train.exporting import export as exports
from estimator_train.model import schedules
from estimator_train.system import watchdog
from estimator_train.system.signals import SignalState
from estimator_train.training import stopping

NAN, INF = float('nan'), float('inf')


def test_steps_that_loss_scaling_skips(monkeypatch, caplog):
  """test_summaries.py has a run that ends at the first loss that is not finite."""
  monkeypatch.setattr(stopping, 'MAX_SKIPPED_STEPS', 3)
  steps = Steps()
  hook = stopping.StopAtNonFiniteLoss(steps.last, skips_updates=True,
                                      schedule=schedules.Schedule(.5, 0, [2], [.25]))
  steps.run([1., NAN], hook)
  assert hook.describe_last_losses() == 'the last finite losses: 1.00 at step 1; learning rate 0.5'
  steps.run([NAN, 3., NAN, INF, 4.], hook, start=1)
  assert hook.describe_last_losses() == (
      'the last finite losses: 1.00 at step 1, 3.00 at step 3, 4.00 at step 6; learning rate 0.25')
  assert caplog.text.count('loss scaling skips') == 4 and hook.last_finite_loss == 4.
  with pytest.raises(TrainingFailed, match='the loss is inf at step 9, the 3th such step in a row'):
    steps.run([NAN, NAN, INF, 1.], hook, start=6)


def test_the_last_good_checkpoint(run_program, tmp_path, monkeypatch):
  """An update that spoils the weights, whose own step's loss is finite still.

  A mask that is not finite from the start may be saved.
  """
  monkeypatch.setattr(own_models.Probe, 'gradient', staticmethod(own_models.nan_in_run(5)))
  arguments = [*QUICK, '--model=own_models:probe', '--optimizer=momentum', '--model_dir', tmp_path,
               '--save_checkpoints_steps=1', '--eval_every_steps=1', '--train_steps=4',
               '--num_cpu_replicas=2']
  done = run_program(*arguments)
  assert done.code == 3 and done.out == '' and 'Traceback' not in done.err
  last = done.err.splitlines()[-1]
  assert last.startswith('error: the weights are not finite after step 3 (probe/weight and 1 '
                         'others); the last finite losses: ')
  assert last.endswith(' at step 3; learning rate 0.001; the last good checkpoint is '
                       '{}/model.ckpt-2'.format(tmp_path))
  monkeypatch.setattr(own_models.Probe, 'gradient', staticmethod(tf.ones_like))
  done = run_program(*arguments)
  assert done.code == 0 and 'resuming from step 2' in done.err


def test_a_loss_of_the_test_examples_that_is_not_finite(run_program, tmp_path, monkeypatch):
  monkeypatch.setattr(own_models.Wait, 'delay', SimpleNamespace(
      apply=lambda tensor: tf.keras.backend.in_train_phase(tensor, NAN * tensor)))
  done = run_program(*QUICK, '--train_steps=1', '--model=own_models:slow', '--model_dir', tmp_path)
  assert done.code == 3 and done.err.splitlines()[-1] == (
      'error: the loss of the test examples is nan at step 1 ({}/best/1/model.ckpt-1)'.format(
          tmp_path))
  assert not (tmp_path / 'evaluation.json').exists()


def test_an_evaluation_and_an_export_that_hang(run_well, tmp_path, monkeypatch):
  """The process would end; here, it continues instead.

  On a slow machine, parts that do not hang take longer than the timeout, too.
  """
  messages, released, batches = [], threading.Event(), itertools.count(1)

  def end(message):
    messages.append(message)
    released.set()

  def hang():
    released.clear()
    assert released.wait(60)

  def hang_in_second_batch(value):
    if next(batches) == 2:
      hang()
    return value

  monkeypatch.setattr(watchdog, '_POLL_SECS', .05)
  monkeypatch.setattr(watchdog, 'end_hanging_process', end)
  monkeypatch.setattr(own_models.Wait, 'delay', SimpleNamespace(
      apply=lambda tensor: tf.keras.backend.in_train_phase(
          tensor, lambda: tf.ensure_shape(
              tf.numpy_function(hang_in_second_batch, [tensor], tensor.dtype), tensor.shape))))
  monkeypatch.setattr(exports, '_flush_and_write_checksums', lambda folder: hang())
  run_well(*QUICK, '--train_steps=1', '--model=own_models:slow', '--step_timeout_secs=1',
           '--model_dir', tmp_path / 'run', '--export_dir', tmp_path / 'exports')
  assert list(dict.fromkeys(messages)) == [
      'the {} made no progress for 1 s (--step_timeout_secs)'.format(activity)
      for activity in ('evaluation', 'export')]


@pytest.mark.parametrize('asks', [True, False])
def test_all_stop_after_the_next_step(caplog, asks):
  """Where an evaluation asks for it, which is no signal, or another task has announced it.

  Only the chief saves after a signal: tests/modes/test_signals.py has the chief.
  """
  caplog.set_level('INFO', 'estimator_train')
  peers = Peers()
  peers.stop_step = None if asks else 5
  engine = SimpleNamespace(num_workers=2, peers=peers)
  saver = SimpleNamespace(is_stop_requested=False, save_now=lambda session: 'a') if asks else None
  steps = Steps()

  def before_step(step):
    if step in (2, 4):
      os.kill(os.getpid(), signal.SIGUSR1)
    if asks and step == 4:
      saver.is_stop_requested = True

  with SignalState() as signals:
    stop = stopping.RespondToSignals(signals, engine, steps.last, saver)
    assert steps.run([1.] * 9, stop, before_step=before_step) == 5
  assert stop.has_stopped_training
  assert caplog.text.count('SIGUSR1: saved a' if asks else 'SIGUSR1: ignored, because only') == 2


def test_the_creation_of_the_session_and_each_step_are_limited(monkeypatch):
  monkeypatch.setattr(stopping, '_POLL_SECS', 1000.)
  now, is_waiting = [100.], [False]
  hook = stopping.StepWatchdog(10, lambda: is_waiting[0], lambda: now[0])

  def times_out_at(secs, waits=False):
    now[0], is_waiting[0] = secs, waits
    return hook.has_timed_out()

  hook.begin()
  assert [times_out_at(secs) for secs in (110., 110.1)] == [False, True]
  hook.after_create_session(None, None)
  assert not times_out_at(200.)
  hook.before_run(None)
  assert [times_out_at(secs) for secs in (210., 210.1)] == [False, True]
  assert not times_out_at(250., waits=True), 'the time starts anew'
  assert [times_out_at(secs) for secs in (260., 260.1)] == [False, True]
  hook.after_run(None, None)
  assert not times_out_at(1e9)
  hook.close()
