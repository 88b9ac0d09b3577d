"""How long the process has been running, and the parts of that time."""

import os

import pytest

from estimator_train.process.start_up import START_TIME_VARIABLE, StartUpTimer, process_age_secs


def test_process_age_grows_from_the_start_of_the_process():
  first = process_age_secs()
  assert 0 < first <= process_age_secs() < 24 * 3600


@pytest.mark.skipif(not os.path.exists('/proc/uptime'), reason='only Linux tells the uptime')
def test_process_age_leaves_out_the_set_up_before_it(monkeypatch):
  with open('/proc/uptime') as file:
    uptime = float(file.read().split()[0])
  first = process_age_secs()
  monkeypatch.setenv(START_TIME_VARIABLE, str(uptime - 0.001))
  assert process_age_secs() < first
  # A process that was started later than what its environment tells goes by its own start.
  monkeypatch.setenv(START_TIME_VARIABLE, '1')
  assert first <= process_age_secs() < uptime


def test_parts_add_up():
  now = iter([100., 101., 103., 103.5, 110.])
  start_up = StartUpTimer(clock=lambda: next(now), process_age=lambda: 2.5)
  for part in ('data', 'model', 'data'):
    start_up.end_phase(part)
  start_up.end_first_step(4.)
  assert start_up.secs == {'import': 2.5, 'data': 1.5, 'model': 2., 'first_batch': 4.,
                           'first_step': 2.5}
  assert list(start_up.secs)[-2:] == ['first_batch', 'first_step']
