"""Runs the program in a child process.

Each measured run is a new process, so that the memory and the TensorFlow state of earlier runs do
not affect the measurement.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
from typing import Any, Callable, Collection, Dict, NamedTuple, Optional, Sequence

from estimator_train.errors import printable
from estimator_train.system import PACKAGE_PARENT_DIR
from estimator_train.system.progress import START_TIME_VARIABLE

_ERROR_PREFIX = 'error: '
# Seconds between SIGTERM and SIGKILL. After SIGTERM, a run finishes its step and saves a
# checkpoint. A run that needs more time is killed and loses the steps since the last checkpoint.
_GRACE_SECS = 5.
# If the child inherited these variables, it would measure its start-up time from the start of this
# process, and would join the cluster of this process.
_VARIABLES_NOT_INHERITED = (START_TIME_VARIABLE, 'TF_CONFIG')
_PR_SET_PDEATHSIG = 1  # For prctl(2): sets the signal that the child receives when its parent ends.


class ChildRun(NamedTuple):
  """The outcome of a run in a child process.

  Attributes:
    code: exit code, or the negative number of the signal that killed the child.
    result: the JSON object on the last line of standard output; None if there is none.
    error: one line with the reason of the failure; None if the code is 0.
  """
  code: int
  result: Optional[Dict[str, Any]]
  error: Optional[str]


def run_program(arguments: Sequence[str], log_path: str, module: str = 'estimator_train',
                cores: Collection[int] = ()) -> ChildRun:
  """Runs the program in a child process, and waits until it ends.

  An exception that interrupts the wait, for example in a signal handler, stops the child. Linux
  kills the child when the thread that started the child ends. Call this function from the main
  thread, so that Linux kills the child only when this process ends.

  Args:
    arguments: the flags.
    log_path: path of the file for the child's standard error.
    module: the module to run: the program, or one of its launchers.
    cores: IDs of the cores that the child may use; empty: the cores of this process.
  """
  with open(log_path, 'wb') as err, tempfile.TemporaryFile() as out:
    process = subprocess.Popen(
        [sys.executable, '-m', module] + list(arguments), stdin=subprocess.DEVNULL,
        stdout=out, stderr=err, env=child_environment(),
        preexec_fn=make_preexec_fn(cores))  # noqa: PLW1509 (The function takes no lock.)
    try:
      code = process.wait()
    except BaseException:
      _stop(process)
      raise
    out.seek(0)
    return ChildRun(code, _parse_result(out.read()),
                    failure_reason(code, log_path) if code else None)


def child_environment() -> Dict[str, str]:
  """Returns environment variables with which a child process imports the same package."""
  variables = {name: value for name, value in os.environ.items()
               if name not in _VARIABLES_NOT_INHERITED}
  # The parent folder of this package comes last, because other packages in this folder must not
  # hide packages of the user.
  user_path = [variables['PYTHONPATH']] if variables.get('PYTHONPATH') else []
  variables['PYTHONPATH'] = os.pathsep.join(user_path + [PACKAGE_PARENT_DIR])
  return variables


def make_preexec_fn(cores: Collection[int] = ()) -> Callable[[], None]:
  """Makes a `preexec_fn` that pins the child to cores and ties its life to this process.

  Linux kills the child when this process ends; other systems do not.

  Args:
    cores: IDs of the cores that the child may use; empty: the cores of this process.
  """
  parent = os.getpid()
  # PyDLL calls prctl without releasing the GIL. The child has only one thread, so no thread waits.
  prctl = getattr(ctypes.PyDLL(None), 'prctl', None)

  def preexec_fn() -> None:
    if cores:
      os.sched_setaffinity(0, cores)
    # Until the program has installed its handler, SIGUSR1 would end the child.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    if prctl is not None:
      prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
      if os.getppid() != parent:  # The parent ended before the call of prctl: no signal comes.
        os._exit(1)

  return preexec_fn


def _stop(process: 'subprocess.Popen[bytes]') -> None:
  """Stops a process by SIGTERM and, if necessary, by SIGKILL."""
  process.terminate()
  try:
    process.wait(_GRACE_SECS)
  except subprocess.TimeoutExpired:
    pass
  finally:  # Kills the process even if a signal interrupts the wait.
    process.kill()
    process.wait()


def _parse_result(out: bytes) -> Optional[Dict[str, Any]]:
  """Returns the JSON object on the last line of the output; None if there is none."""
  lines = out.decode('utf-8', 'replace').splitlines()
  try:
    result = json.loads(lines[-1])
  except (IndexError, ValueError):
    return None
  return result if isinstance(result, dict) else None


def failure_reason(code: int, log_path: str, offset: int = 0) -> str:
  """Returns one line with the reason why a process failed.

  Args:
    code: exit code of the process, or the negative number of the signal that killed the
      process.
    log_path: path of the file with the standard error of the process.
    offset: position in the file, in bytes, where the output of the process begins.
  """
  if code < 0:
    name = signal.Signals(-code).name
    # The kernel sends SIGKILL when memory runs out, but a user may also have sent this signal.
    return 'killed by {}{}'.format(name, ', possibly out of memory (see dmesg)'
                                   if -code == signal.SIGKILL else '')
  with open(log_path, 'rb') as file:
    file.seek(offset)
    text = file.read().decode('utf-8', 'replace')
  lines = [line.strip() for line in text.splitlines() if line.strip()]
  errors = [line[len(_ERROR_PREFIX):] for line in lines if line.startswith(_ERROR_PREFIX)]
  return printable((errors or lines or ['exit code {} without any output'.format(code)])[-1])
