"""Replaces --flagfile by the arguments in the file, and records the line of each argument."""

import os
import re
from typing import List, NamedTuple, Sequence, Tuple

from estimator_train.errors import UserError

_FLAGFILE = re.compile(r'--?flagfile(?:=(.*))?', re.DOTALL)
_COMMENT_PREFIXES = ('#', '//')


class Argument(NamedTuple):
  """A command-line argument and its origin.

  Attributes:
    text: the argument, such as `--batch_size=64`.
    location: `FILE:LINE` if the argument is in a flagfile, '' if it is on the command line.
  """
  text: str
  location: str

  @property
  def flag(self) -> str:
    """The name of the flag, without dashes."""
    return self.text.lstrip('-').partition('=')[0]


def expand_arguments(argv: Sequence[str]) -> List[Argument]:
  """Replaces each --flagfile, on the command line or in a flagfile, by the flags in the file.

  The arguments of the command line are returned last, so that they override the arguments in
  flagfiles, regardless of the order on the command line.

  A flagfile has the format of absl, one flag per line. Blank lines and lines that begin with # or
  // are ignored. Paths are relative to the current folder.

  Raises:
    UserError: a flagfile cannot be read, or includes itself.
  """
  arguments: List[Argument] = []
  rest = list(argv)
  while rest:
    text = rest.pop(0)
    if text in ('--flagfile', '-flagfile') and rest:
      text = '--flagfile=' + rest.pop(0)
    arguments += _expand_argument(Argument(text, ''), ())
  # absl uses the last value of a flag. The stable sort moves the flags of the command line to the
  # end, so that they override flagfiles.
  return sorted(arguments, key=lambda argument: not argument.location)


def with_locations(error: UserError, arguments: Sequence[Argument]) -> UserError:
  """Returns the error; if a flagfile sets a flag that the error names, adds `FILE:LINE`.

  If the command line sets another flag that the error names, adds the origins of both.
  """
  last_by_flag = {argument.flag: argument for argument in arguments}
  named = [
      argument for flag, argument in last_by_flag.items()
      if error.given in (argument.text, argument.text.partition('=')[0])
      or re.search(r'(^|\s)--{}(?![\w-])'.format(re.escape(flag)), str(error.given))]
  locations = [argument.location for argument in named]
  if not any(locations):
    return error
  if not all(locations):
    locations = ['--{}: {}'.format(argument.flag, argument.location or 'command line')
                 for argument in named]
  return UserError(error.what, '{} ({})'.format(error.given, ', '.join(locations)), error.remedy)


def _expand_argument(argument: Argument, including_files: Tuple[str, ...]) -> List[Argument]:
  """Returns the argument itself or, if the argument is a --flagfile, the arguments in the file.

  Args:
    argument: the argument to expand.
    including_files: the real paths of the flagfiles that include this argument, to detect cycles.
  """
  match = _FLAGFILE.fullmatch(argument.text)
  if match is None:
    return [argument]
  path = os.path.expanduser((match.group(1) or '').strip())
  path_and_origin = path + (', included by ' + argument.location if argument.location else '')
  if not path or '\0' in path:
    raise UserError('--flagfile has no file name', argument.location or argument.text,
                    'give --flagfile=FILE')
  if os.path.realpath(path) in including_files:
    raise UserError('a flagfile must not include itself', path_and_origin, 'remove that line')
  arguments: List[Argument] = []
  for number, line in enumerate(_read_lines(path, path_and_origin), 1):
    if line and not line.startswith(_COMMENT_PREFIXES):
      arguments += _expand_argument(Argument(line, '{}:{}'.format(path, number)),
                                    including_files + (os.path.realpath(path),))
  return arguments


def _read_lines(path: str, path_and_origin: str) -> List[str]:
  try:
    with open(path, encoding='utf-8-sig') as file:  # Skips the BOM of some editors.
      return [line.strip() for line in file]
  except OSError as error:
    reason = error.strerror
  except UnicodeError:
    reason = 'it is not UTF-8 text'
  raise UserError('the flagfile cannot be read', '{} ({})'.format(path_and_origin, reason),
                  'give --flagfile=FILE, a text file with one flag per line')
