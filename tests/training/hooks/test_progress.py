"""The hooks of a run, each in a session of its own."""

import contextlib
import io
import itertools
import logging
import math
import os
import signal
import sys

import pytest
import tensorflow.compat.v1 as tf

from estimator_train.process.signals import SignalState
from estimator_train.training import schedules
from estimator_train.training.hooks import (
  batch_metrics,
  epochs,
  progress,
  signals as signal_hooks,
  text as text_lib,
)
from estimator_train.training.hooks.step_counter import StepCounter


@pytest.fixture
def counter():
  return StepCounter()


@pytest.fixture
def metrics():
  return batch_metrics.BatchMetrics()


@pytest.fixture
def run_steps(counter, metrics):
  """Runs steps whose loss is taken from a list; their accuracy is a tenth of it."""
  def run(losses, run_hooks, before_step=lambda step: None, has_accuracy=True):
    with tf.Graph().as_default():
      step = tf.train.get_or_create_global_step()
      train_op = step.assign_add(1)
      with tf.control_dependencies([train_op]):
        loss = tf.gather(tf.constant(losses), step.read_value() - 1)
      tf.add_to_collection(tf.GraphKeys.LOSSES, loss)
      if has_accuracy:  # A tenth of the loss.
        is_first = tf.cast(tf.range(100) < tf.cast(loss * 10 + .5, tf.int32), tf.int64)
        batch_metrics.add_accuracy(tf.ones([100], tf.int64), tf.one_hot(is_first, 2))
      done = 0
      with tf.train.MonitoredSession(hooks=[counter, metrics, *run_hooks]) as session:
        while not session.should_stop() and done < len(losses):
          before_step(done + 1)
          session.run(train_op)
          done += 1
      return done

  return run


def readings(*secs):
  """Returns a clock that shows these times, one after the other."""
  return iter(secs).__next__


@pytest.fixture
def make_progress(counter, metrics, tmp_path):
  def make(stop_step, log_every_steps, **more):
    return progress.ShowProgress(counter, metrics, str(tmp_path), stop_step, log_every_steps,
                                 examples_per_step=10, **more)

  return make


def lines_of(caplog):
  return [record.getMessage() for record in caplog.records if record.name == 'estimator_train']


def test_progress_lines(run_steps, make_progress, caplog, tmp_path):
  caplog.set_level(logging.INFO, 'estimator_train')
  run_steps([1., 2., 3., 4., 5.], [make_progress(
      5, log_every_steps=2, num_examples=20,
      clock=readings(10., 14., 15., 17.))])
  assert lines_of(caplog) == [
      'step 2/5 (epoch 1/3): loss 2.0000, accuracy 0.2000, 5 examples/sec, 6 s left',
      'step 4/5 (epoch 2/3): loss 4.0000, accuracy 0.4000, 20 examples/sec, 0 s left',
      'step 5/5 (epoch 3/3): loss 5.0000, accuracy 0.5000, 5 examples/sec, 0 s left']


def test_progress_of_a_model_without_accuracy_on_infinite_data(run_steps, make_progress, caplog):
  caplog.set_level(logging.INFO, 'estimator_train')
  run_steps([1., 2.], [make_progress(2, log_every_steps=2,
                                     clock=readings(10., 14.))], has_accuracy=False)
  assert lines_of(caplog) == ['step 2/2: loss 2.0000, 5 examples/sec, 0 s left']


def test_tensorboard_gets_the_rate(run_steps, make_progress, tmp_path):
  # The clock is read when the session is created, and after steps 2 and 3.
  run_steps([1., 2., 3.], [make_progress(3, log_every_steps=2,
                                         clock=readings(10., 14., 15.))])
  tf.summary.FileWriterCache.clear()
  (path,) = tmp_path.glob('events*')
  found = {(event.step, value.tag): value.simple_value
           for event in tf.train.summary_iterator(str(path)) for value in event.summary.value}
  assert found == {(2, 'examples_per_sec'): 5., (2, 'step_secs'): 2.,
                   (3, 'examples_per_sec'): 10., (3, 'step_secs'): 1.}


def test_the_learning_rate_is_that_of_the_step(run_steps, make_progress, tmp_path):
  run_steps([1., 2., 3.], [make_progress(3, log_every_steps=1,
                                         schedule=schedules.Piecewise([0.5, 0.25], [2]))])
  tf.summary.FileWriterCache.clear()
  (path,) = tmp_path.glob('events*')
  assert [(event.step, value.simple_value) for event in tf.train.summary_iterator(str(path))
          for value in event.summary.value if value.tag == 'learning_rate'] == [
              (1, 0.5), (2, 0.5), (3, 0.25)]


@pytest.mark.parametrize('columns, shown', [
    (120, 'step 3/4, epoch 2/2, loss 3.0000, accuracy 0.3000, 12 examples/sec, 1 s left |'),
    (60, '3/4 ep 2/2 loss 3.000 acc 0.300 12/s 1 s'),
    (20, '3/4 ep 2/2 loss 3.0')])
def test_bar_on_a_terminal(run_steps, make_progress, monkeypatch, tmp_path, columns, shown):
  terminal = io.StringIO()
  terminal.isatty = lambda: True
  monkeypatch.setattr(sys, 'stderr', terminal)
  monkeypatch.setenv('COLUMNS', str(columns))
  # The clock moves by 0.5 s at each reading: the bar is redrawn at steps 1, 3 and 4.
  hook = make_progress(4, log_every_steps=1000, num_examples=20,
                       clock=(number / 2 for number in itertools.count()).__next__)
  run_steps([1., 2., 3., 4.], [hook])
  hook.close()
  bars = [text for text in terminal.getvalue().split('\r') if text.strip()]
  assert all(len(text) <= columns for text in bars)
  assert any(text.startswith(shown) for text in bars), bars


def test_a_bar_is_redrawn_once_a_second(run_steps, make_progress, monkeypatch, tmp_path):
  terminal = io.StringIO()
  terminal.isatty = lambda: True
  monkeypatch.setattr(sys, 'stderr', terminal)
  monkeypatch.setenv('COLUMNS', '60')
  clock = [0.]
  hook = make_progress(100, log_every_steps=100, clock=lambda: clock[0])

  def tick(step):
    clock[0] += .125

  run_steps([float(step) for step in range(40)], [hook], tick)
  hook.close()
  steps = [int(text.split('/')[0]) for text in terminal.getvalue().split('\r')
           if '/100' in text]
  assert sorted(set(steps)) == [1, 9, 17, 25, 33]


def test_bar_in_a_notebook_without_widgets(run_steps, make_progress, jupyter_kernel, capsys):
  hook = make_progress(4, log_every_steps=1000, num_examples=20,
                       clock=(number / 2 for number in itertools.count()).__next__)
  run_steps([1., 2., 3., 4.], [hook])
  hook.close()
  lines = capsys.readouterr().err.split('\r')
  assert lines[-1].startswith('step 4/4, epoch 2/2, loss 4.0000, accuracy 0.4000, 10 examples/sec')
  assert lines[-1].endswith('█|\n')


@pytest.mark.parametrize('fails', [False, True])
def test_a_bar_is_full_unless_training_fails(run_steps, make_progress, jupyter_kernel, fails):
  """A widget that is not full is red."""
  hook = make_progress(100, log_every_steps=1000)

  def fail(step):
    assert not (fails and step == 3)

  with contextlib.suppress(AssertionError):
    run_steps([1., 2., 3.], [hook], fail)
  hook.close()
  assert (hook._bar.n < hook._bar.total) == fails


@pytest.mark.parametrize('secs, text', [(0., '0 s'), (59.4, '59 s'), (60., '1:00'), (185., '3:05'),
                                        (7385., '2:03:05')])
def test_duration(secs, text):
  assert text_lib.format_duration(secs) == text


@pytest.mark.parametrize('step, epochs', [(1, 1), (46, 1), (47, 1), (48, 2), (94, 2), (469, 10)])
def test_epochs_of_steps(step, epochs):
  # 6,000 examples by 128: epoch 1 ends within step 47, epoch 10 within step 469.
  assert text_lib.count_epochs(step, 6000, 128) == epochs


def test_epoch_lines(run_steps, counter, metrics, caplog):
  caplog.set_level(logging.INFO, 'estimator_train')
  # Of 25 examples, by 10 a step: epochs end in steps 3, 5 and 8.
  run_steps([1., 2., 3., 4., 5., 6., 7., 8.], [epochs.LogEpochs(
      schedules.Piecewise([0.5, 0.25], [4]), 25, 10, 8, counter, metrics,
      readings(0., 3., 3., 4., 4., 7., 7.))])
  assert lines_of(caplog) == [
      'epoch 1/3: loss 2.0000, accuracy 0.2000, 3 s, 10 examples/sec',
      'epoch 2/3: loss 4.5000, accuracy 0.4500, 1 s, 20 examples/sec, learning rate 0.25',
      'epoch 3/3: loss 7.0000, accuracy 0.7000, 3 s, 10 examples/sec']


def test_an_epoch_without_the_steps_that_loss_scaling_skips(run_steps, counter, metrics, caplog):
  caplog.set_level(logging.INFO, 'estimator_train')
  run_steps([1., math.nan, 3.], [epochs.LogEpochs(None, 30, 10, 3, counter, metrics,
                                                  readings(0., 3., 3.))])
  assert lines_of(caplog) == ['epoch 1/1: loss 2.0000, accuracy 0.2000, 3 s, 10 examples/sec']


class Engine:
  """Stands in for one with some workers."""

  def __init__(self, size=1, announced_stop_step=None):
    self.size, self.announced_stop_step = size, announced_stop_step

  def stop_all_at(self, global_step):
    self.announced_stop_step = min(
        step for step in (self.announced_stop_step, global_step) if step is not None)


@pytest.fixture
def signals():
  with SignalState() as signals:
    yield signals


@pytest.mark.parametrize('signum', [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_after_its_step(run_steps, counter, signum):
  before = signal.getsignal(signum)
  with SignalState() as signals:
    done = run_steps([1.] * 9, [signal_hooks.StopOnSignal(signals, Engine(), counter)],
                     lambda step: os.kill(os.getpid(), signum) if step == 4 else None)
  assert done == 4 and signals.stop_signum == signum
  assert signal.getsignal(signum) is before


def test_a_second_sigint_ends_at_once(run_steps, counter, signals):
  def interrupt_twice(step):
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGINT)

  with pytest.raises(KeyboardInterrupt):
    run_steps([1.] * 9, [signal_hooks.StopOnSignal(signals, Engine(), counter)], interrupt_twice)


def test_a_signal_to_save(run_steps, counter, signals, caplog):
  caplog.set_level(logging.INFO, 'estimator_train')
  saved = []

  def save_now(session):
    saved.append(int(session.run(tf.train.get_global_step())))
    return 'a path'

  def ask(step):
    if step in (2, 5):
      os.kill(os.getpid(), signal.SIGUSR1)

  hooks = [signal_hooks.StopOnSignal(signals, Engine(), counter),
           signal_hooks.SaveOnSignal(signals, save_now)]
  assert run_steps([1.] * 6, hooks, ask) == 6
  assert saved == [2, 5] and caplog.text.count('SIGUSR1: saved a path') == 2
  hooks = [signal_hooks.StopOnSignal(signals, Engine(), counter),
           signal_hooks.SaveOnSignal(signals, None)]
  assert run_steps([1.] * 6, hooks, ask) == 6
  assert saved == [2, 5] and caplog.text.count('SIGUSR1: ignored, because only the chief') == 2


def test_with_others_all_stop_a_little_later(run_steps, counter, signals):
  engine = Engine(2)
  # Steps of a second: one of them suffices to tell the others.
  stop = signal_hooks.StopOnSignal(signals, engine, counter, clock=readings(*range(10)))
  done = run_steps([1.] * 9, [stop],
                   lambda step: os.kill(os.getpid(), signal.SIGTERM) if step == 4 else None)
  assert engine.announced_stop_step == done == 5
  assert stop.has_stopped and signals.stop_signum == signal.SIGTERM


def test_stops_after_the_step_that_asks(run_steps, counter, signals):
  stop = signal_hooks.StopOnSignal(signals, Engine(), counter)
  assert run_steps([1.] * 9, [stop], lambda step: stop.request_stop() if step == 4 else None) == 4
  assert stop.has_stopped and signals.stop_signum is None


def test_a_long_evaluation_does_not_bring_the_stop_nearer(run_steps, counter, signals):
  """The others need the same time to hear of it, which is several of the short steps."""
  engine = Engine(2)
  stop = signal_hooks.StopOnSignal(
      signals, engine, counter, clock=readings(0., .5, 1., 31., 31.5, 32., 32.5, 33., 33.5, 34.))
  assert run_steps([1.] * 9, [stop], lambda step: stop.request_stop() if step == 3 else None) == 5
  assert engine.announced_stop_step == 5  # A second after step 3.


def test_stops_where_another_task_wants(run_steps, counter, signals):
  stop = signal_hooks.StopOnSignal(signals, Engine(2, announced_stop_step=6), counter)
  assert run_steps([1.] * 9, [stop]) == 6
  assert stop.has_stopped and signals.stop_signum is None


def test_runs_to_its_end_where_nobody_asks(run_steps, counter, signals):
  stop = signal_hooks.StopOnSignal(signals, Engine(2), counter)
  assert run_steps([1.] * 9, [stop]) == 9
  assert not stop.has_stopped
