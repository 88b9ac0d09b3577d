"""Defines the exceptions that end a run early, and formats their texts."""

import contextlib
import re
from typing import Any, Dict, Iterator, Optional, Sequence, Type

# The maximum number of characters of a log line, and of each part of a UserError.
_MAX_LENGTH = 1000
_MAX_LISTED = 10  # The maximum number of items of a list in a message.


class UserError(Exception):
  """The user's input is invalid: a flag, a path, data or a model. The exit code is 2.

  The text is one line, `what: given: remedy`.

  Attributes:
    what: the rule that was broken, or what failed.
    given: the value that broke the rule.
    remedy: how to correct the input.
    result: the result of the mode, which is printed in spite of the error; None if there is none.
  """
  exit_code = 2

  def __init__(self, what: str, given: Any, remedy: str,
               result: Optional[Dict[str, Any]] = None) -> None:
    super().__init__(what, given, remedy)
    self.what, self.given, self.remedy, self.result = what, given, remedy, result

  def __str__(self) -> str:
    return ': '.join(shorten(one_line(str(part)))
                     for part in (self.what, self.given, self.remedy))


class InvalidValue(UserError, ValueError):
  """A value given to a function of the library is invalid."""


class UnknownKeyword(UserError, TypeError):
  """A function of the library was called with an unknown keyword."""


class WrongArgument(UserError, TypeError):
  """An argument of a function of the library has a wrong type."""


class ImmutableSettings(UserError, AttributeError):
  """An attribute of Settings was assigned to or deleted."""


@contextlib.contextmanager
def translate_to_keywords(kind: Optional[Type[UserError]] = None) -> Iterator[None]:
  """Makes UserErrors of the `with` block name keywords of Python callers instead of flags.

  Args:
    kind: the class of the translated errors; None to keep the class. A ValueError or a TypeError
      always keeps its class.
  """
  try:
    yield
  except UserError as error:
    if kind is None or isinstance(error, (ValueError, TypeError)):
      kind = type(error)
    what, given, remedy = (flags_to_keywords(str(part))
                           for part in (error.what, error.given, error.remedy))
    raise kind(what, given, remedy, error.result) from error.__cause__


def flags_to_keywords(text: str) -> str:
  """Replaces each flag in a text, such as `--seed`, by the keyword `seed` of Python callers."""
  return re.sub(r'(?<![\w-])--(?=[a-z])', '', text)


def one_line(text: str) -> str:
  """Joins the lines of a text with spaces, and escapes control characters."""
  return printable(' '.join(line.strip() for line in text.splitlines()))


def first_line(error: BaseException) -> str:
  """Returns the first line of the message of a TensorFlow error; '' for other errors."""
  message = getattr(error, 'message', None)
  return message.strip().partition('\n')[0].strip() if isinstance(message, str) else ''


def printable(text: str) -> str:
  """Escapes line breaks and control characters in a text, such as the name of a file."""
  return ''.join(character if character.isprintable() else ascii(character)[1:-1]
                 for character in text)


def join_items(items: Sequence[str]) -> str:
  """Joins items, such as class names, with commas. Shows only the first items of a long list."""
  rest = len(items) - _MAX_LISTED
  return ', '.join([printable(item) for item in items[:_MAX_LISTED]]
                   + (['... ({:,} more)'.format(rest)] if rest > 0 else []))


def shorten(text: str) -> str:
  """Removes the middle of a text that is too long, such as a very long path."""
  if len(text) <= _MAX_LENGTH:
    return text
  half = _MAX_LENGTH // 2
  return '{}... ({} characters) ...{}'.format(text[:half], len(text), text[-half:])


class BadExample(ValueError):
  """An example of a data set is damaged."""
  _rule = 'an example cannot be read'
  remedy = 'repair or remove it (--mode=audit lists all), or give --on_bad_image=skip'

  def __init__(self, place: str, reason: str) -> None:
    super().__init__('{} ({})'.format(place, reason))
    self.reason = reason

  def to_user_error(self) -> UserError:
    return UserError(self._rule, str(self), self.remedy)


class WrongSchema(BadExample):
  """The features or labels of an example differ from those that the flags state.

  The example is never skipped, because the whole data set probably differs from the flags.
  """
  _rule = 'an example does not fit the flags'

  def __init__(self, place: str, reason: str, remedy: str) -> None:
    super().__init__(place, reason)
    self.remedy = remedy


class TrainingFailed(Exception):
  """Training cannot continue, for example because the loss is not finite. The exit code is 3."""
  exit_code = 3


class NonFiniteLoss(TrainingFailed):
  """The training loss is not finite.

  All workers of a cluster raise this error, so none of them reports it to the others.
  """


class CheckpointNotSaved(TrainingFailed):
  """Saving a checkpoint failed for longer than `--save_retry_secs`."""


class RunLockLost(TrainingFailed, OSError):
  """This process must not write to `--model_dir`, because it no longer owns the lock of the folder.

  It is an OSError, so that writing is retried: a folder that was moved may be moved back.
  """


# A process that a signal ends exits with this code plus the number of the signal, as in a shell. If
# a task of a cluster exits with this code or above, a restart can resume the run.
SIGNAL_CODE_BASE = 128


class PeerLost(Exception):
  """Another task was lost, was stopped, or did not start. The same command resumes the run.

  Attributes:
    exit_code: the exit code of this process; that of the other task if a restart cannot help.
  """
  exit_code = 138

  def __init__(self, text: str, exit_code: int = exit_code) -> None:
    super().__init__(text)
    self.exit_code = exit_code


class StoppedBySignal(BaseException):
  """A signal ended the run. The exit code is 128 + the number of the signal, `signum`.

  Like KeyboardInterrupt, this class is not an Exception: `except Exception` does not catch it.
  """

  def __init__(self, signum: int, text: str) -> None:
    super().__init__(signum, text)
    self.signum = signum
    self._text = text

  def __str__(self) -> str:
    return self._text
