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
    code: exit code, or the negative number of the signal that ended it; None if it was still
      running at the deadline.
    out: its standard output.
    err: its standard error.
    secs: its duration in seconds.
  """
  code: Optional[int]
  out: str
  err: str
  secs: float

  def failure_reason(self) -> str:
    """Returns a short description of the failure."""
    if self.code is None:
      return 'no answer within {:.0f} s'.format(self.secs)
    if self.code < 0:
      return 'ended by {}'.format(signal.Signals(-self.code).name)
    lines = (self.err.strip() or self.out.strip()).splitlines()
    return 'exit code {}{}'.format(self.code, ': ' + lines[-1].strip() if lines else '')


def run_command(command: Sequence[str], deadline_secs: float,
                environment: Optional[Dict[str, str]] = None) -> CommandResult:
  """Runs a command, and kills it with its children after the deadline.

  Args:
    command: the program and its arguments.
    deadline_secs: seconds after which it is killed.
    environment: environment variables in addition to those of this process.

  Raises:
    OSError: the program does not exist, or cannot be started.
  """
  began = time.monotonic()
  # Into files, since a pipe stays open until all descendants of the command have closed it.
  with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True,
        env=dict(os.environ, **(environment or {})))
    try:
      code: Optional[int] = process.wait(deadline_secs)
    except subprocess.TimeoutExpired:
      code = None
    finally:
      _kill(process)
    return CommandResult(code, _read_text(out), _read_text(err), time.monotonic() - began)


def _kill(process: 'subprocess.Popen[bytes]') -> None:
  with contextlib.suppress(ProcessLookupError, PermissionError):
    os.killpg(process.pid, signal.SIGKILL)
  # A process that hangs inside a driver cannot be killed, and is left behind.
  with contextlib.suppress(subprocess.TimeoutExpired):
    process.wait(_KILL_TIMEOUT_SECS)


def _read_text(file: IO[bytes]) -> str:
  file.seek(0)
  return file.read().decode('utf-8', 'replace')
