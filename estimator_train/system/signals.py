"""Handles the signals that stop the run, and SIGUSR1, which requests a checkpoint.

Python runs a handler between two instructions of the main thread, so not while a C++ function runs.
If the exception of a handler passes through a C++ function or a finalizer, it may be discarded, or
replaced by another one. The thread of `watch` repeats a signal whose exception was discarded, and
`reraising_stop` raises an exception that was replaced. `exit_now` ends the process although some of
its threads hang.
"""

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

_LOG = logging.getLogger('estimator_train')
# SIGHUP is sent when the terminal is closed.
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_STOP_TIMEOUT_SECS, _REPEAT_SECS = 10., .1
_PRINT_TIMEOUT_SECS = 2.
_STOPPING = 'stopping'
_FINISHING = 'finishing the step, then saving a checkpoint and writing the reports'


class _Stop:
  """The first stop signal.

  Attributes:
    signum: the number of the signal; None: none was received.
    is_raised: whether the signal arrived outside of training, where it raises StoppedBySignal.
    reference: a weak reference to this StoppedBySignal, which Python may discard.
    final_error: the StoppedBySignal that has ended the program.
  """

  def __init__(self) -> None:
    self.reset()

  def reset(self) -> None:
    """Forgets the signal."""
    self.signum: Optional[int] = None
    self.is_raised = False
    self.reference: Callable[[], Optional[StoppedBySignal]] = lambda: None
    self.final_error: Optional[StoppedBySignal] = None
    self._mutex, self._is_logged = threading.Lock(), threading.Event()

  def log(self, signum: int, text: str) -> None:
    """Logs the first signal, in the handler or in the thread of `watch`, whichever is first."""
    self.signum = self.signum or signum
    # Must not wait: the handler may have interrupted the log, for which the other thread waits.
    if self._mutex.acquire(False):
      _LOG.info('%s: %s', signal.Signals(signum).name, text)
      self._is_logged.set()

  def wait_until_logged(self) -> None:
    if self.signum is not None:
      self._is_logged.wait(1.)


_stop = _Stop()


def exit_on_stop_signals() -> None:
  """Makes stop signals end the process at once with their exit code, before the program begins."""
  _set_handlers(_exit_at_once)


def raise_on_stop_signals() -> None:
  """Makes stop signals raise StoppedBySignal, outside of training; see SignalState for training.

  SIGUSR1 logs that there is nothing to save; without a handler, SIGUSR1 would end the process.
  """
  _stop.reset()
  _set_handlers(_raise_stopped)
  signal.signal(signal.SIGUSR1, _log_nothing_to_save)


@contextlib.contextmanager
def reraising_stop() -> Iterator[None]:
  """Raises StoppedBySignal at the end of the `with` block if a handler has raised it in the block.

  The run must not end otherwise, for example because a function of the user catches all exceptions.
  """
  try:
    yield
  finally:
    error = sys.exc_info()[1]
    if _stop.is_raised and not isinstance(error, StoppedBySignal):
      raise _make_error(_stop.signum) from error


def finish_stop(error: StoppedBySignal) -> None:
  """Waits until the signal is logged, before the last line is printed; ignores further signals.

  Keeps the error, because the finalizers of objects that the signal interrupted may fail.
  """
  _stop.final_error, _stop.reference = error, lambda: error
  _stop.wait_until_logged()


def prepare_exit() -> None:
  """Makes a stop signal end the process at once, without a traceback; ignores SIGUSR1.

  If a signal is ending the process, a further one is ignored, unless it is SIGINT.
  """
  _set_handlers(signal.SIG_DFL)
  if _stop.signum is not None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # Python prints the exceptions of finalizers of objects that the signal interrupted.
    sys.stderr = open(os.devnull, 'w')  # noqa: SIM115
  signal.signal(signal.SIGUSR1, signal.SIG_IGN)


def watch() -> None:
  """Starts a thread that logs stop signals at once, and bounds the time to stop.

  Outside of training, the thread repeats a signal whose exception was discarded, and ends the
  process _STOP_TIMEOUT_SECS after the signal, even if the main thread hangs.
  """
  read_end, write_end = os.pipe()
  os.set_blocking(write_end, False)
  signal.set_wakeup_fd(write_end)  # Python writes the number of each signal to the pipe.

  def run() -> None:
    while True:
      signum = os.read(read_end, 1)[0]
      is_training = getattr(signal.getsignal(signum), '__func__', None) is SignalState.record
      if signum in _STOP_SIGNALS:
        _stop.log(signum, _FINISHING if is_training else _STOPPING)
        if not is_training:
          break
    deadline = time.monotonic() + _STOP_TIMEOUT_SECS
    while time.monotonic() < deadline:
      time.sleep(_REPEAT_SECS)
      if signal.getsignal(signum) is _raise_stopped and _stop.reference() is None:
        signal.pthread_kill(threading.main_thread().ident or 0, signum)
    _exit_at_once(signum, None)

  threading.Thread(target=run, name='signals', daemon=True).start()


class SignalState:
  """Records the signals received from `start_recording` until the end of the `with` block.

  The first stop signal requests a stop; a later SIGINT raises KeyboardInterrupt. SIGUSR1 requests a
  checkpoint. A signal that is ignored stays ignored.

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

  def start_recording(self) -> None:
    """Installs the handlers. Does nothing in another thread than the main thread."""
    if threading.current_thread() is not threading.main_thread() or self._previous_handlers:
      return
    _stop.reset()
    self._previous_handlers = {
        **_set_handlers(self.record), signal.SIGUSR1: signal.signal(signal.SIGUSR1, self.record)}

  def __exit__(self, *error: Any) -> None:
    while self._previous_handlers:
      signal.signal(*self._previous_handlers.popitem())
    if self.save_requested:
      _log_nothing_to_save(signal.SIGUSR1, None)

  def record(self, signum: int, frame: Any) -> None:
    """Handles a signal; `frame` is an unused argument that Python gives to each handler."""
    if signum == signal.SIGUSR1:
      self.save_requested = True
    elif self.stop_signum is None:
      self.stop_signum = signum
      _stop.log(signum, _FINISHING)
    elif signum == signal.SIGINT:
      raise KeyboardInterrupt


def _set_handlers(handler: Any) -> Dict[int, Any]:
  """Sets the handler of the stop signals that are not ignored; returns the previous handlers.

  `nohup` ignores SIGHUP, and a shell without job control ignores SIGINT for background jobs.
  """
  return {signum: signal.signal(signum, handler) for signum in _STOP_SIGNALS
          if signal.getsignal(signum) not in (signal.SIG_IGN, None)}


def _exit_at_once(signum: int, frame: Any) -> None:
  exit_now('stopped by ' + signal.Signals(signum).name, SIGNAL_CODE_BASE + signum)


def _make_error(signum: Any) -> StoppedBySignal:
  return StoppedBySignal(signum, 'stopped by ' + signal.Signals(signum).name)


def _raise_stopped(signum: int, frame: Any) -> None:
  _stop.log(signum, _STOPPING)
  _stop.is_raised = True
  if _stop.reference() is not None or _discards_exceptions(frame):
    return  # A second exception would interrupt the clean-up.
  error = _make_error(signum)
  _stop.reference = weakref.ref(error)
  try:
    raise error
  finally:
    del error  # The reference in this frame, to which the exception refers, would keep it alive.


def _discards_exceptions(frame: Any) -> bool:
  """Returns whether a frame runs below a finalizer, or below the import of a C++ module.

  The same holds below the constructor of an object with a finalizer: the finalizer of an object
  that is incomplete may fail, and Python prints its exception. A callback `cb` of importlib is
  called when the lock of an imported module is finalized.
  """
  while frame is not None:
    code, module = frame.f_code, frame.f_globals.get('__name__')
    if code.co_name == '__del__' or module in ('weakref', '_weakrefset') or (
        code.co_name == 'cb' and module in ('importlib._bootstrap', '_frozen_importlib')):
      return True
    if code.co_name in ('create_module', 'exec_module', '__new__', '__init__') and code.co_argcount:
      first = frame.f_locals.get(code.co_varnames[0])
      kind = first if isinstance(first, type) else type(first)
      if hasattr(kind, '__del__') or issubclass(kind, importlib.machinery.ExtensionFileLoader):
        return True
    frame = frame.f_back
  return False


def _log_nothing_to_save(signum: int, frame: Any) -> None:
  _LOG.info('%s: nothing to save, since no training is in progress', signal.Signals(signum).name)


def exit_now(message: str, exit_code: int = PeerLost.exit_code) -> None:
  """Prints a message, then ends the process, even if a thread hangs."""
  # Prints in another thread, because `print` hangs if a hanging thread owns the lock of stderr.
  printer = threading.Thread(
      target=lambda: print(one_line(message), file=sys.stderr, flush=True), daemon=True)
  printer.start()
  printer.join(_PRINT_TIMEOUT_SECS)
  os._exit(exit_code)
