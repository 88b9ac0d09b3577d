"""Parses the command line, with its flagfiles, into Settings.

The syntax is that of absl: one dash or two, `--FLAG=VALUE` or `--FLAG VALUE`, and `--noFLAG` for
`--FLAG=false`. A flagfile has one flag per line. Blank lines and lines that begin with # or // are
ignored.
"""

import difflib
import glob
import os
import re
import textwrap
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from estimator_train.errors import UserError
from estimator_train.settings import (
  FLAGS_FILE,
  GivenFlags,
  Settings,
  check_keywords,
  data_folder,
  launcher_flags,
  rules,
  workloads,
)
from estimator_train.settings.flag_type import (
  GROUP_TITLES,
  Flag,
  all_flags,
  flags_of,
  unknown_flag_error,
)
from estimator_train.settings.flags import (
  FLAGS_OF_A_NEW_RUN,
  MODES_WITH_CHECKPOINT_FLAG,
  TRAINING_MODES,
)

USAGE = """\
estimator-train --flagfile=NAME [--FLAG=VALUE...]

Trains a Keras model as a TensorFlow 1.15 Estimator, evaluates it, and reports the training speed.
NAME is a file with one flag per line, or one of those that ship with the package:
{}.
Flags on the command line override flags in the flagfile; --FLAG= unsets one. The last line of
standard output is the result as a JSON object, on a terminal only with --json.

  estimator-train --flagfile=quickstart    trains for half a minute, on data of the package
  estimator-train --help                   lists all flags
""".format(', '.join(workloads.FLAGFILE_NAMES))

# These flags require a --dataset other than the default, which has no patterns.
_FLAGS_OF_PATTERNS = ('train_pattern', 'eval_pattern', 'validation_fraction')
_HELP_WITH_WORD = re.compile('--?help=.')
_FLAGFILE_ARGUMENT = re.compile(r'--?flagfile(?:=(.*))?', re.DOTALL)
_COMMENT_PREFIXES = ('#', '//')
# Syntax that a shell does not take literally. `#` before a digit may be part of a name: `Top #1`.
_QUOTED = re.compile(r'(?:^|(?<=[/,]))(["\']).*?\1(?=[/,]|$)')
_VARIABLE = re.compile(r'\$(?:[A-Za-z_]\w*|{[A-Za-z_]\w*})')
_COMMENT = re.compile(r'\s(?:#(?!\d)\s*\w|//)')  # `C #,F #` are names.


class Argument(NamedTuple):
  """A command-line argument, such as `--batch_size=64`, and its origin.

  Attributes:
    location: `FILE:LINE` if the argument is in a flagfile, '' if it is on the command line.
    is_in_recorded_file: whether this program wrote the flagfile.
  """
  text: str
  location: str
  is_in_recorded_file: bool = False

  @property
  def flag_name(self) -> str:
    """The name of the flag. For `--noFLAG`, this is FLAG."""
    name = self.text.lstrip('-').partition('=')[0]
    negated_flag = _find_negated_flag(name)
    return name if negated_flag is None else negated_flag.name


def parse(argv: Sequence[str]) -> Settings:
  """Parses a command line, without the program's name, into Settings.

  Raises:
    UserError: a flag is unknown, has an invalid value, or contradicts another flag.
  """
  given_arguments = _expand_flagfiles(argv)
  names_on_command_line = {argument.flag_name for argument in given_arguments
                           if not argument.location}
  flagfiles = [argument.text for argument in _join_values([Argument(text, '') for text in argv])
               if _FLAGFILE_ARGUMENT.fullmatch(argument.text)]
  arguments = _drop_unset_flags(given_arguments)
  try:
    for argument in {argument.flag_name: argument for argument in arguments}.values():
      if argument.location and not argument.is_in_recorded_file:
        _check_no_shell_syntax(argument)
    values = _parse_values(arguments)
    run_arguments = _read_flags_of_run(values, {argument.flag_name for argument in arguments})
    if run_arguments:
      arguments = _drop_unset_flags(run_arguments + arguments)
      values = _parse_values(arguments)
    given_values = {name: values[name] for name in values
                    if any(name == argument.flag_name for argument in arguments)}
    rules.unset_excluded_flags(
        given_values, names_on_command_line.intersection(given_values))
    settings = Settings.from_flags(given_values, GivenFlags(
        frozenset(names_on_command_line), tuple(flagfiles),
        frozenset(argument.flag_name for argument in given_arguments if argument.location)))
    return settings.for_mode(settings.run.mode)
  except UserError as error:
    raise _add_locations(error, arguments) from error


def settings_from_keywords(mode: str, keywords: Dict[str, Any]) -> Settings:
  """Makes the settings of a Python function from flags as keywords, as `parse` would.

  Args:
    mode: the mode of the function, unless the keywords or the run in `model_dir` have another one.

  Raises:
    UserError: see Settings. Rules that hold only in the mode are not checked.
  """
  given = check_keywords(keywords)
  defaults = {name: flag.default for name, flag in all_flags().items()}
  run_arguments = _read_flags_of_run({**defaults, 'mode': mode, **given}, set(given))
  try:
    recorded = _parse_values(run_arguments)
    return Settings.from_flags({
        'mode': mode, **{argument.flag_name: recorded[argument.flag_name]
                         for argument in run_arguments}, **given}, GivenFlags(frozenset(given)))
  except UserError as error:
    raise _add_locations(error, run_arguments) from error


def _check_no_shell_syntax(argument: Argument) -> None:
  """Raises a UserError if a value in a flagfile has shell syntax, except in an existing path."""
  flag, value = all_flags().get(argument.flag_name), argument.text.partition('=')[2]
  if flag is None or flag.value_type not in (str, tuple):  # Parsing reports errors in other types.
    return

  def names_existing_file(end: int) -> bool:
    path = re.split('[/,]', value[end:])[0]
    path = os.path.expanduser(value[:end] + path)
    return flag.is_path and any(os.path.lexists(name) or bool(glob.glob(name))
                                for name in (path, path.rpartition(',')[2]) if name)

  for pattern, what, remedy in (
      (_COMMENT, 'a comment', 'write the comment in a line of its own'),
      (_QUOTED, 'quotes', 'remove the quotes'),
      (_VARIABLE, 'a variable', 'write the value of the variable')):
    for match in pattern.finditer(value):
      # Double quotes are part of the syntax of lists. A `$` is literal except in paths.
      is_literal = (pattern is _QUOTED and flag.value_type is tuple and match.group(1) == '"' or
                    pattern is _VARIABLE and not flag.is_path)
      if not is_literal and not names_existing_file(match.end()):
        raise UserError('the value of a flag in a flagfile is taken literally, and has ' + what,
                        argument.text, remedy + ', or give the flag on the command line')


def _find_negated_flag(name: str) -> Optional[Flag]:
  """Returns FLAG if the name is `noFLAG`, and FLAG is boolean."""
  flag = all_flags().get(name[2:]) if name.startswith('no') else None
  return flag if flag is not None and flag.value_type is bool else None


def _parse_values(arguments: Sequence[Argument]) -> Dict[str, Any]:
  flags = all_flags()
  values = {name: flag.default for name, flag in flags.items()}
  for argument in [each.text for each in arguments]:
    name, equals, text = argument[2 if argument.startswith('--') else 1:].partition('=')
    flag = flags.get(name)
    negated_flag = _find_negated_flag(name)
    if flag is not None and argument.startswith('-'):
      if not equals:
        if flag.value_type is not bool:
          raise UserError('--{} has no value'.format(name), argument,
                          'write it as --{}=VALUE'.format(name))
        text = 'true'
    elif negated_flag is not None and argument.startswith('-'):
      if equals:
        raise UserError('the flags cannot be parsed', argument + ' does not take an argument',
                        'see --help')
      flag, text = negated_flag, 'false'
    elif argument == '--':
      continue
    else:
      raise unknown_flag_error(argument)
    values[flag.name] = flag.parse(text)
  return values


def _is_file(path: str) -> bool:
  try:
    return os.path.isfile(path)
  except ValueError:  # The check of --model_dir reports a null byte and a lone surrogate.
    return False


def _read_flags_of_run(values: Dict[str, Any], names: Set[str]) -> List[Argument]:
  """Returns the flags of the run in --model_dir if the command uses them, else [].

  Modes that read a checkpoint use them. Training uses them unless the command defines a run.
  Flags that a given flag excludes are not returned.

  Args:
    values: the values of all flags.
    names: the names of the flags that the user gave.
  """
  path = os.path.join(os.path.expanduser(values['model_dir'] or ''), FLAGS_FILE)
  reads_checkpoint = values['mode'] in MODES_WITH_CHECKPOINT_FLAG
  continues_run = values['mode'] in TRAINING_MODES and names.isdisjoint(FLAGS_OF_A_NEW_RUN)
  if not values['model_dir'] or not (reads_checkpoint or continues_run):
    return []
  if not _is_file(path):
    if reads_checkpoint and 'dataset' not in names and names.intersection(_FLAGS_OF_PATTERNS):
      raise UserError('--dataset is required if --model_dir has no run',
                      '--model_dir={} has no flags.txt'.format(values['model_dir']),
                      'give --dataset, or the --model_dir of a run')
    return []
  modes_to_keep = ['--mode=' + mode for mode in TRAINING_MODES] if continues_run else []
  excluded_flags = {name for pair in rules.EXCLUSIVE_PAIRS if names.intersection(pair)
                    for name in pair}
  arguments = [argument for argument in _expand_flagfile(Argument('--flagfile=' + path, ''), ())
               if argument.flag_name not in excluded_flags and (
                   argument.flag_name not in ('mode', 'model_dir')
                   or argument.text in modes_to_keep)]
  dataset = data_folder.normalize(os.path.expanduser(values['dataset']))
  recorded_datasets = [argument.text.partition('=')[2] for argument in arguments
                       if argument.flag_name == 'dataset']
  if 'dataset' in names and data_folder.is_folder(dataset) and not any(
      data_folder.is_same(dataset, recorded) for recorded in recorded_datasets):
    # The patterns of the run are those of other data.
    return [argument for argument in arguments if argument.flag_name not in _FLAGS_OF_PATTERNS]
  return arguments


def _drop_unset_flags(arguments: Sequence[Argument]) -> List[Argument]:
  """Removes flags of flagfiles that the command line unsets by an empty value."""
  last_by_flag = {argument.flag_name: argument for argument in arguments}
  flags_in_files = {argument.flag_name for argument in arguments if argument.location}
  unset_flags = {flag for flag in flags_in_files if not last_by_flag[flag].location
                 and last_by_flag[flag].text.partition('=')[1:] == ('=', '')}
  return [argument for argument in arguments if argument.flag_name not in unset_flags]


def help_text(argv: Sequence[str] = (), width: Optional[int] = None) -> str:
  """Returns the text for `--help`. For `--help=WORD`, it has only the flags whose lines have WORD.

  Args:
    width: the width of the terminal; None to print each flag in one line.

  Raises:
    UserError: no flag has the word.
  """
  words = [argument.partition('=')[2] for argument in argv if _HELP_WITH_WORD.match(argument)]
  lines = _full_help_text().splitlines()
  if words:
    lines = [line for line in lines
             if line.startswith('  --') and words[-1].lower() in line.lower()]
  if not lines:
    raise UserError('no flag has this word', '--help=' + words[-1], '--help lists all flags')
  if width:
    lines = [textwrap.fill(line, max(width, 40), subsequent_indent='      ', break_on_hyphens=False)
             for line in lines]
  return '\n'.join(lines)


def _full_help_text() -> str:
  lines = [USAGE]
  for group, title in GROUP_TITLES.items():
    lines.append('{}:'.format(title))
    for flag in flags_of(group):
      lines.append('  --{}: {}{}'.format(flag.name, flag.description, flag.defaults_text))
    lines.append('')
  lines.append('{}:'.format(launcher_flags.TITLE))
  for launcher_flag in launcher_flags.LAUNCHER_FLAGS:
    suffix = ' (default: 0)' if launcher_flag.takes_count else ''
    lines.append('  --{}: {}{}'.format(launcher_flag.name, launcher_flag.help, suffix))
  lines.append('\n  --flagfile: file to read flags from, one per line, or the name of one of the '
               'package\n  --version: print the version\n  --help: print this text; '
               '--help=WORD: print the flags that have WORD in their line')
  return '\n'.join(lines)


def wants_help(argv: Sequence[str]) -> bool:
  """Returns whether the command line contains `--help` or one of its variants."""
  return any(argument in ('--help', '-help', '-h', '--helpfull', '--helpshort')
             or _HELP_WITH_WORD.match(argument) for argument in argv)


def _expand_flagfiles(argv: Sequence[str]) -> List[Argument]:
  """Replaces each --flagfile, on the command line or in a flagfile, by the flags in the file.

  The flags on the command line are returned last, so that they override those in flagfiles.
  """
  arguments = [expanded for argument in _join_values([Argument(text, '') for text in argv])
               for expanded in _expand_flagfile(argument, ())]
  # The stable sort moves the flags on the command line to the end.
  return sorted(arguments, key=lambda argument: not argument.location)


def _join_values(arguments: Sequence[Argument]) -> List[Argument]:
  """Joins `--FLAG` and its value, if the value is the next argument, to `--FLAG=VALUE`."""
  flags = all_flags()
  joined_arguments: List[Argument] = []
  for argument in arguments:
    previous = joined_arguments[-1].text if joined_arguments else ''
    name = previous.lstrip('-') if previous.startswith('-') else ''
    flag = flags.get(name)
    if not argument.text.startswith('--') and (
        name == 'flagfile' or flag is not None and flag.value_type is not bool):
      text = '{}={}'.format(previous, argument.text)
      joined_arguments[-1] = joined_arguments[-1]._replace(text=text)
    else:
      joined_arguments.append(argument)
  return joined_arguments


def _add_locations(error: UserError, arguments: Sequence[Argument]) -> UserError:
  """Adds `FILE:LINE` to an error that names a flag in a flagfile. Returns other errors unchanged.

  If the error also names a flag on the command line, the origins of all its flags are added.
  """
  last_by_flag = {argument.flag_name: argument for argument in arguments}
  arguments_in_error = [
      argument for flag, argument in last_by_flag.items()
      if error.given in (argument.text, argument.text.partition('=')[0])
      or re.search(r'(^|\s)--{}(?![\w-])'.format(re.escape(flag)), str(error.given))]
  locations = [argument.location for argument in arguments_in_error]
  if not any(locations):
    return error
  if not all(locations):
    locations = ['--{}: {}'.format(argument.flag_name, argument.location or 'command line')
                 for argument in arguments_in_error]
  return UserError(error.what, '{} ({})'.format(error.given, ', '.join(locations)), error.remedy)


def _expand_flagfile(argument: Argument, including_files: Tuple[str, ...]) -> List[Argument]:
  """Returns the arguments in the file that a `--flagfile` names. Returns other arguments unchanged.

  Args:
    including_files: the real paths of the flagfiles that include this argument.
  """
  match = _FLAGFILE_ARGUMENT.fullmatch(argument.text)
  if match is None:
    return [argument]
  path = os.path.expanduser((match.group(1) or '').strip())
  path_and_origin = path + (', included by ' + argument.location if argument.location else '')
  if not path or '\0' in path:
    raise UserError('--flagfile has no file name', argument.location or argument.text,
                    'give --flagfile=FILE')
  if os.path.realpath(path) in including_files:
    raise UserError('a flagfile must not include itself', path_and_origin, 'remove that line')
  if os.path.basename(path) == path and not os.path.exists(path):  # It may be in the package.
    name = path.rpartition('.flags')[0] or path
    packaged_path = os.path.join(workloads.FLAGFILES_DIR, name + '.flags')
    path = packaged_path if os.path.isfile(packaged_path) else path
  lines = _read_lines(path, path_and_origin)
  is_in_recorded_file = any(re.fullmatch(r'# --\w+ is not set', line) for line in lines)
  arguments = _join_values([
      Argument(line, '{}:{}'.format(path, number), is_in_recorded_file)
      for number, line in enumerate(lines, 1)
      if line and not line.startswith(_COMMENT_PREFIXES)])
  including_files += (os.path.realpath(path),)
  return [expanded for argument in arguments
          for expanded in _expand_flagfile(argument, including_files)]


def _read_lines(path: str, path_and_origin: str) -> List[str]:
  try:
    with open(path, encoding='utf-8-sig') as file:  # `-sig` skips a byte order mark.
      return [line.strip() for line in file]
  except OSError as error:
    reason = error.strerror
  except UnicodeError:
    reason = 'it is not UTF-8 text'
  similar = difflib.get_close_matches(os.path.basename(path), workloads.FLAGFILE_NAMES, 1)
  raise UserError('the flagfile cannot be read', '{} ({})'.format(path_and_origin, reason),
                  "{}give --flagfile=FILE, a text file with one flag per line, or one of the "
                  "package's: {}".format(''.join(map('did you mean {}? '.format, similar)),
                                         ', '.join(workloads.FLAGFILE_NAMES)))
