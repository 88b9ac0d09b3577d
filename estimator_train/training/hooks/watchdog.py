"""The hook that ends a run whose steps no longer complete."""

import faulthandler
import math
import sys
import threading
import time
from typing import Any, Callable, Optional

import tensorflow.compat.v1 as tf

_POLL_SECS = 1.


class StepWatchdog(tf.train.SessionRunHook):
  """Limits the duration of each step, and of the creation of the session.

  A separate thread checks the duration. The main thread may wait forever in a collective operation,
  during which Python handles no signals. The time between steps is not limited, because an
  evaluation may take long.

  Args:
    timeout_secs: the maximum duration of a step or of the creation of the session, in seconds.
    is_wait_expected: a function that returns whether a step has to wait, for example for an
      evaluation by another task. The time of such a wait does not count.
    on_timeout: a function that the thread calls once after a timeout, with `timeout_secs`.
    clock: a function that returns the time in seconds.
  """

  def __init__(self, timeout_secs: float, is_wait_expected: Callable[[], bool],
               on_timeout: Callable[[float], None],
               clock: Callable[[], float] = time.monotonic) -> None:
    self._timeout_secs = timeout_secs
    self._is_wait_expected = is_wait_expected
    self._on_timeout = on_timeout
    self._clock = clock
    # Times on `clock`; _timer_start is None while no duration is limited. Only the main thread sets
    # _timer_start, and only the watching thread sets _last_wait_at, so neither thread overwrites a
    # value that the other thread has just set.
    self._timer_start: Optional[float] = None
    self._last_wait_at = -math.inf
    self._is_closed = threading.Event()

  def begin(self) -> None:
    self._timer_start = self._clock()
    threading.Thread(target=self._watch, name='step watchdog', daemon=True).start()

  def after_create_session(self, session: tf.Session, coord: Any) -> None:
    self._timer_start = None

  def before_run(self, run_context: Any) -> None:
    self._timer_start = self._clock()

  def after_run(self, run_context: Any, run_values: Any) -> None:
    self._timer_start = None

  def close(self) -> None:
    """Stops the thread; must also be called if the run failed."""
    self._is_closed.set()

  def has_timed_out(self) -> bool:
    """Returns whether the running step, or the creation of the session, exceeds the timeout."""
    timer_start = self._timer_start
    if timer_start is None:
      return False
    if self._is_wait_expected():
      self._last_wait_at = self._clock()
      return False
    return self._clock() - max(timer_start, self._last_wait_at) > self._timeout_secs

  def _watch(self) -> None:
    while not self._is_closed.wait(_POLL_SECS):
      if self.has_timed_out():
        self._on_timeout(self._timeout_secs)
        return


def dump_stacks() -> None:
  """Writes the stack of each thread of the process to standard error."""
  faulthandler.dump_traceback(sys.__stderr__, all_threads=True)
