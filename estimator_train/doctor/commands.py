"""Runs commands that may crash or hang."""

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from typing import IO, Dict, NamedTuple, Optional, Sequence

_KILL_TIMEOUT_SECS = 1.


class CommandResult(NamedTuple):
  """The outcome of a command.

  Attributes:
    exit_code: exit code, or the negative number of the signal that ended the command; None if the
      command was still running when the timeout expired.
    stdout: standard output of the command.
    stderr: standard error of the command.
    secs: duration of the command in seconds.
  """
  exit_code: Optional[int]
  stdout: str
  stderr: str
  secs: float

  def failure_reason(self) -> str:
    """Returns in a few words why the command failed. The exit code must not be 0."""
    if self.exit_code is None:
      return 'no answer within {:.0f} s'.format(self.secs)
    if self.exit_code < 0:
      try:
        return 'ended by ' + signal.Signals(-self.exit_code).name
      except ValueError:  # The signal has no name, such as most real-time signals.
        return 'ended by signal {}'.format(-self.exit_code)
    lines = (self.stderr.strip() or self.stdout.strip()).splitlines()
    return 'exit code {}{}'.format(self.exit_code, ': ' + lines[-1].strip() if lines else '')


def run_command(command: Sequence[str], timeout_secs: float,
                environment: Optional[Dict[str, str]] = None) -> CommandResult:
  """Runs a command, and kills it after the timeout.

  Child processes that are still running when the command has ended are killed, too.

  Args:
    command: the program and its arguments.
    timeout_secs: seconds after which the command is killed.
    environment: environment variables in addition to those of this process.

  Raises:
    OSError: the program does not exist, or cannot be started.
  """
  start_time = time.monotonic()
  # Write the output to files, because reading a pipe to its end would also wait for child processes
  # of the command.
  with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, start_new_session=True,
        env=dict(os.environ, **(environment or {})))
    try:
      exit_code: Optional[int] = process.wait(timeout_secs)
    except subprocess.TimeoutExpired:
      exit_code = None
    finally:
      _kill(process)
    return CommandResult(exit_code, _read_text(stdout), _read_text(stderr),
                         time.monotonic() - start_time)


def _kill(process: 'subprocess.Popen[bytes]') -> None:
  """Kills the process and its child processes, and waits briefly until the process has ended."""
  with contextlib.suppress(ProcessLookupError, PermissionError):
    os.killpg(process.pid, signal.SIGKILL)
  # A process that hangs inside a driver cannot be killed, and is left running.
  with contextlib.suppress(subprocess.TimeoutExpired):
    process.wait(_KILL_TIMEOUT_SECS)


def _read_text(file: IO[bytes]) -> str:
  file.seek(0)
  return file.read().decode('utf-8', 'replace')
