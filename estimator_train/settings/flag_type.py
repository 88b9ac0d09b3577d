"""Declares flags. Each flag is a field of a class that groups related flags.

    @flag_group('devices')
    class DeviceFlags:
      num_gpus: int = flag(-1, 'number of GPUs; -1: all, 0: none', check=int_range(-1))

The command line, `--help`, `flags.txt`, the validation and the keyword arguments of Settings are
derived from these declarations.
"""

import contextlib
import csv
import difflib
import functools
import io
import os
import re
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, TypeVar, Union

import attr

from estimator_train.errors import ImmutableSettings, UnknownKeyword, UserError

# A function that takes a flag and a value, and raises a UserError for an invalid value.
ValueCheck = Callable[['Flag', Any], None]
Group = TypeVar('Group', bound=type)

_MAX_INT = 2 ** 31 - 1
# Names of flags in other training programs, and the names of the same flags in this program.
_NAMES_IN_OTHER_PROGRAMS = {
    'lr': 'learning_rate', 'epochs': 'train_epochs', 'num_epochs': 'train_epochs',
    'num_train_epochs': 'train_epochs', 'steps': 'train_steps', 'max_steps': 'train_steps',
    'bs': 'batch_size', 'num_batches': 'train_steps', 'output_dir': 'model_dir',
    'logdir': 'model_dir', 'job_dir': 'model_dir', 'wd': 'weight_decay', 'gpus': 'num_gpus',
    'workers': 'num_parallel_calls', 'imgsz': 'image_size', 'warmup_epochs': 'lr_warmup_epochs',
    'variable_update': 'distribution_strategy', 'use_fp16': 'dtype', 'fp16': 'dtype',
    'patience': 'early_stopping_epochs', 'eval_steps': 'eval_every_steps',
    'validation_split': 'validation_fraction', 'verbose': 'verbosity',
    'save_steps': 'save_checkpoints_steps', 'logging_steps': 'log_every_steps',
    'format': 'export_format'}
# Arguments of Keras, and what takes their place here.
_REMEDIES_FOR_KERAS_ARGUMENTS = {
    'callbacks': 'give hooks=FUNCTION, a function that returns a list of tf.train.SessionRunHooks',
    **dict.fromkeys(('x', 'y', 'x_train', 'y_train', 'x_test', 'y_test', 'train_data', 'test_data',
                     'data', 'validation_data', 'generator', 'images', 'sample_weight'),
                    'give dataset=FUNCTION, a function that returns an estimator_train.DataSet; '
                    'predict takes input=IMAGES'),
    **dict.fromkeys(('loss', 'metrics'), 'give model=FUNCTION, a function that returns a compiled '
                    'Keras model')}
# How errors describe the types of keyword arguments, and the texts that `Flag.parse` accepts.
_PYTHON_TYPE_NAMES = {str: 'a string', int: 'an integer', float: 'a number', bool: 'True or False',
               type(None): 'None'}
_PLURALS = {str: 'strings', int: 'integers', float: 'numbers'}
_TEXT_FORMATS = {int: 'an integer', float: 'a number', bool: 'true or false',
               tuple: 'a comma-separated list with balanced quotes'}
_BOOLEANS = {'true': True, 't': True, '1': True, 'false': False, 'f': False, '0': False}


class Flag(NamedTuple):
  """A declared flag.

  Attributes:
    name: the name, without dashes.
    types: the allowed types of the value, such as int, NoneType or Tuple[int, int].
    help: the text of --help, without the choices; `{names}` stands for `built_in_names`.
    choices: the allowed values; empty if all values are allowed.
    built_in_names: the names that a flag accepts besides `package.module:function`, such as
      `fashion_cnn`; empty if the flag does not accept functions.
    check: a further check, for values other than None.
    item_rule_and_remedy: the rule and the remedy of the error about an item of a tuple that cannot
      be parsed.
    separator: the text between the items of a tuple.
    is_path: whether the value consists of one or more paths, separated by commas.
    accepts_square: whether a single number stands for two equal ones, as in `--image_size=32`.
    accepts_folder: whether the flag accepts the path of a folder besides `built_in_names`.
    folder_default: the default for `--dataset=FOLDER`; None if it is the same as for other data.
  """
  name: str
  types: Tuple[Any, ...]
  default: Any
  help: str
  choices: Sequence[str] = ()
  built_in_names: Sequence[str] = ()
  check: Optional[ValueCheck] = None
  item_rule_and_remedy: Tuple[str, str] = ('', '')
  separator: str = ','
  is_path: bool = False
  accepts_square: bool = False
  accepts_folder: bool = False
  folder_default: Any = None

  @property
  def value_type(self) -> type:
    """The type of the values on the command line: str, int, float, bool or tuple."""
    first = self.types[0]
    return first if first in _PYTHON_TYPE_NAMES else tuple

  @property
  def annotation(self) -> Any:
    """The type of the value as an annotation, such as Optional[int]."""
    return Union[(*self.types, int) if self.accepts_square else self.types]

  @property
  def description(self) -> str:
    """The text of --help, with the choices or the built-in names."""
    if not self.choices:
      return self.help.replace('{names}', _format_names(self.built_in_names))
    return (self.help + ': ' if self.help else '') + _format_names(self.choices)

  @property
  def defaults_text(self) -> str:
    """The text of --help about the defaults, in parentheses; '' if there are none."""
    texts = [] if self.default in (None, ()) else [self.format(self.default)]
    if self.folder_default is not None:
      texts.append('{} for a folder'.format(self.format(self.folder_default)))
    return ' (default: {})'.format('; '.join(texts)) if texts else ''

  def parse(self, text: str) -> Any:
    """Returns the value that a text on the command line or in a flagfile stands for."""
    value_type = self.value_type
    items: List[str] = []
    try:
      if value_type is int:
        return int(text, {'0x': 16, '0o': 8}.get(text[:2], 10))
      if value_type is bool:
        return _BOOLEANS[text.lower()]
      if value_type is not tuple:
        return value_type(text)
      for row in csv.reader([text] if text else [], delimiter=self.separator, strict=True):
        items += [item.strip() for item in row]
    except (ValueError, KeyError, csv.Error) as error:
      raise UserError('--{} must be {}'.format(self.name, _TEXT_FORMATS[value_type]),
                      '--{}={}'.format(self.name, text), 'see --help') from error
    item_type = self.types[0].__args__[0]
    try:
      values = tuple(item_type(item) for item in items)
      return values * 2 if self.accepts_square and len(values) == 1 else values
    except ValueError as error:
      rule, remedy = self.item_rule_and_remedy
      raise UserError('--{} {}'.format(self.name, rule), self.to_argument(items), remedy) from error

  def format(self, value: Any) -> str:
    """Returns the text from which `parse` makes this value."""
    if isinstance(value, bool):
      return str(value).lower()
    if not isinstance(value, (tuple, list)):
      return str(value)
    row = io.StringIO()
    csv.writer(row, delimiter=self.separator, lineterminator='').writerow(value)
    return row.getvalue()

  def to_argument(self, value: Any) -> str:
    return '--{}={}'.format(self.name, self.format(value))

  def expand_home_folders(self, value: Any) -> Any:
    """Replaces `~` and `~USER` at the start of paths. A shell does not do so in `--FLAG=~/PATH`."""
    if not self.is_path or not isinstance(value, (str, tuple)):
      return value
    if isinstance(value, tuple):
      return tuple(map(self.expand_home_folders, value))
    return ','.join(map(self._expand_home_folder, value.split(',')))

  def _expand_home_folder(self, path: str) -> str:
    if not path.startswith('~'):
      return path
    # CPython 3.7 raises a KeyError if the password database lacks the user ID of the process.
    with contextlib.suppress(KeyError):
      expanded = os.path.expanduser(path)
      if not expanded.startswith('~'):
        return expanded
    raise UserError('--{} begins with ~, but there is no such home folder'.format(self.name),
                    '--{}={}'.format(self.name, path), 'give another path, or ./{}'.format(path))

  def check_value(self, value: Any) -> None:
    """Raises a UserError if the value is invalid, regardless of the values of other flags."""
    if not any(_has_type(value, allowed) for allowed in self.types):
      raise UserError(
          '{} has the wrong type'.format(self.name), '{}={!r}'.format(self.name, value),
          'give ' + _describe_types(self.types))
    if value is None:
      return
    names = self.choices or self.built_in_names
    if names and value not in names and not (
        self.built_in_names and ':' in value or self.accepts_folder and '/' in value):
      raise UserError('--{} has no such choice'.format(self.name),
                      self.to_argument(value), '{}choose from {}{}{}'.format(
                          ''.join('did you mean {}? '.format(name) for name in
                                  _nearest_names(str(value), names)),
                          ', '.join(names),
                          ', or give package.module:function' if self.built_in_names else '',
                          ', or the path of an existing folder' if self.accepts_folder else ''))
    for text in value if isinstance(value, tuple) else (value,):
      if isinstance(text, str):
        _check_text(self.name, text)
    if self.check is not None:
      self.check(self, value)


# The title of each class of flags in --help, in the order of registration.
GROUP_TITLES: Dict[type, str] = {}


def flag(default: Any, help: str, **options: Any) -> Any:
  """Declares a flag as a field of a class. The options are attributes of Flag."""
  return attr.ib(default=default, metadata=dict(options, help=help))


def flag_group(title: str) -> Callable[[Group], Group]:
  """Returns a decorator that makes a class of flags immutable, and registers it with its title."""
  def register(cls: Group) -> Group:
    group = explain_immutability(attr.s(cls, auto_attribs=True, frozen=True))
    GROUP_TITLES[group] = title
    return group
  return register


def explain_immutability(cls: Group) -> Group:
  """Decorates a frozen class of attrs, whose own error for an assignment has no text."""
  def reject_change(self: Any, name: str, value: Any = None) -> None:
    given = '{}={!r}'.format(name, value)
    raise ImmutableSettings('settings are immutable', given, 'make a changed copy by '
                            'settings.evolve({})'.format(given))

  for method in ('__setattr__', '__delattr__'):
    setattr(cls, method, reject_change)
  return cls


@functools.lru_cache(maxsize=None)
def flags_of(group: type) -> Tuple[Flag, ...]:
  return tuple(Flag(field.name, _union_members(field.type), field.default, **field.metadata)
               for field in attr.fields(group))


def all_flags() -> Dict[str, Flag]:
  """Returns the flags of all groups by name."""
  return {declared.name: declared for group in GROUP_TITLES for declared in flags_of(group)}


def unknown_flag_error(text: str) -> UserError:
  """Returns the error for an argument that does not match any flag."""
  name = text.lstrip('-').partition('=')[0]
  if not (text.startswith('-') and name):
    return UserError('an argument is not a flag', text, 'write it as --{}'.format(
        'mode=' + text if text in (all_flags()['mode'].choices or ()) else 'FLAG=VALUE'))
  similar_names = _similar_names(name, [*all_flags(), 'flagfile', 'help', 'version'])
  remedy = 'did you mean --{}? '.format(', --'.join(similar_names)) if similar_names else ''
  if similar_names and re.search(r'\s', name):  # Such as the line `--FLAG VALUE` of a flagfile.
    remedy = 'did you mean --{}=VALUE? '.format(similar_names[0])
  return UserError('unknown flag', text.partition('=')[0], remedy + '--help lists all flags')


def unknown_keyword_error(name: str) -> UnknownKeyword:
  """Returns the error for a keyword argument that does not match any flag."""
  similar_names = _similar_names(name, list(all_flags()))
  remedy = 'did you mean {}? '.format(' or '.join(similar_names)) if similar_names else ''
  if name in _REMEDIES_FOR_KERAS_ARGUMENTS:
    return UnknownKeyword('unknown keyword', name, _REMEDIES_FOR_KERAS_ARGUMENTS[name])
  return UnknownKeyword('unknown keyword', name,
                        remedy + 'help(estimator_train.Settings) lists all keywords')


def _nearest_names(value: str, names: Sequence[str]) -> List[str]:
  """Returns the most similar name, if any: of resnet50 and resnet152, resnet50 for resnet18."""
  stem = value.rstrip('0123456789')
  number = value[len(stem):]
  by_distance = {abs(int(name[len(stem):]) - int(number)): name for name in names
                 if number and name.startswith(stem) and name[len(stem):].isdigit()}
  return [by_distance[min(by_distance)]] if by_distance else (
      difflib.get_close_matches(value, names, 1))


def _similar_names(name: str, names: Sequence[str]) -> List[str]:
  name = name.lower().replace('-', '_')
  known_flag = _NAMES_IN_OTHER_PROGRAMS.get(name)
  return [known_flag] if known_flag else difflib.get_close_matches(name, names, cutoff=0.7)


def int_range(first: int, last: int = _MAX_INT) -> ValueCheck:
  """Returns a check that an integer is between `first` and `last`, inclusive."""
  return condition(lambda value: first <= value <= last, 'is out of range',
                   'give an integer from {} to {}'.format(first, last))


def number_range(first: float, last: float, remedy: str) -> ValueCheck:
  """Returns a check that a number is between `first` and `last`, inclusive."""
  return condition(lambda value: first <= value <= last,
                   'must be from {} to {}'.format(first, last), remedy)


def condition(is_valid: Callable[[Any], bool], rule: str, remedy: str) -> ValueCheck:
  """Returns a check of a condition. The rule lacks the name of the flag, as in 'is empty'."""
  def check(flag: Flag, value: Any) -> None:
    if not is_valid(value):
      raise UserError('--{} {}'.format(flag.name, rule), flag.to_argument(value), remedy)
  return check


def not_empty(remedy: str) -> ValueCheck:
  return condition(bool, 'is empty', remedy)


def check_no_wildcards(flag: Flag, path: str) -> None:
  """Raises a UserError if the path of checkpoints has characters that are special in patterns.

  TensorFlow could write such a checkpoint, but not restore it. The operation RestoreV2 first uses
  the path as a pattern to find the checkpoint, and then takes the path literally to read it. No
  escaped path works for both. When TensorFlow deletes old checkpoints, it also deletes other files
  that match the pattern.
  """
  if set(path) & set('*?[\\'):
    raise UserError('--{} must not contain *, ?, [ or \\, because TensorFlow interprets the paths '
                    'of checkpoints as patterns'.format(flag.name), flag.to_argument(path),
                    'rename or move the folder, or give a symbolic link to it')


def _format_names(names: Sequence[str]) -> str:
  return '{' + ', '.join(names) + '}'


def _union_members(annotation: Any) -> Tuple[Any, ...]:
  """Returns the members of a Union, such as Optional[int]. For other annotations, returns one."""
  is_union = getattr(annotation, '__origin__', None) is Union
  return annotation.__args__ if is_union else (annotation,)


def _has_type(value: Any, allowed: Any) -> bool:
  """Returns whether a value has an allowed type. An integer is allowed as a float, too."""
  if allowed is float:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
  if allowed in _PYTHON_TYPE_NAMES:
    return type(value) is allowed
  return isinstance(value, tuple) and all(_has_type(item, allowed.__args__[0]) for item in value)


def _describe_types(types: Sequence[Any]) -> str:
  """Describes the allowed types of a value, such as 'a tuple of 2 or 3 integers or None'."""
  tuples = [allowed.__args__ for allowed in types if allowed not in _PYTHON_TYPE_NAMES]
  lengths = [str(len(items)) + ' ' for items in tuples if items[-1] is not Ellipsis]
  names = ['a tuple of {}{}'.format('or '.join(lengths), _PLURALS[tuples[0][0]])] if tuples else []
  return ' or '.join(names + [_PYTHON_TYPE_NAMES[allowed] for allowed in types
                              if allowed in _PYTHON_TYPE_NAMES])


def _check_text(name: str, text: str) -> None:
  """Raises a UserError if a text cannot be stored in a flagfile, or be a file name."""
  argument = '--{}={!r}'.format(name, text)
  if '\0' in text or text.splitlines() not in ([], [text]):
    raise UserError('--{} has a line break or a null character'.format(name), argument,
                    'remove it')
  if text != text.strip():
    raise UserError('--{} begins or ends with whitespace'.format(name), argument, 'remove it')
  if any('\ud800' <= character <= '\udfff' for character in text):
    raise UserError('--{} is not UTF-8'.format(name), argument,
                    'use a UTF-8 name and a locale such as LANG=C.UTF-8; or, in a pattern, write * '
                    'in place of the name that is not UTF-8')
