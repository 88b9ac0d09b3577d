"""Ends a process that makes no progress for too long, even if its main thread hangs in C++."""

import contextlib
import faulthandler
import sys
import threading
import time
from typing import Any, Callable, Iterator

from estimator_train.system import machine
from estimator_train.system.library_call import is_library_call
from estimator_train.system.signals import exit_now

_POLL_SECS = 1.

def end_hanging_process(message: str) -> None:
  """Prints the stack of each thread and a message, and ends this process with code 138."""
  faulthandler.dump_traceback(sys.__stderr__, all_threads=True)
  exit_now('{}: the stack of each thread is above; the same command resumes from the last '
           'checkpoint'.format(message))


@contextlib.contextmanager
def end_if_hanging(activity: str, timeout_secs: float,
                   measure_progress: Callable[[], Any]) -> Iterator[None]:
  """Ends the process if the `with` block makes no progress for longer than the timeout.

  The duration of the block is not limited. Time in which this process was suspended does not count.

  Args:
    activity: what the block does, such as `evaluation`.
    timeout_secs: `--step_timeout_secs`; 0 for no limit.
    measure_progress: returns another value after progress. It is called in another thread.
  """
  has_ended = threading.Event()

  def end_process_if_idle() -> None:
    idle_secs, last_measurement = 0., measure_progress()
    while not has_ended.wait(_POLL_SECS):
      measurement = measure_progress()
      idle_secs = idle_secs + _POLL_SECS if measurement == last_measurement else 0.
      last_measurement = measurement
      if idle_secs > timeout_secs and not has_ended.is_set():
        end_hanging_process('the {} made no progress for {:.0f} s (--step_timeout_secs)'.format(
            activity, timeout_secs))

  if timeout_secs and not is_library_call():
    threading.Thread(target=end_process_if_idle, name=activity + ' watchdog', daemon=True).start()
  try:
    yield
  finally:
    has_ended.set()


def measure_work() -> Any:
  """Returns a value that changes when this process computes, reads files or writes files."""
  transferred = [line for line in machine.read_kernel_file('/proc/self/io').splitlines()
                 if line.startswith(('read_bytes', 'write_bytes'))]
  # CPU time is counted in whole seconds, because threads that only wait also need some CPU time.
  return int(time.process_time()), transferred
