"""Log lines for the slow phases at the start of a run, so that none of them looks like a hang."""

import itertools
import logging
import threading
import time
from typing import Any, Callable, Iterator, Optional

_LOG = logging.getLogger('estimator_train')


def _intervals() -> Iterator[float]:
  """Yields the seconds between the log lines of a phase: five times 2, then 10."""
  return itertools.chain(itertools.repeat(2., 5), itertools.repeat(10.))


class Phase:
  """A context manager that logs the start of a phase, and then how long it has been running.

  A thread logs the later lines; it is not started if the log level hides them.

  Args:
    text: what is being done, such as `building the model`.
    intervals: returns the seconds between two log lines.
  """

  def __init__(self, text: str, intervals: Callable[[], Iterator[float]] = _intervals) -> None:
    self._text = text
    self._intervals = intervals
    self._ended = threading.Event()
    self._thread: Optional[threading.Thread] = None
    _LOG.info('%s', text)
    if _LOG.isEnabledFor(logging.INFO):
      self._thread = threading.Thread(target=self._log_duration, daemon=True)
      self._thread.start()

  def end(self) -> None:
    """Ends the phase; does nothing if it has ended."""
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
