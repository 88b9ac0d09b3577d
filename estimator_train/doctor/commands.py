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
    stdout: its standard output.
    stderr: its standard error.
    secs: its duration in seconds.
  """
  exit_code: Optional[int]
  stdout: str
  stderr: str
  secs: float

  def failure_reason(self) -> str:
    """Returns a short description of the failure."""
    if self.exit_code is None:
      return 'no answer within {:.0f} s'.format(self.secs)
    if self.exit_code < 0:
      return 'ended by {}'.format(signal.Signals(-self.exit_code).name)
    lines = (self.stderr.strip() or self.stdout.strip()).splitlines()
    return 'exit code {}{}'.format(self.exit_code, ': ' + lines[-1].strip() if lines else '')


def run_command(command: Sequence[str], timeout_secs: float,
                environment: Optional[Dict[str, str]] = None) -> CommandResult:
  """Runs a command, and kills it after the timeout. Children that it leaves are always killed.

  Args:
    command: the program and its arguments.
    timeout_secs: seconds after which the command is killed.
    environment: environment variables in addition to those of this process.

  Raises:
    OSError: the program does not exist, or cannot be started.
  """
  start_time = time.monotonic()
  # Output goes to files, because a pipe stays open until all descendants of the command close it.
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
  with contextlib.suppress(ProcessLookupError, PermissionError):
    os.killpg(process.pid, signal.SIGKILL)
  # A process that hangs inside a driver cannot be killed, and is left running.
  with contextlib.suppress(subprocess.TimeoutExpired):
    process.wait(_KILL_TIMEOUT_SECS)


def _read_text(file: IO[bytes]) -> str:
  file.seek(0)
  return file.read().decode('utf-8', 'replace')
