"""The watch over steps that do not end, under a clock that is given to it."""

import threading

import pytest
import tensorflow.compat.v1 as tf

from estimator_train.training.hooks import watchdog
from estimator_train.training.hooks.watchdog import StepWatchdog


class Clock:
  now = 0.

  def __call__(self):
    return self.now


@pytest.fixture
def clock():
  return Clock()


def make(clock, is_wait_expected=lambda: False, on_timeout=lambda secs: None, timeout_secs=10):
  return StepWatchdog(timeout_secs, is_wait_expected, on_timeout, clock)


def test_only_a_step_that_runs_can_take_too_long(clock):
  watched = make(clock)
  clock.now = 100.
  assert not watched.has_timed_out()
  watched.before_run(None)
  clock.now = 110.
  assert not watched.has_timed_out()
  clock.now = 110.1
  assert watched.has_timed_out()
  watched.after_run(None, None)
  assert not watched.has_timed_out()


def test_a_session_that_is_not_made(clock):
  watched = make(clock)
  watched.begin()
  clock.now = 11.
  assert watched.has_timed_out()
  watched.after_create_session(None, None)
  assert not watched.has_timed_out()
  watched.close()


def test_an_excuse_starts_the_time_anew(clock):
  excused = True
  watched = make(clock, lambda: excused)
  watched.before_run(None)
  clock.now = 50.
  assert not watched.has_timed_out()
  excused = False
  clock.now = 60.
  assert not watched.has_timed_out()
  clock.now = 61.
  assert watched.has_timed_out()


def test_no_limit(clock):
  watched = make(clock, timeout_secs=float('inf'))
  watched.before_run(None)
  clock.now = 1e9
  assert not watched.has_timed_out()


def test_the_thread_reports_once_and_ends(clock, monkeypatch):
  monkeypatch.setattr(watchdog, '_POLL_SECS', .01)
  reported, was_reported = [], threading.Event()

  def on_timeout(secs):
    reported.append(secs)
    was_reported.set()

  watched = make(clock, on_timeout=on_timeout)
  with tf.Graph().as_default():
    tf.train.get_or_create_global_step()
    step = tf.numpy_function(lambda: was_reported.wait(30), [], tf.bool)
    with tf.train.MonitoredSession(hooks=[watched]) as session:
      threading.Timer(.1, lambda: setattr(clock, 'now', 11.)).start()
      assert session.run(step)
  watched.close()
  assert reported == [10]


def test_the_thread_ends_with_the_run(clock, monkeypatch):
  monkeypatch.setattr(watchdog, '_POLL_SECS', .01)
  watched = make(clock)
  watched.begin()
  thread, = (thread for thread in threading.enumerate() if thread.name == 'step watchdog')
  watched.close()
  thread.join(10)
  assert not thread.is_alive()
