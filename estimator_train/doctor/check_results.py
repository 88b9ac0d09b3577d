"""The result of a diagnostic check: ok, warning or error."""

from typing import NamedTuple

OK, WARNING, ERROR = 'ok', 'warning', 'error'


class CheckResult(NamedTuple):
  """The result of one check, a line of the doctor's output.

  Attributes:
    name: name of the check.
    level: OK; WARNING if some runs fail or are slow; or ERROR if no run works, or none that uses
      the GPUs of the machine.
    found: the facts that were found.
    remedy: how to correct the fault; with OK, a hint or empty.
  """
  name: str
  level: str
  found: str
  remedy: str

  def format_line(self) -> str:
    """Returns the result as one line of text; line breaks in its parts become spaces."""
    parts = [part for part in (self.name, self.found, self.remedy) if part]
    return '{:<7}  {}'.format(self.level, ' '.join(': '.join(parts).split()))


def ok(name: str, found: str, hint: str = '') -> CheckResult:
  """Makes a result that requires no action."""
  return CheckResult(name, OK, found, hint)


def warning(name: str, found: str, remedy: str) -> CheckResult:
  """Makes a result that affects some runs."""
  return CheckResult(name, WARNING, found, remedy)


def error(name: str, found: str, remedy: str) -> CheckResult:
  """Makes a result that prevents runs."""
  return CheckResult(name, ERROR, found, remedy)
