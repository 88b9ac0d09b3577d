"""Handles SIGINT and SIGTERM, which stop the run, and SIGUSR1, which requests a checkpoint."""

import logging
import signal
import threading
from typing import Any, Dict, Optional

from estimator_train.errors import StoppedBySignal

_LOG = logging.getLogger('estimator_train')
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def install_handlers() -> None:
  """Installs the handlers for the time outside of training; see SignalState for training.

  SIGTERM raises StoppedBySignal. SIGUSR1 logs that there is nothing to save; without a handler,
  SIGUSR1 would end the process. SIGINT raises KeyboardInterrupt, as usual in Python.
  """
  signal.signal(signal.SIGTERM, _raise_stopped)
  signal.signal(signal.SIGUSR1, _log_nothing_to_save)


def restore_default_handlers() -> None:
  """Makes SIGINT and SIGTERM end the process at once, without a traceback; ignores SIGUSR1."""
  for signum in _STOP_SIGNALS:
    if signal.getsignal(signum) != signal.SIG_IGN:
      signal.signal(signum, signal.SIG_DFL)
  signal.signal(signal.SIGUSR1, signal.SIG_IGN)


class SignalState:
  """Records the signals received from `begin` until the end of the `with` block.

  The first SIGINT or SIGTERM requests a stop; a later SIGINT raises KeyboardInterrupt. SIGUSR1
  requests a checkpoint.

  Attributes:
    stop_signum: the number of the signal that requested a stop; None if no stop was requested.
    save_requested: whether a checkpoint was requested and has not been saved yet.
  """

  def __init__(self) -> None:
    self.stop_signum: Optional[int] = None
    self.save_requested = False
    self._previous_handlers: Dict[int, Any] = {}

  def __enter__(self) -> 'SignalState':
    return self

  def begin(self) -> None:
    """Installs the handlers. Does nothing in another thread than the main thread."""
    if threading.current_thread() is not threading.main_thread():
      return
    for signum in _STOP_SIGNALS + (signal.SIGUSR1,):
      self._previous_handlers.setdefault(signum, signal.signal(signum, self._record))

  def __exit__(self, *error: Any) -> None:
    while self._previous_handlers:
      signal.signal(*self._previous_handlers.popitem())
    if self.save_requested:
      _log_nothing_to_save(signal.SIGUSR1, None)

  def _record(self, signum: int, frame: Any) -> None:
    """Handles a signal; `frame` is an unused argument that Python gives to each handler."""
    if signum == signal.SIGUSR1:
      self.save_requested = True
      return
    if self.stop_signum is not None and signum == signal.SIGINT:
      raise KeyboardInterrupt
    if self.stop_signum is None:
      self.stop_signum = signum
      _LOG.info('%s: finishing the step, then saving a checkpoint and writing the reports',
                signal.Signals(signum).name)


def _raise_stopped(signum: int, frame: Any) -> None:
  # From now on, the signal is ignored, because a second signal would interrupt the clean-up.
  signal.signal(signum, signal.SIG_IGN)
  raise StoppedBySignal(signum, 'stopped by ' + signal.Signals(signum).name)


def _log_nothing_to_save(signum: int, frame: Any) -> None:
  _LOG.info('%s: nothing to save, since no training is in progress', signal.Signals(signum).name)
