"""`TimeHistory` under a clock that is given to it."""

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.process.start_up import StartUpTimer
from estimator_train.training.hooks import record_steps
from estimator_train.training.hooks.record_steps import RecordSteps


def run_steps(history, count, step=tf.no_op):
  with tf.Graph().as_default():
    tf.train.get_or_create_global_step()
    work = step()
    with tf.train.MonitoredSession(hooks=[history]) as session:
      for _ in range(count):
        try:
          session.run(work)
        except tf.errors.InvalidArgumentError:
          pass


def test_times_of_each_step():
  now = iter([1., 1.5, 2., 4., 5., 5.25])
  history = RecordSteps(StartUpTimer(), clock=lambda: next(now))
  run_steps(history, 3)
  assert list(history.began) == [1., 2., 5.]
  assert list(history.ended) == [1.5, 4., 5.25]
  assert np.isnan(history.waited).all(), 'there is no input to wait for'


def test_a_long_run_keeps_its_last_steps(monkeypatch):
  monkeypatch.setattr(record_steps, '_NUM_STEPS_KEPT', 3)
  now = iter(range(100))
  history = RecordSteps(StartUpTimer(), clock=lambda: next(now))
  run_steps(history, 13)
  assert history.discarded_steps == 9 and len(history.waited) == 4
  assert list(history.began) == [18, 20, 22, 24] and list(history.ended) == [19, 21, 23, 25]


def test_the_way_to_the_first_step():
  now = iter([10., 12., 15., 21., 99.])
  start_up = StartUpTimer(clock=lambda: next(now), process_age=lambda: 1.)
  run_steps(RecordSteps(start_up), 2)
  assert start_up.secs == {'import': 1., 'graph': 2., 'session': 3., 'first_step': 6.}


def test_a_run_that_failed_is_no_step():
  now = iter([1., 2., 3., 4., 5.])
  history = RecordSteps(StartUpTimer(), clock=lambda: next(now))

  def fails_at_first():
    runs = tf.get_variable('runs', [], tf.int32, tf.zeros_initializer(), use_resource=True)
    return tf.debugging.assert_greater(runs.assign_add(1), 1)

  run_steps(history, 3, fails_at_first)
  assert list(history.began) == [2., 4.] and list(history.ended) == [3., 5.]
