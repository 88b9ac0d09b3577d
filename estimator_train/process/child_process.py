"""Runs the program in a child process.

Each measured run starts in a new process, so that earlier runs do not affect its memory or the
state of TensorFlow.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
from typing import Any, Callable, Collection, Dict, NamedTuple, Optional, Sequence

from estimator_train.files import paths
from estimator_train.process import start_up

_ERROR_PREFIX = 'error: '
# Seconds between SIGTERM and SIGKILL. On SIGTERM a run finishes its step and saves a checkpoint,
# but its checkpoints are not needed here.
_GRACE_SECS = 5.
# With these, the child would measure from its parent's start, and join its parent's cluster.
_VARIABLES_NOT_INHERITED = (start_up.START_TIME_VARIABLE, 'TF_CONFIG')
_PR_SET_PDEATHSIG = 1


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

  The child never outlives this process, and is stopped when an exception, such as one raised by a
  signal handler, interrupts the wait. Call this from the main thread: for the kernel, a child's
  parent ends with the thread that started it.

  Args:
    arguments: the flags.
    log_path: path of the file for the child's standard error.
    module: the module to run: the program, or one of its launchers.
    cores: IDs of the cores that the child may use; empty: those of this process.
  """
  with open(log_path, 'wb') as err, tempfile.TemporaryFile() as out:
    process = subprocess.Popen(
        [sys.executable, '-m', module] + list(arguments), stdin=subprocess.DEVNULL,
        stdout=out, stderr=err, env=child_environment(),
        preexec_fn=make_preexec_fn(cores))  # noqa: PLW1509 (it takes no lock)
    try:
      code = process.wait()
    except BaseException:
      _stop(process)
      raise
    out.seek(0)
    return ChildRun(code, _parse_result(out.read()),
                    failure_reason(code, log_path) if code else None)


def child_environment() -> Dict[str, str]:
  """Returns the environment for a child process, which makes it import this same package."""
  variables = {name: value for name, value in os.environ.items()
               if name not in _VARIABLES_NOT_INHERITED}
  # Appended, since the folder may contain other packages, which must not hide the user's.
  user_path = [variables['PYTHONPATH']] if variables.get('PYTHONPATH') else []
  variables['PYTHONPATH'] = os.pathsep.join(user_path + [paths.PACKAGE_PARENT_DIR])
  return variables


def make_preexec_fn(cores: Collection[int] = ()) -> Callable[[], None]:
  """Makes the `preexec_fn` of a child that is killed when this process ends, and pinned to cores.

  The child is killed on Linux only.

  Args:
    cores: IDs of the cores that the child may use; empty: those of this process.
  """
  parent = os.getpid()
  # PyDLL keeps the GIL during a call; the child has no other thread that could use it.
  prctl = getattr(ctypes.PyDLL(None), 'prctl', None)

  def preexec_fn() -> None:
    if cores:
      os.sched_setaffinity(0, cores)
    # Until the program has installed its handler, SIGUSR1 would end the child.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    if prctl is not None:
      prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
      if os.getppid() != parent:  # The parent ended before the call of prctl.
        os._exit(1)

  return preexec_fn


def _stop(process: 'subprocess.Popen[bytes]') -> None:
  process.terminate()
  try:
    process.wait(_GRACE_SECS)
  except subprocess.TimeoutExpired:
    pass
  finally:  # A signal may interrupt the wait, too.
    process.kill()
    process.wait()


def _parse_result(out: bytes) -> Optional[Dict[str, Any]]:
  lines = out.decode('utf-8', 'replace').splitlines()
  try:
    result = json.loads(lines[-1])
  except (IndexError, ValueError):
    return None
  return result if isinstance(result, dict) else None


def failure_reason(code: int, log_path: str, offset: int = 0) -> str:
  """Returns one line with the reason why a process failed.

  Args:
    code: exit code of the process, or the negative number of the signal that killed it.
    log_path: path of the file with the standard error of the process.
    offset: position in the file, in bytes, where the output of the process begins.
  """
  if code < 0:
    name = signal.Signals(-code).name
    # If no user sent SIGKILL, the kernel did, because memory ran out.
    return 'killed by {}{}'.format(name, ', possibly out of memory (see dmesg)'
                                   if -code == signal.SIGKILL else '')
  with open(log_path, 'rb') as file:
    file.seek(offset)
    text = file.read().decode('utf-8', 'replace')
  lines = [line.strip() for line in text.splitlines() if line.strip()]
  errors = [line[len(_ERROR_PREFIX):] for line in lines if line.startswith(_ERROR_PREFIX)]
  return (errors or lines or ['exit code {} without any output'.format(code)])[-1]
