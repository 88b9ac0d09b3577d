"""The hooks of a run, each in a session of its own."""

import io
import logging
import os
import signal
import sys

import pytest
import tensorflow.compat.v1 as tf

from estimator_train.process.signals import SignalState
from estimator_train.training import schedules
from estimator_train.training.hooks import progress, signals as signal_hooks
from estimator_train.training.hooks.step_counter import StepCounter


@pytest.fixture
def counter():
  return StepCounter()


@pytest.fixture
def run_steps(counter):
  """Runs steps whose loss is taken from a list; returns the global step that was reached."""
  def run(losses, run_hooks, before_step=lambda step: None):
    with tf.Graph().as_default():
      step = tf.train.get_or_create_global_step()
      train_op = step.assign_add(1)
      with tf.control_dependencies([train_op]):
        loss = tf.gather(tf.constant(losses), step.read_value() - 1)
      tf.add_to_collection(tf.GraphKeys.LOSSES, loss)
      done = 0
      with tf.train.MonitoredSession(hooks=[counter, *run_hooks]) as session:
        while not session.should_stop() and done < len(losses):
          before_step(done + 1)
          session.run(train_op)
          done += 1
      return done

  return run


def readings(*secs):
  """Returns a clock that shows these times, one after the other."""
  return iter(secs).__next__


def test_progress_lines(run_steps, counter, caplog, tmp_path):
  caplog.set_level(logging.INFO, 'estimator_train')
  run_steps([1., 2., 3., 4., 5.],
            [progress.Progress(counter, str(tmp_path), 5, log_every_steps=2, examples_per_step=10,
                               clock=readings(10., 14., 15., 17.))])
  assert [record.getMessage() for record in caplog.records if record.name == 'estimator_train'] == [
      'step 2/5: loss 2.0000, 5 examples/sec, 6 s left',
      'step 4/5: loss 4.0000, 20 examples/sec, 0 s left',
      'step 5/5: loss 5.0000, 5 examples/sec, 0 s left']


def test_tensorboard_gets_the_rate(run_steps, counter, tmp_path):
  # When the session was there, and after steps 2 and 3.
  run_steps([1., 2., 3.], [progress.Progress(
      counter, str(tmp_path), 3, log_every_steps=2, examples_per_step=10,
      clock=readings(10., 14., 15.))])
  tf.summary.FileWriterCache.clear()
  (path,) = tmp_path.glob('events*')
  found = {(event.step, value.tag): value.simple_value
           for event in tf.train.summary_iterator(str(path)) for value in event.summary.value}
  assert found == {(2, 'examples_per_sec'): 5., (2, 'step_secs'): 2.,
                   (3, 'examples_per_sec'): 10., (3, 'step_secs'): 1.}


def test_the_learning_rate_is_that_of_the_step(run_steps, counter, caplog, tmp_path):
  caplog.set_level(logging.INFO, 'estimator_train')
  run_steps([1., 2., 3.], [progress.Progress(
      counter, str(tmp_path), 3, log_every_steps=1, examples_per_step=10,
      schedule=schedules.Piecewise([0.5, 0.25], [2]))])
  tf.summary.FileWriterCache.clear()
  assert [record.getMessage().split(', ')[1] for record in caplog.records] == [
      'learning rate 0.5', 'learning rate 0.5', 'learning rate 0.25']
  (path,) = tmp_path.glob('events*')
  assert [(event.step, value.simple_value) for event in tf.train.summary_iterator(str(path))
          for value in event.summary.value if value.tag == 'learning_rate'] == [
              (1, 0.5), (2, 0.5), (3, 0.25)]


def test_progress_bar_on_a_terminal(run_steps, counter, monkeypatch, tmp_path):
  terminal = io.StringIO()
  terminal.isatty = lambda: True
  monkeypatch.setattr(sys, 'stderr', terminal)
  hook = progress.Progress(counter, str(tmp_path), 4, log_every_steps=2, examples_per_step=10)
  run_steps([1., 2., 3., 4.], [hook])
  hook.close()
  shown = terminal.getvalue().splitlines()[-1]
  assert '4/4 [' in shown and 'loss 4.0000, ' in shown and 'examples/sec' in shown


class Engine:
  """Stands in for one with some workers."""

  def __init__(self, size=1, stop_at=None):
    self.size, self.stop_at = size, stop_at

  def stop_all_at(self, global_step):
    self.stop_at = min(step for step in (self.stop_at, global_step) if step is not None)


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
  assert done == 4 and signals.stop == signum
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
  assert saved == [2, 5] and caplog.text.count('SIGUSR1: it is the chief that saves') == 2


def test_with_others_all_stop_a_little_later(run_steps, counter, signals):
  engine = Engine(2)
  # Steps of a second: one of them suffices to tell the others.
  stop = signal_hooks.StopOnSignal(signals, engine, counter, clock=readings(*range(10)))
  done = run_steps([1.] * 9, [stop],
                   lambda step: os.kill(os.getpid(), signal.SIGTERM) if step == 4 else None)
  assert engine.stop_at == done == 5
  assert stop.has_stopped and signals.stop == signal.SIGTERM


def test_stops_after_the_step_that_asks(run_steps, counter, signals):
  stop = signal_hooks.StopOnSignal(signals, Engine(), counter)
  assert run_steps([1.] * 9, [stop], lambda step: stop.request() if step == 4 else None) == 4
  assert stop.has_stopped and signals.stop is None


def test_a_long_evaluation_does_not_bring_the_stop_nearer(run_steps, counter, signals):
  """The others need the same time to hear of it, which is several of the short steps."""
  engine = Engine(2)
  stop = signal_hooks.StopOnSignal(
      signals, engine, counter, clock=readings(0., .5, 1., 31., 31.5, 32., 32.5, 33., 33.5, 34.))
  assert run_steps([1.] * 9, [stop], lambda step: stop.request() if step == 3 else None) == 5
  assert engine.stop_at == 5  # A second after step 3.


def test_stops_where_another_task_wants(run_steps, counter, signals):
  stop = signal_hooks.StopOnSignal(signals, Engine(2, stop_at=6), counter)
  assert run_steps([1.] * 9, [stop]) == 6
  assert stop.has_stopped and signals.stop is None


def test_runs_to_its_end_where_nobody_asks(run_steps, counter, signals):
  stop = signal_hooks.StopOnSignal(signals, Engine(2), counter)
  assert run_steps([1.] * 9, [stop]) == 9
  assert not stop.has_stopped
