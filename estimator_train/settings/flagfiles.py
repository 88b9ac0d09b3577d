"""Flagfiles: their lines in the place of --flagfile, each with the file and line it is from."""

import os
import re
from typing import List, NamedTuple, Sequence, Tuple

from estimator_train.errors import UserError

_FLAGFILE = re.compile(r'--?flagfile(?:=(.*))?', re.DOTALL)
_COMMENTS = ('#', '//')


class Argument(NamedTuple):
  """An argument, and where it was read.

  Attributes:
    text: such as `--batch_size=64`.
    place: FILE:LINE; empty for the command line itself.
  """
  text: str
  place: str

  @property
  def flag(self) -> str:
    """The flag's name."""
    return self.text.lstrip('-').partition('=')[0]


def expand(argv: Sequence[str]) -> List[Argument]:
  """Returns the arguments of a command line with those of flagfiles, and of theirs, in place.

  As absl reads them: a flag a line; blank lines and those that begin with # or // say nothing;
  paths are relative to the current folder.

  Raises:
    UserError: a file cannot be read, or reads itself.
  """
  arguments: List[Argument] = []
  rest = list(argv)
  while rest:
    text = rest.pop(0)
    if text in ('--flagfile', '-flagfile') and rest:
      text = '--flagfile=' + rest.pop(0)
    arguments += _expanded(Argument(text, ''), ())
  return arguments


def with_places(error: UserError, arguments: Sequence[Argument]) -> UserError:
  """Returns the error with the file and line of what was given, where that is from a flagfile."""
  last = {argument.flag: argument for argument in arguments}
  places = [argument.place for flag, argument in last.items() if argument.place and (
      error.given in (argument.text, argument.text.partition('=')[0])
      or re.search(r'(^|\s)--{}(?![\w-])'.format(re.escape(flag)), str(error.given)))]
  if not places:
    return error
  return UserError(error.what, '{} ({})'.format(error.given, ', '.join(places)), error.remedy)


def _expanded(argument: Argument, above: Tuple[str, ...]) -> List[Argument]:
  """Returns the argument or, where it is a flagfile, what that says; `above` are the open ones."""
  match = _FLAGFILE.fullmatch(argument.text)
  if match is None:
    return [argument]
  path = os.path.expanduser((match.group(1) or '').strip())
  shown = path + (', read by ' + argument.place if argument.place else '')
  if not path or '\0' in path:
    raise UserError('--flagfile names no file', argument.place or argument.text,
                    'give --flagfile=FILE')
  if os.path.realpath(path) in above:
    raise UserError('a flagfile reads itself', shown, 'take that line out')
  arguments: List[Argument] = []
  for number, line in enumerate(_lines(path, shown), 1):
    if line and not line.startswith(_COMMENTS):
      arguments += _expanded(Argument(line, '{}:{}'.format(path, number)),
                             above + (os.path.realpath(path),))
  return arguments


def _lines(path: str, shown: str) -> List[str]:
  try:
    with open(path, encoding='utf-8-sig') as file:  # Some editors begin a file with a mark.
      return [line.strip() for line in file]
  except OSError as error:
    reason = error.strerror
  except UnicodeError:
    reason = 'it is no text in UTF-8'
  raise UserError('the flagfile cannot be read', '{} ({})'.format(shown, reason),
                  'give --flagfile=FILE, a text with a flag a line')
