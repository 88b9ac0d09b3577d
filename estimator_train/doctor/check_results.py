"""What a check says: all is well, be warned, or this does not work."""

from typing import NamedTuple

OK, WARNING, ERROR = 'ok', 'warning', 'error'


class Finding(NamedTuple):
  """One line of the doctor.

  Attributes:
    name: what was looked at.
    level: OK, WARNING or ERROR. A warning is about what some runs need, or what makes them slow;
      with an error no run works, or none on the GPUs that are there.
    found: what was found.
    remedy: what to do about it; where all is well, a hint or nothing.
  """
  name: str
  level: str
  found: str
  remedy: str

  def line(self) -> str:
    """Returns it as one line for people, whatever a command or a path had to say."""
    parts = [part for part in (self.name, self.found, self.remedy) if part]
    return '{:<7}  {}'.format(self.level, ' '.join(': '.join(parts).split()))


def ok(name: str, found: str, hint: str = '') -> Finding:
  """Returns the finding that nothing need be done."""
  return Finding(name, OK, found, hint)


def warning(name: str, found: str, remedy: str) -> Finding:
  """Returns a finding that some runs suffer from."""
  return Finding(name, WARNING, found, remedy)


def error(name: str, found: str, remedy: str) -> Finding:
  """Returns a finding that stops runs."""
  return Finding(name, ERROR, found, remedy)
