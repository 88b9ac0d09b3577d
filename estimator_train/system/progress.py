"""Shows the progress of long work: as a line that moves on a terminal, elsewhere in the log.

The log and all bars share one lock, and log lines appear above the bars (see `write_above_bars`).
No text can therefore appear within another one. A bar that fits no more text leaves out its last
parts, so that no number is cut.
"""

import contextlib
import logging
import os
import sys
import threading
import time
from typing import Any, Callable, ContextManager, Iterator, List, Optional, Sequence, TextIO, Tuple

from estimator_train.system.formatting import (
  format_bytes,
  format_clock,
  format_number,
  format_quantity,
)

_LOG = logging.getLogger('estimator_train')
_REDRAW_SECS = 1.
# Until then, the rate is the average since the start. Single updates would give random rates.
_AVERAGED_SECS = 10.
# The columns that the text of a bar leaves for the bar itself.
_MIN_BAR_WIDTH = 8
# Of the log and of all bars. With two locks, a signal handler that logs could wait for a thread
# that waits for the interrupted code. The lock is reentrant for this reason.
OUTPUT_LOCK = threading.RLock()
# Clears a line on which a bar may be.
_CLEAR_LINE = '\r\x1b[K'


class ProgressBar:
  """A bar on standard error, which is drawn again each second even if nothing advances.

  On a terminal, the bar is text, which disappears when the bar is closed. In a Jupyter kernel, it
  is a widget, or text if ipywidgets is missing, and stays after it is closed. Elsewhere, nothing is
  shown.

  Args:
    describe: takes this object, and returns the parts of the text, the most important one first.
    total: the amount of work; None if it is unknown, so that only the text is shown.
    initial: the amount that is complete at the beginning.
    is_shown: None to show the bar if standard error is a terminal or a notebook.
  """

  def __init__(self, describe: Callable[['ProgressBar'], Sequence[str]],
               total: Optional[int] = None, initial: int = 0,
               is_shown: Optional[bool] = None) -> None:
    self._describe = describe
    self._bar: Any = None
    self._ticker: Optional[threading.Thread] = None
    self.is_shown = shows_progress_bars() if is_shown is None else is_shown
    self._closed = threading.Event()
    if not self.is_shown:
      return
    with OUTPUT_LOCK:
      # The constructor already draws the bar, but without text. `postfix` can be any object.
      bar = self._bar = _make_tqdm(
          total=total, initial=initial, leave=False, mininterval=0, miniters=1,
          postfix=self, bar_format='{postfix.text}')
      bar.bar_format += ' |{bar}|' if total else ''
      bar.refresh()
    if not is_jupyter_kernel():
      self._ticker = threading.Thread(target=self._redraw_repeatedly, daemon=True)
      self._ticker.start()

  def __enter__(self) -> 'ProgressBar':
    return self

  def __exit__(self, *_: Any) -> None:
    self.close()

  def update(self, count: int) -> None:
    """Adds to the amount of complete work."""
    if self._bar is not None:
      with OUTPUT_LOCK:
        self._bar.update(count)
      self._bar.mininterval = _REDRAW_SECS

  def advance_to(self, amount: int) -> None:
    """Sets the amount of complete work, which is at most the total."""
    if self._bar is not None:
      self.update(min(amount, self._bar.total or amount) - self._bar.n)

  def finish_at(self, amount: int) -> None:
    """Makes this amount the total. A notebook shows an incomplete bar in red when it is closed."""
    if self._bar is not None:
      self._bar.total = self._bar.n = amount

  def close(self) -> None:
    """Closes the bar. May be called more than once."""
    self._closed.set()
    if self._ticker is not None:
      self._ticker.join()
    if self._bar is not None:
      with OUTPUT_LOCK:
        self._bar.close()
        if self._ticker is not None:  # Below another bar, the cursor stays within the line.
          sys.stderr.write('\r')

  def _redraw_repeatedly(self) -> None:
    while not self._closed.wait(_REDRAW_SECS):
      with OUTPUT_LOCK:
        self._bar.refresh()

  @property
  def amount(self) -> int:
    return int(self._bar.n)

  @property
  def secs(self) -> float:
    """The seconds since the bar was made."""
    return float(self._bar.format_dict['elapsed'])

  @property
  def rate(self) -> Optional[float]:
    """The amount per second, mostly of the last updates; None before the first update."""
    figures, secs = self._bar.format_dict, self.secs
    if figures['n'] == figures['initial']:
      return None
    recent_rate = None if secs < _AVERAGED_SECS else figures['rate']
    return float(recent_rate or (figures['n'] - figures['initial']) / max(secs, 1e-3))

  def format_time(self) -> str:
    """Returns the time that is left or, as long as it is unknown, the time that has passed."""
    rate, bar = self.rate, self._bar
    if rate is None or not bar.total:
      return format_clock(self.secs)
    left = (bar.total - bar.n) / rate
    if self.secs >= _AVERAGED_SECS:
      # Between two updates, the time that is left decreases, up to the next unit of work.
      secs_since_update = bar.start_t + self.secs - bar.last_print_t
      left = max((bar.total - bar.last_print_n) / rate - secs_since_update, left - 1 / rate, 0)
    return format_clock(left) + ' left'

  @property
  def text(self) -> str:
    """The text before the bar: as many parts as fit into the terminal."""
    if self._bar is None:  # The constructor of the bar draws it.
      return ''
    max_length = (self._bar.ncols or 1000) - (_MIN_BAR_WIDTH if self._bar.total else 1)
    text, *others = self._describe(self)
    for part in others:
      if len(text) + len(part) + 2 > max_length:
        break
      text += ', ' + part
    return text


def _make_tqdm(**options: Any) -> Any:
  """Makes a bar of tqdm. The caller must hold OUTPUT_LOCK, also when it uses the bar."""
  from tqdm import tqdm  # Imported here so that the program starts quickly.

  class Bar(tqdm):
    """A bar without a lock of its own, which tqdm does not release after an exception."""
    _lock = _NoLock()
    monitor_interval = 0  # Without tqdm's own thread that redraws bars.

  if is_jupyter_kernel():
    options['leave'] = True
    with contextlib.suppress(ImportError):
      import ipywidgets  # noqa: F401
      from tqdm.notebook import tqdm as notebook_tqdm
      return notebook_tqdm(dynamic_ncols=True, **options)
  ncols, nrows = _find_bar_limits(sys.stderr)
  bar = Bar(file=sys.stderr, ncols=ncols, nrows=nrows, **options)
  bar.dynamic_ncols = _find_bar_limits  # tqdm calls it again whenever it draws the bar.
  return bar


def _find_bar_limits(file: TextIO) -> Tuple[Optional[int], Optional[int]]:
  """Returns the columns and rows for bars; (None, None) without a terminal.

  tqdm shows no bar on a terminal that reports no size, such as one of `script` in a batch job.
  """
  try:
    columns, rows = os.get_terminal_size(file.fileno())
  except (OSError, ValueError):
    return None, None
  return (columns or 80) - 1, (rows or 24) - 1


class _NoLock:
  """Has the methods of a lock, but does not lock."""

  def acquire(self, *_: Any, **__: Any) -> bool:
    return True

  def release(self) -> None:
    pass

  __enter__ = acquire

  def __exit__(self, *_: Any) -> None:
    pass


def make_bar(description: str, total: Optional[int], unit: str, initial: int = 0,
             is_shown: Optional[bool] = None) -> ProgressBar:
  """Makes a bar of work that is counted.

  Args:
    unit: in the plural; `bytes` for amounts such as 1.23 MB.
  """
  def format_amount(amount: float) -> str:
    return format_bytes(amount) if unit == 'bytes' else format_quantity(amount, unit)

  def describe(bar: ProgressBar) -> List[str]:
    if total and unit != 'bytes':
      amount = '{}/{}'.format(format_number(bar.amount), format_amount(total))
    else:
      amount = format_amount(bar.amount) + (' of ' + format_amount(total) if total else '')
    rate = bar.rate
    return ['{}: {}'.format(description, amount), bar.format_time(),
            *([] if rate is None else ['{}/sec'.format(format_amount(rate))])]

  return ProgressBar(describe, total, initial, is_shown)


@contextlib.contextmanager
def show_phase(text: str) -> Iterator[None]:
  """Shows that the `with` block is running, and how long it has been running, on a terminal.

  The text is also logged: on a terminal at the end, with the duration, and elsewhere at the start.
  """
  phase = Phase(text)
  try:
    yield
  except BaseException:
    phase.close()
    raise
  phase.end()


class Phase:
  """A part of the work of unknown length; see `show_phase`."""

  def __init__(self, text: str) -> None:
    self._text, self._start_time = text, time.monotonic()
    self._bar = ProgressBar(lambda bar: [text, format_clock(bar.secs)], is_shown=is_on_terminal())
    if not self._bar.is_shown:
      _LOG.info('%s', text)

  def close(self) -> None:
    """Removes the line from the terminal."""
    self._bar.close()

  def end(self) -> None:
    """Replaces the line on the terminal by one with the duration."""
    self._bar.close()
    if self._bar.is_shown:
      secs = time.monotonic() - self._start_time
      _LOG.info('%s%s', self._text, ', ' + format_clock(secs) if secs >= 1 else '')


def write_above_bars() -> ContextManager[Any]:
  """Returns a context in which text can be written to standard error, above the bars.

  The caller must hold OUTPUT_LOCK.
  """
  tqdm: Any = sys.modules.get('tqdm')
  return tqdm.tqdm.external_write_mode(sys.stderr, nolock=True) if tqdm else contextlib.ExitStack()


def clear_line() -> str:
  """Returns the text that clears a bar on a terminal, for the last words of a process."""
  return _CLEAR_LINE if is_on_terminal() else ''


def is_on_terminal() -> bool:
  return sys.stderr.isatty() and not is_jupyter_kernel()


def terminal_columns() -> Optional[int]:
  """Returns the width of the terminal; None if standard error is not a terminal."""
  with contextlib.suppress(OSError, ValueError):
    return os.get_terminal_size(sys.stderr.fileno()).columns or None
  return None


def shows_progress_bars() -> bool:
  return sys.stderr.isatty() or is_jupyter_kernel()


def is_jupyter_kernel() -> bool:
  ipython = sys.modules.get('IPython')
  shell = ipython.get_ipython() if ipython is not None else None
  return getattr(shell, 'kernel', None) is not None
