"""Runs Python, or the program, in a child process.

Requests to the driver of a GPU run in a child process, because they may crash or hang on a faulty
machine. Each measured run is a new process, so that earlier runs do not affect the measurement.
"""

import contextlib
import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from typing import IO, Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Union

from estimator_train.errors import printable
from estimator_train.system import PACKAGE_PARENT_DIR
from estimator_train.system.start_up import START_TIME_VARIABLE

_ERROR_LINE = re.compile(r'error: |\w*Error: ')
# Seconds between SIGTERM and SIGKILL. After SIGTERM, a run finishes its step and saves a
# checkpoint. A run that needs more time is killed and loses the steps since the last checkpoint.
_GRACE_SECS, _KILL_TIMEOUT_SECS = 5., 1.
# If the child inherited these variables, it would measure its start-up time from the start of this
# process, and would join the cluster of this process.
_VARIABLES_NOT_INHERITED = (START_TIME_VARIABLE, 'TF_CONFIG')
_PR_SET_PDEATHSIG = 1  # For prctl(2): sets the signal that the child receives when its parent ends.


class ChildRun(NamedTuple):
  """The outcome of a child process.

  Attributes:
    code: the exit code, or the negative number of the signal that ended the process. None if the
      process did not end before the timeout.
  """
  code: Optional[int]
  stdout: str = ''
  stderr: str = ''
  secs: float = 0.

  @property
  def json_values(self) -> List[Any]:
    """The JSON objects and arrays in standard output, one per line."""
    return [json.loads(line) for line in self.stdout.splitlines() if line.startswith(('{', '['))]

  @property
  def error(self) -> Optional[str]:
    """The reason why the process failed, in one line; None if the code is 0."""
    if self.code is None:
      return 'no answer within {:.0f} s'.format(self.secs)
    return None if self.code == 0 else _failure_reason_in_output(
        self.code, self.stderr.strip() or self.stdout)


def run_program(arguments: Sequence[str], log_path: str, module: str = 'estimator_train',
                cores: Sequence[int] = ()) -> ChildRun:
  """Runs the program in a child process, and waits until it ends. See run_python.

  Args:
    log_path: the file for standard error.
    module: the program, or a launcher of the program.
  """
  with open(log_path, 'w+b') as log:
    return run_python(['-m', module, *arguments], environment=child_environment(), stderr=log,
                      cores=cores)


def run_python(arguments: Sequence[str], timeout_secs: Optional[float] = None,
               environment: Optional[Mapping[str, str]] = None, python: str = '',
               stderr: Optional[IO[bytes]] = None, cores: Sequence[int] = ()) -> ChildRun:
  """Runs Python in a child process, and waits until it ends.

  The child and its own child processes are stopped after the timeout, or if an exception, such as
  that of a signal handler, interrupts the wait. Call this function from the main thread; see
  start_process.

  Args:
    arguments: for the interpreter, such as `-c` and code.
    environment: None for the environment variables of this process.
    python: the path of the interpreter; '' for the interpreter of this process.
    stderr: None for a temporary file.
    cores: see start_process.

  Raises:
    OSError: the interpreter does not exist, or cannot be started.
  """
  start_time = time.monotonic()
  # The output goes to files. A pipe would stay open until the child processes of the child end.
  with tempfile.TemporaryFile() as stdout_file, tempfile.TemporaryFile() as temporary_stderr:
    process = start_process([python or sys.executable, *arguments], environment, stdout_file,
                            stderr or temporary_stderr, cores)
    code: Optional[int] = None
    try:
      with contextlib.suppress(subprocess.TimeoutExpired):
        code = process.wait(timeout_secs)
    finally:
      _terminate_then_kill(process)
    secs = time.monotonic() - start_time
    output_texts = []
    for file in (stdout_file, stderr or temporary_stderr):
      file.seek(0)
      output_texts.append(file.read().decode('utf-8', 'replace'))
    return ChildRun(code, output_texts[0], output_texts[1], secs)


def child_environment() -> Dict[str, str]:
  """Returns the environment variables with which a child process imports the same package."""
  variables = {name: value for name, value in os.environ.items()
               if name not in _VARIABLES_NOT_INHERITED}
  # The parent folder of this package comes last, so that other packages in that folder do not hide
  # packages of the user.
  user_path = [variables['PYTHONPATH']] if variables.get('PYTHONPATH') else []
  variables['PYTHONPATH'] = os.pathsep.join(user_path + [PACKAGE_PARENT_DIR])
  return variables


def start_process(command: Sequence[str], environment: Optional[Mapping[str, str]],
                  stdout: Union[IO[bytes], int, None], stderr: Optional[IO[bytes]],
                  cores: Sequence[int] = ()) -> 'subprocess.Popen[bytes]':
  """Starts a child process without input.

  The child has its own session, so signals from the terminal do not reach it. Linux kills the child
  when the thread that called this function ends. Call this function from the main thread, so that
  the child is killed only when this process ends. Other systems do not kill the child.

  Args:
    environment: None for the environment variables of this process.
    stdout, stderr: files or descriptors; None for those of this process.
    cores: the IDs of the cores that the child may use; empty for the cores of this process.
  """
  parent_id = os.getpid()
  # PyDLL calls prctl while it has the GIL. The child has only one thread, so no other thread waits.
  prctl = getattr(ctypes.PyDLL(None), 'prctl', None)

  def preexec_fn() -> None:
    if cores:
      os.sched_setaffinity(0, cores)
    # Without this, SIGUSR1 would end the child if it came before the child installed its handler.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    if prctl is not None:
      prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
      if os.getppid() != parent_id:  # The parent ended before the call of prctl: no signal comes.
        os._exit(1)

  return subprocess.Popen(
      list(command), stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, env=environment,
      start_new_session=True,
      preexec_fn=preexec_fn)  # noqa: PLW1509 (The function takes no lock.)


def _terminate_then_kill(process: 'subprocess.Popen[bytes]') -> None:
  """Sends SIGTERM to a process. After its end, or _GRACE_SECS later, kills its process group."""
  try:
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
      process.wait(_GRACE_SECS)
  finally:  # Even if a signal interrupts the wait, the process is killed.
    with contextlib.suppress(ProcessLookupError, PermissionError):
      os.killpg(process.pid, signal.SIGKILL)
    # A process that hangs inside a driver cannot be killed. It is left running.
    with contextlib.suppress(subprocess.TimeoutExpired):
      process.wait(_KILL_TIMEOUT_SECS)


def failure_reason_in_log(code: int, log_path: str, offset: int = 0) -> str:
  """Returns the reason why a process failed, in one line.

  Args:
    code: see ChildRun.
    log_path: the file that has the standard error of the process.
    offset: the position in bytes at which this output begins in the file.
  """
  with open(log_path, 'rb') as file:
    file.seek(offset)
    return _failure_reason_in_output(code, file.read().decode('utf-8', 'replace'))


def _failure_reason_in_output(code: int, text: str) -> str:
  if code < 0:
    # Real-time signals have no name.
    signal_names = {member.value: member.name for member in signal.Signals}
    # The kernel sends SIGKILL when memory runs out, but a user may also have sent the signal.
    return 'killed by {}{}'.format(signal_names.get(-code, 'signal {}'.format(-code)),
                                   ', possibly out of memory (see dmesg)'
                                   if -code == signal.SIGKILL else '')
  lines = [line.strip() for line in text.splitlines() if line.strip()]
  # The error need not be the last line, because lines with advice may follow.
  error_lines = [line for line in lines if _ERROR_LINE.match(line)]
  error_line = (error_lines or lines or ['exit code {} without any output'.format(code)])[-1]
  return printable(error_line[len('error: '):] if error_line.startswith('error: ') else error_line)
