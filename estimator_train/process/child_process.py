"""Runs the program in a child process.

Each measured run starts in a new process, so that no earlier run affects its TensorFlow or memory.
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

_ERROR = 'error: '
# On SIGTERM a run finishes its step and saves a checkpoint, which is not needed here.
_GRACE_SECS = 5.
# These would give the child the start time of its parent, and make it a worker of its cluster.
_NOT_INHERITED = (start_up.STARTED_VARIABLE, 'TF_CONFIG')
_PR_SET_PDEATHSIG = 1


class ChildRun(NamedTuple):
  """The outcome of a run in a child process.

  Attributes:
    code: exit code, or the negative number of the signal that killed it.
    result: the JSON object on the last line of its standard output; None if there is none.
    error: one line with the reason of the failure; None if the code is 0.
  """
  code: int
  result: Optional[Dict[str, Any]]
  error: Optional[str]


def run_program(arguments: Sequence[str], log: str, module: str = 'estimator_train',
                cores: Collection[int] = ()) -> ChildRun:
  """Runs the program in a child process, and waits until it ends.

  The child never outlives this process, and is stopped when an exception, such as one raised by a
  signal handler, interrupts the wait. Call this from the main thread: for the kernel, a child's
  parent ends with the thread that started it.

  Args:
    arguments: the flags.
    log: path of the file for its standard error.
    module: the module to run: the program, or a launcher of it.
    cores: IDs of the cores that it may use; empty: those of this process.
  """
  with open(log, 'wb') as err, tempfile.TemporaryFile() as out:
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
    return ChildRun(code, _parse_result(out.read()), failure_reason(code, log) if code else None)


def child_environment() -> Dict[str, str]:
  """Returns the environment of a child process, in which it imports the same package."""
  variables = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
  # Appended, since the folder may contain other packages, which must not hide the user's.
  given = [variables['PYTHONPATH']] if variables.get('PYTHONPATH') else []
  variables['PYTHONPATH'] = os.pathsep.join(given + [paths.PARENT])
  return variables


def make_preexec_fn(cores: Collection[int] = ()) -> Callable[[], None]:
  """Makes the `preexec_fn` of a child that is killed when this process ends, and is bound to cores.

  The kill works on Linux only.

  Args:
    cores: IDs of the cores that the child may use; empty: those of this process.
  """
  parent = os.getpid()
  # PyDLL keeps the GIL during a call; the child has no other thread that could use it.
  prctl = getattr(ctypes.PyDLL(None), 'prctl', None)

  def preexec_fn() -> None:
    if cores:
      os.sched_setaffinity(0, cores)
    # By default SIGUSR1 ends a process; the program sets its handler later.
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


def failure_reason(code: int, log: str, offset: int = 0) -> str:
  """Returns one line with the reason why a process failed.

  Args:
    code: its exit code, or the negative number of the signal that killed it.
    log: path of the file with its standard error.
    offset: position in the file, in bytes, where its output begins.
  """
  if code < 0:
    name = signal.Signals(-code).name
    # Besides users, only the kernel sends SIGKILL, when memory runs out.
    return 'killed by {}{}'.format(name, ', possibly out of memory (see dmesg)'
                                   if -code == signal.SIGKILL else '')
  with open(log, 'rb') as file:
    file.seek(offset)
    text = file.read().decode('utf-8', 'replace')
  lines = [line.strip() for line in text.splitlines() if line.strip()]
  errors = [line[len(_ERROR):] for line in lines if line.startswith(_ERROR)]
  return (errors or lines or ['exit code {} without any output'.format(code)])[-1]
