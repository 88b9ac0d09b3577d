"""The watchdog of evaluations and exports."""

import time

import pytest

from estimator_train.system import watchdog
from estimator_train.system.library_call import library_call

SECS = 10


@pytest.fixture
def ended(monkeypatch):
  """The messages with which the process would have ended."""
  messages = []
  monkeypatch.setattr(watchdog, '_POLL_SECS', .001)
  monkeypatch.setattr(watchdog, 'end_hanging_process', messages.append)
  return messages


def wait_for(condition):
  deadline = time.monotonic() + SECS
  while not condition() and time.monotonic() < deadline:
    time.sleep(.001)
  assert condition()


def test_only_a_block_without_progress_ends_the_process(ended):
  calls = []
  with watchdog.end_if_hanging('export', .01, lambda: calls.append(0) or len(calls)):
    wait_for(lambda: len(calls) > 50)  # Many times as many as without progress.
  assert not ended
  with watchdog.end_if_hanging('export', 0, calls.clear):
    assert not ended
  assert calls
  with watchdog.end_if_hanging('export', .01, lambda: 7):
    wait_for(lambda: ended)
  assert ended[0] == 'the export made no progress for 0 s (--step_timeout_secs)'


def test_a_process_that_belongs_to_a_caller_is_not_ended(ended):
  measured = []
  with library_call(), watchdog.end_if_hanging('export', .01, lambda: measured.append(0)):
    time.sleep(.1)
  assert not ended and not measured


def test_computing_and_transfers_are_progress(monkeypatch):
  first = watchdog.measure_work()
  wait_for(lambda: sum(range(10 ** 6)) and watchdog.measure_work()[0] > first[0])
  transfers = iter(['rchar: 1\nread_bytes: 0\nwrite_bytes: 5\n', 'rchar: 2\nread_bytes: 0\n'
                    'write_bytes: 5\n', 'rchar: 2\nread_bytes: 0\nwrite_bytes: 6\n', ''])
  monkeypatch.setattr(watchdog.machine, 'read_kernel_file', lambda path: next(transfers))
  monkeypatch.setattr(watchdog.time, 'process_time', lambda: 1.)
  values = [watchdog.measure_work() for _ in range(4)]
  assert values[0] == values[1] and len(set(map(str, values[1:]))) == 3
