"""Diagnoses for --mode=doctor whether training can run on the machine.

In each module, some functions collect properties of the machine. The functions `check_...` judge
these properties. What may crash or hang on a faulty machine, such as importing TensorFlow or asking
the driver of a GPU, runs in a child process.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any, List, Mapping, NamedTuple, Optional, Sequence

OK, WARNING, ERROR = 'ok', 'warning', 'error'
_KILL_TIMEOUT_SECS = 1.


class CheckResult(NamedTuple):
  """The result of one check, a line of the doctor's output.

  Attributes:
    name: name of the check.
    level: OK, WARNING (some runs fail or are slow) or ERROR (no run works, or no run can use the
      GPUs of the machine).
    found: what the check found on the machine.
    remedy: how to correct the fault; if the level is OK, a hint or ''.
  """
  name: str
  level: str
  found: str
  remedy: str

  def format_line(self) -> str:
    """Returns the result as one line of text; line breaks in the texts become spaces."""
    texts = [text for text in (self.name, self.found, self.remedy) if text]
    return '{:<7}  {}'.format(self.level, ' '.join(': '.join(texts).split()))


def ok(name: str, found: str, hint: str = '') -> CheckResult:
  """Makes the result of a check that requires no action."""
  return CheckResult(name, OK, found, hint)


def warning(name: str, found: str, remedy: str) -> CheckResult:
  """Makes the result of a check that found a fault that affects some runs."""
  return CheckResult(name, WARNING, found, remedy)


def error(name: str, found: str, remedy: str) -> CheckResult:
  """Makes the result of a check that found a fault that prevents runs."""
  return CheckResult(name, ERROR, found, remedy)


class ChildResult(NamedTuple):
  """The outcome of a child process.

  Attributes:
    exit_code: exit code, or the negative number of the signal that ended the process; None if the
      process was still running when the timeout expired.
    stdout: standard output of the process.
    stderr: standard error of the process.
    secs: duration of the process in seconds.
  """
  exit_code: Optional[int]
  stdout: str
  stderr: str
  secs: float

  def parse_lines(self) -> List[Any]:
    """Returns the values of the lines of standard output that are JSON objects or arrays."""
    return [json.loads(line) for line in self.stdout.splitlines() if line.startswith(('{', '['))]

  def failure_reason(self) -> str:
    """Returns in a few words why the process failed. The exit code must not be 0."""
    if self.exit_code is None:
      return 'no answer within {:.0f} s'.format(self.secs)
    if self.exit_code < 0:
      names = {each.value: each.name for each in signal.Signals}  # Real-time signals have no name.
      return 'ended by ' + names.get(-self.exit_code, 'signal {}'.format(-self.exit_code))
    # Lines with advice may follow the line that names the exception.
    raised = re.findall(r'^\w*Error: .*$', self.stderr, re.MULTILINE)
    lines = raised or (self.stderr.strip() or self.stdout.strip()).splitlines()
    return 'exit code {}{}'.format(self.exit_code, ': ' + lines[-1].strip() if lines else '')


def run_python(arguments: Sequence[str], timeout_secs: float,
               environment: Optional[Mapping[str, str]] = None,
               python: Optional[str] = None) -> ChildResult:
  """Runs Python, and kills it and its own child processes after the timeout.

  Args:
    arguments: arguments of the interpreter, such as `-c` and code.
    timeout_secs: seconds after which the process is killed.
    environment: environment variables; None: those of this process.
    python: path of the interpreter; None: the interpreter of this process.

  Raises:
    OSError: the interpreter does not exist, or cannot be started.
  """
  start_time = time.monotonic()
  # Write the output to files, because reading a pipe to its end would also wait for child processes
  # of the child.
  with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
    process = subprocess.Popen(
        [python or sys.executable, *arguments], stdin=subprocess.DEVNULL, stdout=stdout,
        stderr=stderr, start_new_session=True, env=environment)
    exit_code: Optional[int] = None
    try:
      with contextlib.suppress(subprocess.TimeoutExpired):
        exit_code = process.wait(timeout_secs)
    finally:
      with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
      # A process that hangs inside a driver cannot be killed, and is left running.
      with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_KILL_TIMEOUT_SECS)
    secs = time.monotonic() - start_time
    for file in (stdout, stderr):
      file.seek(0)
    return ChildResult(exit_code, stdout.read().decode('utf-8', 'replace'),
                       stderr.read().decode('utf-8', 'replace'), secs)
