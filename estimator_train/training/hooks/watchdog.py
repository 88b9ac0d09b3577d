"""The hook that ends a run in which no step comes to its end any more."""

import faulthandler
import sys
import threading
import time
from typing import Any, Callable, Optional

import tensorflow.compat.v1 as tf

_TURN_SECS = 1.


class StepWatchdog(tf.train.SessionRunHook):
  """Watches that the session is made, and every run of it comes to an end, from a thread.

  Inside of a collective operation the main thread can wait for ever, and handles no signal. What
  happens between the steps is not watched: evaluations take as long as they take.

  Args:
    timeout_secs: how long a step, or making the session, may take.
    is_excused: whether there is a reason to wait, such as an evaluation on another task.
    on_timeout: called once with the seconds, from the thread.
    clock: in seconds.
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
    """Ends the watch; also when the run failed."""
    self._is_over.set()

  def look(self) -> bool:
    """Returns whether the step that runs has taken too long."""
    since = self._since
    if since is None:
      return False
    if self._is_excused():
      self._since = self._clock()
      return False
    return self._clock() - since > self._timeout_secs

  def _watch(self) -> None:
    while not self._is_over.wait(_TURN_SECS):
      if self.look():
        self._on_timeout(self._timeout_secs)
        return


def dump_stacks() -> None:
  """Writes where each thread of the process is to standard error."""
  faulthandler.dump_traceback(sys.__stderr__, all_threads=True)
