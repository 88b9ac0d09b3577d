"""The command line: the only file that knows absl.flags; it turns them into Settings."""

import re
from typing import Any, Dict, Sequence

from absl import flags

from estimator_train import settings as settings_lib
from estimator_train.errors import UserError
from estimator_train.settings import flag_parsing, flagfiles
from estimator_train.settings.flag import Flag, all_flags, flags_of, groups

_USAGE = """\
python -m estimator_train --flagfile=estimator_train/configs/NAME.flags [--FLAG=VALUE...]

Trains a Keras model as a TensorFlow 1.15 Estimator, evaluates it, and reports how fast it trained.
Flags after the flagfile win. The last line on standard output is the result, as JSON.
"""

# By the kinds of flags: how absl defines them, and what a value must be where absl cannot read it.
_DEFINERS = {str: (flags.DEFINE_string, 'a text'),
             int: (flags.DEFINE_integer, 'a whole number'),
             float: (flags.DEFINE_float, 'a number'),
             bool: (flags.DEFINE_boolean, 'true or false'),
             tuple: (flags.DEFINE_list, 'a list with commas between, and quotes in pairs')}

# Pairs of which a run takes one.
_ALTERNATIVES = (('train_steps', 'train_epochs'),
                 ('save_checkpoints_steps', 'save_checkpoints_secs'))


def parse(argv: Sequence[str]) -> settings_lib.Settings:
  """Turns a command line into Settings.

  Args:
    argv: the arguments, without the program's name.

  Raises:
    UserError: a flag that is unknown, of the wrong type, out of range, or against another.
  """
  arguments = flagfiles.expand(argv)
  try:
    return _parsed(arguments)
  except UserError as error:
    raise flagfiles.with_places(error, arguments) from error


def _parsed(arguments: Sequence[flagfiles.Argument]) -> settings_lib.Settings:
  values = _define()
  _check_values_are_there(arguments, values)
  try:
    # known_only: what absl does to propose the nearest name fails for a long one.
    rest = values(['estimator_train'] + [argument.text for argument in arguments], known_only=True)
  except (flags.Error, ValueError) as error:
    raise _reworded(error) from error
  for text in rest[1:]:
    if text != '--':
      raise flag_parsing.unknown(text, list(values))
  declared = all_flags()
  given = {name: values[name].value for name in declared}
  _let_the_command_line_choose(given, arguments)
  for name, flag in declared.items():
    if flag.kind is tuple:
      given[name] = flag.parse(given[name])
  settings = settings_lib.Settings(**given)
  return settings.for_mode(settings.mode)


def help_text() -> str:
  """Returns what `--help` prints."""
  lines = [_USAGE]
  for group, title in groups().items():
    lines.append('{}:'.format(title))
    for flag in flags_of(group):
      default = flag.default
      shown = '' if default in (None, ()) else ' (default: {})'.format(str(default).lower())
      lines.append('  --{}: {}{}'.format(flag.name, _explanation(flag), shown))
    lines.append('')
  lines.append('  --flagfile: read flags from this file, one a line\n  --help: this text\n\n'
               './run_train.sh --local_workers=N [--local_ps=M] [--max_restarts=K] FLAG...\n'
               '  a cluster of N workers on this machine\n'
               './run_train.sh --tensorboard FLAG...\n'
               '  with TensorBoard beside the training')
  return '\n'.join(lines)


def _explanation(flag: Flag) -> str:
  """Returns the help of a flag with its choices."""
  if not flag.choices:
    return flag.help.replace('{names}', _one_of(flag.names))
  return (flag.help + ': ' if flag.help else '') + _one_of(flag.choices)


def _one_of(words: Sequence[str]) -> str:
  return '{' + ', '.join(words) + '}'


def wants_help(argv: Sequence[str]) -> bool:
  """Whether the command line asks for the flags' explanation."""
  return any(argument in ('--help', '-help', '-h', '--helpfull', '--helpshort')
             for argument in argv)


def _define() -> flags.FlagValues:
  """Returns newly defined flags, apart from absl's global ones, so that parsing has no memory."""
  values = flags.FlagValues()
  for flag in all_flags().values():
    definer, _ = _DEFINERS[flag.kind]
    definer(flag.name, flag.default, flag.help, flag_values=values)
  return values


def _check_values_are_there(arguments: Sequence[flagfiles.Argument],
                            values: flags.FlagValues) -> None:
  """Raises a UserError where a flag's value would be the next flag, or nothing."""
  texts = [argument.text for argument in arguments]
  for text, following in zip(texts, texts[1:] + ['--']):
    name = text.lstrip('-')
    if text.startswith('-') and following.startswith('--') and (
        name in values and not values[name].boolean):
      raise UserError('--{} has no value'.format(name), text,
                      'write it as --{}=VALUE'.format(name))


def _let_the_command_line_choose(given: Dict[str, Any],
                                 arguments: Sequence[flagfiles.Argument]) -> None:
  """Unsets the flagfile's one of two alternatives where the other is on the command line itself."""
  directly = {argument.flag for argument in arguments if not argument.place}
  for pair in _ALTERNATIVES:
    chosen = directly.intersection(pair)
    if len(chosen) == 1:
      (other,) = set(pair) - chosen
      given[other] = None


def _reworded(error: Exception) -> UserError:
  """Returns absl's error in the form of ours."""
  text = str(error)
  match = re.match(r'flag --(\w+)=(.*?): ', text, re.DOTALL)
  if match:
    name, value = match.groups()
    _, expected = _DEFINERS[all_flags()[name].kind]
    return UserError('--{} must be {}'.format(name, expected),
                     '--{}={}'.format(name, value), 'see --help')
  match = re.match(r'--?no(\w+)=(.*) does not take an argument', text, re.DOTALL)
  if match:
    return UserError('a flag with no before its name takes no value',
                     '--no{}={}'.format(*match.groups()),
                     'write --{0}=true or --{0}=false'.format(match.group(1)))
  return UserError('the flags cannot be read', text, 'see --help')
