"""Shows the progress of what takes long: log lines of slow phases, and progress bars."""

import itertools
import logging
import sys
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


def make_progress_bar(**options: Any) -> Any:
  """Returns a progress bar of tqdm, whose attribute `disable` is True if nothing is shown.

  On a terminal, the bar is text on standard error. In a Jupyter kernel, it is a widget if
  ipywidgets is installed, else text, and it remains after it is closed. Elsewhere, nothing is
  shown.

  Args:
    **options: arguments of `tqdm`, except `file` and `disable`.
  """
  from tqdm import tqdm  # Imported here so that the program starts quickly.
  if not is_in_notebook():
    return tqdm(file=sys.stderr, disable=None, **options)
  options['leave'] = True
  try:
    import ipywidgets  # noqa: F401
  except ImportError:
    return tqdm(file=sys.stderr, **options)
  from tqdm.notebook import tqdm as widget
  return widget(**options)


def is_shown() -> bool:
  """Returns whether this process shows progress bars."""
  return sys.stderr.isatty() or is_in_notebook()


def is_in_notebook() -> bool:
  """Returns whether this process is a Jupyter kernel."""
  ipython = sys.modules.get('IPython')
  shell = ipython.get_ipython() if ipython is not None else None
  return getattr(shell, 'kernel', None) is not None
