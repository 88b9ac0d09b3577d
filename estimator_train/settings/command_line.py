"""Parses the command line into Settings. No other module uses absl.flags."""

import re
from typing import Any, Dict, Sequence

from absl import flags

from estimator_train import settings as settings_lib
from estimator_train.errors import UserError
from estimator_train.settings import flagfiles
from estimator_train.settings.flag import all_flags, flags_of, group_titles, unknown_flag_error

_USAGE = """\
python -m estimator_train --flagfile=estimator_train/configs/NAME.flags [--FLAG=VALUE...]

Trains a Keras model as a TensorFlow 1.15 Estimator, evaluates it, and reports the training speed.
Flags on the command line override flags in the flagfile. The last line of standard output is the
result as a JSON object.
"""

# A key is the type of a flag's values. Its value is the function of absl that defines such a flag,
# and the description of valid values in errors.
_DEFINERS = {str: (flags.DEFINE_string, 'a string'),
             int: (flags.DEFINE_integer, 'an integer'),
             float: (flags.DEFINE_float, 'a number'),
             bool: (flags.DEFINE_boolean, 'true or false'),
             tuple: (flags.DEFINE_list, 'a comma-separated list with balanced quotes')}

_HELP_WITH_WORD = re.compile('--?help=.')
# Pairs of flags that exclude each other. A flag on the command line also overrides the other flag
# of the pair in a flagfile.
_EXCLUSIVE_PAIRS = (('train_steps', 'train_epochs'),
                    ('save_checkpoints_steps', 'save_checkpoints_secs'))


def parse(argv: Sequence[str]) -> settings_lib.Settings:
  """Parses a command line into Settings.

  Args:
    argv: the arguments, without the program's name.

  Raises:
    UserError: a flag is unknown, has an invalid value, or contradicts another flag.
  """
  arguments = flagfiles.expand_arguments(argv)
  try:
    return _parse_arguments(arguments)
  except UserError as error:
    raise flagfiles.with_locations(error, arguments) from error


def _parse_arguments(arguments: Sequence[flagfiles.Argument]) -> settings_lib.Settings:
  """Parses the arguments of the command line and of its flagfiles into Settings."""
  absl_flags = _define_flags()
  _check_values_present(arguments, absl_flags)
  try:
    # With known_only, absl returns the unknown flags. Without known_only, absl would search for
    # similar names to propose, and would exceed Python's recursion limit with a long name.
    unknown = absl_flags(['estimator_train'] + [argument.text for argument in arguments],
                         known_only=True)[1:]
  except (flags.Error, ValueError) as error:
    raise _translate_error(error) from error
  for text in unknown:
    if text != '--':  # absl returns this separator, too.
      raise unknown_flag_error(text, list(absl_flags))
  declared = all_flags()
  values = {name: absl_flags[name].value for name in declared}
  _prefer_command_line(values, arguments)
  for name, flag in declared.items():
    if flag.value_type is tuple:
      values[name] = flag.parse(values[name])
  settings = settings_lib.Settings.from_flags(values)
  return settings.for_mode(settings.run.mode)


def help_text(argv: Sequence[str] = ()) -> str:
  """Returns the text that `--help` prints or, for `--help=WORD`, the flags whose lines have WORD.

  Raises:
    UserError: no flag has the word.
  """
  words = [argument.partition('=')[2] for argument in argv if _HELP_WITH_WORD.match(argument)]
  if not words:
    return _full_help_text()
  found = [line for line in _full_help_text().splitlines()
           if line.startswith('  --') and words[-1].lower() in line.lower()]
  if not found:
    raise UserError('no flag has this word', '--help=' + words[-1], '--help lists all flags')
  return '\n'.join(found)


def _full_help_text() -> str:
  lines = [_USAGE]
  for group, title in group_titles().items():
    lines.append('{}:'.format(title))
    for flag in flags_of(group):
      default = flag.default
      suffix = '' if default in (None, ()) else ' (default: {})'.format(str(default).lower())
      lines.append('  --{}: {}{}'.format(flag.name, flag.description, suffix))
    lines.append('')
  lines.append('  --flagfile: file to read flags from, one per line\n  --help: print this text; '
               '--help=WORD: print the flags that have WORD in their line\n\n'
               './run_train.sh --local_workers=N [--local_ps=M] [--max_restarts=K] FLAG...\n'
               '  trains with N workers and M parameter servers on this machine; restarts them up '
               'to K times\n'
               './run_train.sh --tensorboard FLAG...\n'
               '  trains and runs TensorBoard at the same time')
  return '\n'.join(lines)


def wants_help(argv: Sequence[str]) -> bool:
  """Whether the command line contains `--help` or one of its variants."""
  return any(argument in ('--help', '-help', '-h', '--helpfull', '--helpshort')
             or _HELP_WITH_WORD.match(argument) for argument in argv)


def _define_flags() -> flags.FlagValues:
  """Returns a FlagValues of absl in which all flags are defined."""
  absl_flags = flags.FlagValues()  # absl's global FlagValues would keep values between calls.
  for flag in all_flags().values():
    definer, _ = _DEFINERS[flag.value_type]
    definer(flag.name, flag.default, flag.help, flag_values=absl_flags)
  return absl_flags


def _check_values_present(arguments: Sequence[flagfiles.Argument],
                          absl_flags: flags.FlagValues) -> None:
  """Raises a UserError if a flag has no value; absl would take the next flag as the value."""
  texts = [argument.text for argument in arguments]
  for text, following in zip(texts, texts[1:] + ['--']):
    name = text.lstrip('-')
    if text.startswith('-') and following.startswith('--') and (
        name in absl_flags and not absl_flags[name].boolean):
      raise UserError('--{} has no value'.format(name), text,
                      'write it as --{}=VALUE'.format(name))


def _prefer_command_line(values: Dict[str, Any],
                         arguments: Sequence[flagfiles.Argument]) -> None:
  """If one flag of an exclusive pair is on the command line, unsets the other flag."""
  on_command_line = {argument.flag for argument in arguments if not argument.location}
  for pair in _EXCLUSIVE_PAIRS:
    chosen = on_command_line.intersection(pair)
    if len(chosen) == 1:
      (other,) = set(pair) - chosen
      values[other] = None


def _translate_error(error: Exception) -> UserError:
  """Translates an error of absl into a UserError."""
  text = str(error)
  match = re.match(r'flag --(\w+)=(.*?): ', text, re.DOTALL)
  if match:
    name, value = match.groups()
    _, expected = _DEFINERS[all_flags()[name].value_type]
    return UserError('--{} must be {}'.format(name, expected),
                     '--{}={}'.format(name, value), 'see --help')
  match = re.match(r'--?no(\w+)=(.*) does not take an argument', text, re.DOTALL)
  if match:
    return UserError('a flag in the form --noFLAG takes no value',
                     '--no{}={}'.format(*match.groups()),
                     'write --{0}=true or --{0}=false'.format(match.group(1)))
  return UserError('the flags cannot be parsed', text, 'see --help')
