"""The hook that ends a run whose steps no longer complete."""

import faulthandler
import sys
import threading
import time
from typing import Any, Callable, Optional

import tensorflow.compat.v1 as tf

_POLL_SECS = 1.


class StepWatchdog(tf.train.SessionRunHook):
  """Checks from a thread that creating the session, and each of its steps, ends within a timeout.

  Inside a collective operation the main thread can wait forever, and handles no signals. The time
  between steps is not limited: an evaluation may take any time.

  Args:
    timeout_secs: the longest duration, in seconds, of a step or of creating the session.
    is_excused: returns whether there is a reason to wait, such as an evaluation on another task.
    on_timeout: called once, from the thread, with timeout_secs.
    clock: returns the time in seconds.
  """

  def __init__(self, timeout_secs: float, is_excused: Callable[[], bool],
               on_timeout: Callable[[float], None],
               clock: Callable[[], float] = time.monotonic) -> None:
    self._timeout_secs = timeout_secs
    self._is_excused = is_excused
    self._on_timeout = on_timeout
    self._clock = clock
    self._since: Optional[float] = None
    self._is_over = threading.Event()

  def begin(self) -> None:
    self._since = self._clock()
    threading.Thread(target=self._watch, name='step watchdog', daemon=True).start()

  def after_create_session(self, session: tf.Session, coord: Any) -> None:
    self._since = None

  def before_run(self, run_context: Any) -> None:
    self._since = self._clock()

  def after_run(self, run_context: Any, run_values: Any) -> None:
    self._since = None

  def close(self) -> None:
    """Stops the thread; must also be called if the run failed."""
    self._is_over.set()

  def has_timed_out(self) -> bool:
    """Returns whether the running step has exceeded the timeout."""
    since = self._since
    if since is None:
      return False
    if self._is_excused():
      self._since = self._clock()
      return False
    return self._clock() - since > self._timeout_secs

  def _watch(self) -> None:
    while not self._is_over.wait(_POLL_SECS):
      if self.has_timed_out():
        self._on_timeout(self._timeout_secs)
        return


def dump_stacks() -> None:
  """Writes the stack of each thread of the process to standard error."""
  faulthandler.dump_traceback(sys.__stderr__, all_threads=True)
