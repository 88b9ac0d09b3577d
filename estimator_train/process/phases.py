"""Logs the slow phases of a run, so that the program does not seem to hang."""

import itertools
import logging
import threading
import time
from typing import Any, Callable, Iterator, Optional

_LOG = logging.getLogger('estimator_train')


def _default_intervals() -> Iterator[float]:
  """Returns the seconds between the log lines of a phase: five times 2, then always 10."""
  return itertools.chain(itertools.repeat(2., 5), itertools.repeat(10.))


class Phase:
  """Logs the start of a phase and, until the phase ends, repeatedly the time since the start.

  The constructor starts the phase. `end`, or the end of a `with` block, ends the phase. A thread
  logs the time, unless the log level hides these lines.

  Args:
    text: what is being done, such as `building the model`.
    intervals: a function that returns the seconds from each log line to the next.
  """

  def __init__(self, text: str,
               intervals: Callable[[], Iterator[float]] = _default_intervals) -> None:
    self._text = text
    self._intervals = intervals
    self._ended = threading.Event()
    self._thread: Optional[threading.Thread] = None
    _LOG.info('%s', text)
    if _LOG.isEnabledFor(logging.INFO):
      self._thread = threading.Thread(target=self._log_duration, daemon=True)
      self._thread.start()

  def end(self) -> None:
    """Ends the phase; does nothing if the phase has already ended."""
    self._ended.set()
    if self._thread is not None:
      self._thread.join()
      self._thread = None

  def __enter__(self) -> 'Phase':
    return self

  def __exit__(self, *unused: Any) -> None:
    self.end()

  def _log_duration(self) -> None:
    began = time.monotonic()
    for secs in self._intervals():
      if self._ended.wait(secs):
        return
      _LOG.info('%s: %.0f s so far', self._text, time.monotonic() - began)
