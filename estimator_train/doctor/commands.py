"""Commands that may crash or hang."""

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from typing import IO, Dict, NamedTuple, Optional, Sequence

_AFTER_KILL_SECS = 1.


class Done(NamedTuple):
  """How a command ended.

  Attributes:
    code: its exit code, minus the number of the signal that ended it, or None when it was still
      running at the deadline.
    out: its standard output.
    err: its standard error.
    secs: how long it took.
  """
  code: Optional[int]
  out: str
  err: str
  secs: float

  def reason(self) -> str:
    """Returns in a few words why it failed."""
    if self.code is None:
      return 'no answer within {:.0f} s'.format(self.secs)
    if self.code < 0:
      return 'ended by {}'.format(signal.Signals(-self.code).name)
    lines = (self.err.strip() or self.out.strip()).splitlines()
    return 'exit code {}{}'.format(self.code, ': ' + lines[-1].strip() if lines else '')


def run(command: Sequence[str], deadline_secs: float,
        environment: Optional[Dict[str, str]] = None) -> Done:
  """Runs a command, and kills it with its children when it takes too long.

  Args:
    command: the program and its arguments.
    deadline_secs: what it may take.
    environment: variables that it gets beside those of this process.

  Raises:
    OSError: there is no such program, or it cannot be started.
  """
  began = time.monotonic()
  # Into files: a pipe stays open for as long as any grandchild holds it.
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
    return Done(code, _text(out), _text(err), time.monotonic() - began)


def _kill(process: 'subprocess.Popen[bytes]') -> None:
  with contextlib.suppress(ProcessLookupError, PermissionError):
    os.killpg(process.pid, signal.SIGKILL)
  # What hangs inside of a driver cannot even be killed: it is left behind.
  with contextlib.suppress(subprocess.TimeoutExpired):
    process.wait(_AFTER_KILL_SECS)


def _text(file: IO[bytes]) -> str:
  file.seek(0)
  return file.read().decode('utf-8', 'replace')
