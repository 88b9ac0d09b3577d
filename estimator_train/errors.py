"""The ways in which a run ends early, each with an exit code of its own."""

from typing import Any, Dict, Optional

_SHOWN = 1000  # Characters: a path may have four times as many, but hardly one that a user reads.


class UserError(Exception):
  """What the user gave is wrong; the program ends with code 2.

  Its text is one line, `what is wrong: what was given: what to do`.

  Attributes:
    what: the rule that was broken.
    given: the value that broke it.
    remedy: what to do about it.
    result: what the mode has to say all the same, for standard output; mostly None.
  """

  def __init__(self, what: str, given: Any, remedy: str,
               result: Optional[Dict[str, Any]] = None) -> None:
    super().__init__(what, given, remedy)
    self.what, self.given, self.remedy, self.result = what, given, remedy, result

  def __str__(self) -> str:
    return ': '.join(_shortened(one_line(str(part)))
                     for part in (self.what, self.given, self.remedy))


def one_line(text: str) -> str:
  """Returns the text, which may have several lines and names of any characters, in one."""
  return printable(' '.join(line.strip() for line in text.splitlines()))


def printable(text: str) -> str:
  """Returns the text, such as a file's name, with escapes for line breaks and control codes."""
  return ''.join(character if character.isprintable() else ascii(character)[1:-1]
                 for character in text)


def _shortened(text: str) -> str:
  if len(text) <= _SHOWN:
    return text
  return '{}... ({} characters) ...{}'.format(text[:_SHOWN // 2], len(text), text[-_SHOWN // 2:])


class TrainingFailed(Exception):
  """Training cannot go on (the loss is not finite, say); the program ends with code 3."""


class NotSaved(TrainingFailed):
  """No checkpoint could be saved for too long, on the one task that saves them."""


class PeerLost(Exception):
  """Another task of the cluster is lost, or never came: starting again resumes the run.

  Attributes:
    exit_code: what the program ends with.
  """
  exit_code = 138


class StoppedBySignal(BaseException):
  """A signal asked the run to end; the program ends with code 128 + its number.

  Like KeyboardInterrupt no Exception: what takes those for failures of its own lets it pass.

  Attributes:
    signum: the signal.
  """

  def __init__(self, signum: int, text: str) -> None:
    super().__init__(signum, text)
    self.signum = signum
    self._text = text

  def __str__(self) -> str:
    return self._text
