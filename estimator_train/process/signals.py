"""What SIGINT, SIGTERM and SIGUSR1 do: end at once, or be noted until nothing is left half done."""

import logging
import signal
import threading
from typing import Any, Dict, Optional

from estimator_train.errors import StoppedBySignal

_LOG = logging.getLogger('estimator_train')
_STOPS = (signal.SIGINT, signal.SIGTERM)


def set_up() -> None:
  """Has SIGTERM raise StoppedBySignal, as SIGINT raises KeyboardInterrupt by itself.

  SIGUSR1, which would end the process, says that there is nothing to save.
  """
  signal.signal(signal.SIGTERM, _raise)
  signal.signal(signal.SIGUSR1, _nothing_to_save)


def tear_down() -> None:
  """Has signals end the process by themselves: an exception would be a traceback from here on."""
  for signum in _STOPS:
    if signal.getsignal(signum) != signal.SIG_IGN:
      signal.signal(signum, signal.SIG_DFL)
  signal.signal(signal.SIGUSR1, signal.SIG_IGN)


class SignalState:
  """Notes the signals from `begin` on, until it is left; whoever works meanwhile looks here.

  The first SIGINT or SIGTERM asks to stop, SIGUSR1 to save a checkpoint. A second SIGINT ends at
  once, by KeyboardInterrupt.

  Attributes:
    stop: the signal that asked to stop; None without one.
    save: whether a checkpoint is asked for, and not saved yet.
  """

  def __init__(self) -> None:
    self.stop: Optional[int] = None
    self.save = False
    self._before: Dict[int, Any] = {}

  def __enter__(self) -> 'SignalState':
    return self

  def begin(self) -> None:
    """Takes the signals from whoever had them; Python lets only the main thread do that."""
    if threading.current_thread() is not threading.main_thread():
      return
    for signum in _STOPS + (signal.SIGUSR1,):
      self._before.setdefault(signum, signal.signal(signum, self._note))

  def __exit__(self, *error: Any) -> None:
    while self._before:
      signal.signal(*self._before.popitem())
    if self.save:
      _nothing_to_save(signal.SIGUSR1, None)

  def _note(self, signum: int, frame: Any) -> None:
    if signum == signal.SIGUSR1:
      self.save = True
      return
    if self.stop is not None and signum == signal.SIGINT:
      raise KeyboardInterrupt
    if self.stop is None:
      self.stop = signum
      _LOG.info('%s: finishing the step, then saving a checkpoint and writing the reports',
                signal.Signals(signum).name)


def _raise(signum: int, frame: Any) -> None:
  # Another one would end what clears up after this one.
  signal.signal(signum, signal.SIG_IGN)
  raise StoppedBySignal(signum, 'stopped by ' + signal.Signals(signum).name)


def _nothing_to_save(signum: int, frame: Any) -> None:
  _LOG.info('%s: there is nothing to save between the steps of a training',
            signal.Signals(signum).name)
