"""`TimeHistory` under a clock that is given to it."""

import os

import pytest
import tensorflow.compat.v1 as tf

from estimator_train.process_age import STARTED_VARIABLE, process_age_secs
from estimator_train.training.time_history import TimeHistory


def test_times_of_each_step():
  now = iter([1., 1.5, 2., 4., 5., 5.25])
  ages = iter([9., 10.])
  history = TimeHistory(clock=lambda: next(now), process_age=lambda: next(ages))
  assert history.time_to_first_step_secs is None
  with tf.Graph().as_default():
    tf.train.get_or_create_global_step()
    work = tf.no_op()
    with tf.train.MonitoredSession(hooks=[history]) as session:
      for _ in range(3):
        session.run(work)
  assert list(history.began) == [1., 2., 5.]
  assert list(history.ended) == [1.5, 4., 5.25]
  assert history.time_to_first_step_secs == 9.


def test_process_age_grows_from_the_start_of_the_process():
  first = process_age_secs()
  assert 0 < first <= process_age_secs() < 24 * 3600


@pytest.mark.skipif(not os.path.exists('/proc/uptime'), reason='only Linux tells the uptime')
def test_process_age_leaves_out_the_set_up_before_it(monkeypatch):
  with open('/proc/uptime') as file:
    uptime = float(file.read().split()[0])
  first = process_age_secs()
  monkeypatch.setenv(STARTED_VARIABLE, str(uptime - 0.001))
  assert process_age_secs() < first
  # A process that was started later than what its environment tells goes by its own start.
  monkeypatch.setenv(STARTED_VARIABLE, '1')
  assert first <= process_age_secs() < uptime
