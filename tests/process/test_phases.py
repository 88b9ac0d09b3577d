"""Phases of a start are logged when they begin, and again for as long as they last."""

import itertools
import logging
import threading

from estimator_train.process import phases
from estimator_train.process.phases import Phase

LOG = logging.getLogger('estimator_train')


class Lines(logging.Handler):
  """Collects lines, and reports when there are so many."""

  def __init__(self, count):
    super().__init__()
    self.lines, self.count, self.are_there = [], count, threading.Event()

  def emit(self, record):
    self.lines.append(record.getMessage())
    if len(self.lines) >= self.count:
      self.are_there.set()


def test_a_long_phase_is_logged_again_and_again(monkeypatch):
  handler = Lines(3)
  monkeypatch.setattr(LOG, 'handlers', [handler])
  monkeypatch.setattr(LOG, 'level', logging.INFO)
  before = threading.active_count()
  with Phase('building the model', lambda: itertools.repeat(0.)):
    assert handler.are_there.wait(60)
  assert handler.lines[0] == 'building the model'
  assert set(handler.lines[1:]) <= {'building the model: {} s so far'.format(secs)
                                    for secs in range(60)}
  assert threading.active_count() == before


def test_a_short_phase_is_logged_once(monkeypatch):
  handler = Lines(1)
  monkeypatch.setattr(LOG, 'handlers', [handler])
  monkeypatch.setattr(LOG, 'level', logging.INFO)
  phase = Phase('preparing the data')
  phase.end()
  phase.end()
  assert handler.lines == ['preparing the data']


def test_no_two_lines_are_more_than_two_seconds_apart_in_the_first_ten():
  secs = list(itertools.islice(phases._default_intervals(), 7))
  assert secs == [2., 2., 2., 2., 2., 10., 10.]


def test_without_a_log_there_is_no_thread(caplog):
  caplog.set_level(logging.WARNING, 'estimator_train')
  before = threading.active_count()
  with Phase('building the model'):
    assert threading.active_count() == before
