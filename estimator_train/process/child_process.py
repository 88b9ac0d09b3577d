"""The program itself, run in a process of its own.

A run that is measured must find the machine, TensorFlow and the memory as every other run does.
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
# After SIGTERM a run finishes its step and saves a checkpoint, which is of no use here.
_GRACE_SECS = 5.
# Would make the child's run another one: a start long ago, and a worker of the parent's cluster.
_NOT_INHERITED = (start_up.STARTED_VARIABLE, 'TF_CONFIG')
_PR_SET_PDEATHSIG = 1


class ChildRun(NamedTuple):
  """How a run ended.

  Attributes:
    code: its exit code, or minus the number of the signal that killed it.
    result: the object on the last line of its standard output; None where there is none.
    error: why it failed, in a line; None when its code is 0.
  """
  code: int
  result: Optional[Dict[str, Any]]
  error: Optional[str]


def run(arguments: Sequence[str], log: str, module: str = 'estimator_train',
        cores: Collection[int] = ()) -> ChildRun:
  """Runs the program, and waits for its end.

  It does not outlive this process, whatever ends that, and it is stopped when an exception, such
  as that of a signal, ends the wait. To be called from the main thread: the kernel takes the end
  of the thread that started a process for the end of its parent.

  Args:
    arguments: the flags.
    log: path of a file for its standard error.
    module: what to run; the program, or one that runs it.
    cores: to stay on; none: those of this process.
  """
  with open(log, 'wb') as err, tempfile.TemporaryFile() as out:
    process = subprocess.Popen(
        [sys.executable, '-m', module] + list(arguments), stdin=subprocess.DEVNULL,
        stdout=out, stderr=err, env=environment(),
        preexec_fn=make_settle_in(cores))  # noqa: PLW1509 (it takes no lock)
    try:
      code = process.wait()
    except BaseException:
      _stop(process)
      raise
    out.seek(0)
    return ChildRun(code, _result(out.read()), error_of(code, log) if code else None)


def environment() -> Dict[str, str]:
  """Returns this process's variables, with which the child finds the same modules."""
  variables = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
  # Last, as there may be other packages beside this one, which need not be the ones to use.
  found = [variables['PYTHONPATH']] if variables.get('PYTHONPATH') else []
  variables['PYTHONPATH'] = os.pathsep.join(found + [paths.PARENT])
  return variables


def make_settle_in(cores: Collection[int] = ()) -> Callable[[], None]:
  """Makes what a new process calls to be killed when this one ends, and to stay on its cores.

  Elsewhere than on Linux it does not do the former.

  Args:
    cores: their numbers; none: those of this process.
  """
  parent = os.getpid()
  # PyDLL keeps the lock of Python's threads, of which the new process has no other.
  prctl = getattr(ctypes.PyDLL(None), 'prctl', None)

  def settle_in() -> None:
    if cores:
      os.sched_setaffinity(0, cores)
    # It would end the process until the program has a handler.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    if prctl is not None:
      prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
      if os.getppid() != parent:  # It was faster.
        os._exit(1)

  return settle_in


def _stop(process: 'subprocess.Popen[bytes]') -> None:
  process.terminate()
  try:
    process.wait(_GRACE_SECS)
  except subprocess.TimeoutExpired:
    pass
  finally:  # Another signal may end this wait.
    process.kill()
    process.wait()


def _result(out: bytes) -> Optional[Dict[str, Any]]:
  lines = out.decode('utf-8', 'replace').splitlines()
  try:
    result = json.loads(lines[-1])
  except (IndexError, ValueError):
    return None
  return result if isinstance(result, dict) else None


def error_of(code: int, log: str, offset: int = 0) -> str:
  """Returns why a process failed, in a line.

  Args:
    code: its exit code, or minus the number of the signal that killed it.
    log: path of the file of its standard error.
    offset: where in that its part begins.
  """
  if code < 0:
    name = signal.Signals(-code).name
    # Nobody else sends that without having been asked to.
    return 'killed by {}{}'.format(name, ', for want of memory perhaps (see dmesg)'
                                   if -code == signal.SIGKILL else '')
  with open(log, 'rb') as file:
    file.seek(offset)
    text = file.read().decode('utf-8', 'replace')
  lines = [line.strip() for line in text.splitlines() if line.strip()]
  errors = [line[len(_ERROR):] for line in lines if line.startswith(_ERROR)]
  return (errors or lines or ['exit code {} without a word'.format(code)])[-1]
