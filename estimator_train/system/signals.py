"""Handles the signals that stop the run, and SIGUSR1, which requests a checkpoint.

Outside of training, a handler raises StoppedBySignal in the main thread. In four cases, this does
not end the program:
1. A finalizer, or a C++ function that calls Python, discards the exception. The thread of
   `start_signal_thread` then repeats the signal.
2. A finalizer or the import of a C++ module is running, which could discard or replace the
   exception. The handler then raises no exception, and the thread repeats the signal.
3. The code that was interrupted catches the exception, or raises another one.
   `reraise_caught_stop` then raises StoppedBySignal again.
4. The main thread hangs in a C++ function, and Python runs no handler. After a timeout, the thread
   ends the process by `exit_now`, which works even if other threads hang.
"""

import _thread
import contextlib
import importlib.machinery
import logging
import os
import signal
import sys
import threading
import time
import weakref
from typing import Any, Callable, Dict, Iterator, Optional

from estimator_train.errors import SIGNAL_CODE_BASE, PeerLost, StoppedBySignal, one_line
from estimator_train.system import progress

_LOG = logging.getLogger('estimator_train')
# SIGHUP is sent when the terminal is closed.
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_STOP_TIMEOUT_SECS, _REPEAT_SECS = 10., .1
_PRINT_TIMEOUT_SECS = 2.
_STOPPING_TEXT = 'stopping'
_FINISHING_TEXT = 'finishing the step, then saving a checkpoint and writing the reports'


class _FirstStopSignal:
  """The first stop signal.

  Attributes:
    signum: None if no signal was received.
    arrived_outside_training: whether no training recorded the signal, so that the handler raises a
      StoppedBySignal.
    raised_error_ref: a weak reference to this StoppedBySignal, which Python may have discarded.
    error_kept_alive: the StoppedBySignal that ended the program.
  """

  def __init__(self) -> None:
    self.reset()

  def reset(self) -> None:
    self.signum: Optional[int] = None
    self.arrived_outside_training = False
    self.raised_error_ref: Callable[[], Optional[StoppedBySignal]] = lambda: None
    self.error_kept_alive: Optional[StoppedBySignal] = None
    self._mutex, self.is_logged = threading.Lock(), threading.Event()

  def log_once(self, signum: int, text: str) -> None:
    """Logs the first signal, although both the handler and the signal thread call this method."""
    self.signum = self.signum or signum
    if self._mutex.acquire(False):
      _log_in_thread(signum, text, self.is_logged)


_first_stop = _FirstStopSignal()


def install_exit_handlers() -> None:
  """Makes stop signals end the process at once, with their exit codes."""
  _set_handlers(_exit_on_signal)


def install_raising_handlers() -> None:
  """Makes stop signals raise StoppedBySignal. In training, SignalState handles them instead.

  SIGUSR1 logs that there is nothing to save. Without a handler, SIGUSR1 would end the process.
  """
  _first_stop.reset()
  _set_handlers(_raise_stopped)
  signal.signal(signal.SIGUSR1, _log_nothing_to_save)


@contextlib.contextmanager
def reraise_caught_stop() -> Iterator[None]:
  """Raises StoppedBySignal at the end of the `with` block if a stop signal arrived in the block.

  A run must stop even if a function of the user catches the StoppedBySignal of the handler.
  """
  try:
    yield
  finally:
    error = sys.exc_info()[1]
    if _first_stop.arrived_outside_training and not isinstance(error, StoppedBySignal):
      raise _make_stop_error(_first_stop.signum) from error


def wait_until_stop_logged(error: StoppedBySignal) -> None:
  """Waits until the signal is logged. Afterwards, no further stop signal raises an exception."""
  _first_stop.error_kept_alive, _first_stop.raised_error_ref = error, lambda: error
  if _first_stop.signum is not None:
    _first_stop.is_logged.wait(1.)


def install_silent_exit_handlers() -> None:
  """Makes a stop signal end the process at once, without a traceback. SIGUSR1 is ignored.

  If a stop signal is already ending the process, SIGTERM and SIGHUP are also ignored.
  """
  _set_handlers(signal.SIG_DFL)
  if _first_stop.signum is not None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # The signal may have interrupted the construction of objects. Their finalizers may then fail,
    # and Python would print these exceptions.
    sys.stderr = open(os.devnull, 'w')  # noqa: SIM115
  signal.signal(signal.SIGUSR1, signal.SIG_IGN)


def start_signal_thread() -> None:
  """Starts a thread that logs stop signals at once, even if the main thread runs no handler.

  Outside of training, the thread repeats the signal if Python has discarded the StoppedBySignal. It
  ends the process _STOP_TIMEOUT_SECS after the signal.
  """
  read_end, write_end = os.pipe()
  os.set_blocking(write_end, False)
  signal.set_wakeup_fd(write_end)  # Python writes the number of each signal to the pipe.

  def watch_signals() -> None:
    while True:
      signum = os.read(read_end, 1)[0]
      is_training = getattr(signal.getsignal(signum), '__func__', None) is SignalState.handle
      if signum in _STOP_SIGNALS:
        _first_stop.log_once(signum, _FINISHING_TEXT if is_training else _STOPPING_TEXT)
        if not is_training:
          break
    deadline = time.monotonic() + _STOP_TIMEOUT_SECS
    while time.monotonic() < deadline:
      time.sleep(_REPEAT_SECS)
      if signal.getsignal(signum) is _raise_stopped and _first_stop.raised_error_ref() is None:
        signal.pthread_kill(threading.main_thread().ident or 0, signum)
    _exit_on_signal(signum, None)

  threading.Thread(target=watch_signals, name='signals', daemon=True).start()


class SignalState:
  """Records the signals received from `start_recording` until the end of the `with` block.

  The first stop signal requests a stop, and a later SIGINT raises KeyboardInterrupt. SIGUSR1
  requests a checkpoint. Signals that the process ignores stay ignored.

  Attributes:
    stop_signum: the signal that requested a stop; None if no stop was requested.
    save_requested: whether a requested checkpoint has not been saved yet.
  """

  def __init__(self) -> None:
    self.stop_signum: Optional[int] = None
    self.save_requested = False
    self._previous_handlers: Dict[int, Any] = {}

  def __enter__(self) -> 'SignalState':
    return self

  def start_recording(self) -> None:
    """Installs the handlers if this is the main thread, the only one that may install them."""
    if threading.current_thread() is not threading.main_thread() or self._previous_handlers:
      return
    _first_stop.reset()
    self._previous_handlers = {
        **_set_handlers(self.handle), signal.SIGUSR1: signal.signal(signal.SIGUSR1, self.handle)}

  def __exit__(self, *error: Any) -> None:
    while self._previous_handlers:
      signal.signal(*self._previous_handlers.popitem())
    if self.save_requested:
      _log_nothing_to_save(signal.SIGUSR1, None)

  def handle(self, signum: int, frame: Any) -> None:
    if signum == signal.SIGUSR1:
      self.save_requested = True
    elif self.stop_signum is None:
      self.stop_signum = signum
      _first_stop.log_once(signum, _FINISHING_TEXT)
    elif signum == signal.SIGINT:
      raise KeyboardInterrupt


def _set_handlers(handler: Any) -> Dict[int, Any]:
  """Sets a handler for the stop signals that are not ignored, and returns the previous handlers.

  With `nohup`, the program ignores SIGHUP. In the background of a shell without job control, it
  ignores SIGINT.
  """
  return {signum: signal.signal(signum, handler) for signum in _STOP_SIGNALS
          if signal.getsignal(signum) not in (signal.SIG_IGN, None)}


def _exit_on_signal(signum: int, frame: Any) -> None:
  exit_now('stopped by ' + signal.Signals(signum).name, SIGNAL_CODE_BASE + signum)


def _make_stop_error(signum: Any) -> StoppedBySignal:
  return StoppedBySignal(signum, 'stopped by ' + signal.Signals(signum).name)


def _raise_stopped(signum: int, frame: Any) -> None:
  _first_stop.log_once(signum, _STOPPING_TEXT)
  _first_stop.arrived_outside_training = True
  if _first_stop.raised_error_ref() is not None or _forbids_exceptions(frame):
    return  # While the first exception is alive, a second one would interrupt the clean-up.
  error = _make_stop_error(signum)
  _first_stop.raised_error_ref = weakref.ref(error)
  try:
    raise error
  finally:
    # The traceback of the exception refers to this frame. If this frame referred to the exception,
    # the cycle would keep it alive after it was discarded.
    del error


def _forbids_exceptions(frame: Any) -> bool:
  """Returns whether a handler that interrupts this frame must not raise an exception.

  This is the case if the frame belongs to one of the following functions, or is called by it:
  1. a finalizer, where Python only prints exceptions; also a callback of a weak reference, such as
     the function `cb` of importlib;
  2. the import of a C++ module, which may replace the exception;
  3. the constructor of an object with a finalizer. The finalizer of an incomplete object may fail,
     and Python would print its exception.
  """
  while frame is not None:
    code, module = frame.f_code, frame.f_globals.get('__name__')
    if code.co_name == '__del__' or module in ('weakref', '_weakrefset') or (
        code.co_name == 'cb' and module in ('importlib._bootstrap', '_frozen_importlib')):
      return True
    if code.co_name in ('create_module', 'exec_module', '__new__', '__init__') and code.co_argcount:
      first_argument = frame.f_locals.get(code.co_varnames[0])
      object_class = (
          first_argument if isinstance(first_argument, type) else type(first_argument))
      if hasattr(object_class, '__del__') or issubclass(
          object_class, importlib.machinery.ExtensionFileLoader):
        return True
    frame = frame.f_back
  return False


def _log_nothing_to_save(signum: int, frame: Any) -> None:
  _log_in_thread(signum, 'nothing to save, since no training is in progress')


def _log_in_thread(signum: int, text: str,
                   is_logged: Optional[threading.Event] = None) -> None:
  """Logs a signal without waiting, and sets the event, if any, when it is logged.

  A handler must not log. It may have interrupted a write to standard error, which cannot be
  interrupted by another one, or a function that has the lock of the log. It must not use
  threading.Thread either, whose `start` takes a lock.
  """
  def log() -> None:
    _LOG.info('%s: %s', signal.Signals(signum).name, text)
    if is_logged is not None:
      is_logged.set()

  _thread.start_new_thread(log, ())


def exit_now(message: str, exit_code: int = PeerLost.exit_code) -> None:
  """Prints a message and ends the process, even if another thread hangs."""
  # If the hanging thread has the lock of stderr, `print` hangs, too, so it has its own thread.
  printing_thread = threading.Thread(
      target=lambda: print(progress.clear_line() + one_line(message), file=sys.stderr, flush=True),
      daemon=True)
  printing_thread.start()
  printing_thread.join(_PRINT_TIMEOUT_SECS)
  os._exit(exit_code)
