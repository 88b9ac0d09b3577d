"""Diagnoses for --mode=doctor whether training can run on the machine.

In each module, some functions collect properties of the machine, and the functions `check_...`
judge these properties. Operations that may crash or hang on a faulty machine, such as importing
TensorFlow or calling the driver of a GPU, run in a child process.
"""

from typing import NamedTuple


class CheckResult(NamedTuple):
  """The result of one check, which is one line of the output.

  Attributes:
    level: `ok`, `warning` (some runs fail or are slow) or `error` (no run works, or no run can use
      the GPUs of the machine).
    remedy: how to correct the fault; if the level is `ok`, a hint or ''.
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
  return CheckResult(name, 'ok', found, hint)


def warning(name: str, found: str, remedy: str) -> CheckResult:
  return CheckResult(name, 'warning', found, remedy)


def error(name: str, found: str, remedy: str) -> CheckResult:
  return CheckResult(name, 'error', found, remedy)
