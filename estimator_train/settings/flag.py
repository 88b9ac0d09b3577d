"""Declares flags, each once: a field of its group, with default, help, choices and check.

    @flag_group('devices')
    @attr.s(auto_attribs=True, frozen=True)
    class Devices:
      num_gpus: int = flag(-1, 'GPUs to use; -1: all, 0: none', check=whole_number(-1))

The command line, `--help`, `flags.txt`, validation and keyword arguments follow from that.
"""

from typing import (
  Any,
  Callable,
  Dict,
  List,
  NamedTuple,
  Optional,
  Sequence,
  Tuple,
  Type,
  TypeVar,
  Union,
)

import attr

from estimator_train.errors import UserError

# Raises a UserError for a value of the flag of that name.
Check = Callable[[str, Any], None]
Group = TypeVar('Group')

_LARGEST = 2 ** 31 - 1
_IN_WORDS = {str: 'a text', int: 'a whole number', float: 'a number', bool: 'True or False',
             type(None): 'None'}


class Flag(NamedTuple):
  """A declared flag.

  Attributes:
    name: without dashes.
    group: the class that has it as a field.
    types: of its values: str, int, float, bool, NoneType, or Tuple types of the former.
    default: its value where it is not given.
    help: a sentence, without the choices.
    choices: the values that it can have; empty: any.
    names: the same for values that may also be `package.module:function`.
    check: of its values that are not None; None: there is nothing more to check.
    rule: what a text of it that cannot be parsed breaks; '' where absl says so.
    remedy: what to do about that.
    separator: between the items of a tuple.
  """
  name: str
  group: type
  types: Tuple[Any, ...]
  default: Any
  help: str
  choices: Sequence[str]
  names: Sequence[str]
  check: Optional[Check]
  rule: str
  remedy: str
  separator: str

  @property
  def kind(self) -> type:
    """str, int, float, bool or tuple."""
    first = self.types[0]
    return first if first in _IN_WORDS else tuple

  def parse(self, parts: Optional[Sequence[str]]) -> Optional[Tuple[Any, ...]]:
    """Returns the tuple that the command line gives by these texts."""
    if parts is None:
      return None
    if self.separator != ',':
      parts = ','.join(parts).split(self.separator)
    item = self.types[0].__args__[0]
    try:
      return tuple(item(part) for part in parts)
    except ValueError as error:
      raise UserError('--{} {}'.format(self.name, self.rule),
                      '--{}={}'.format(self.name, self.separator.join(parts)),
                      self.remedy) from error

  def check_value(self, value: Any) -> None:
    """Raises a UserError where the flag cannot have that value, whatever the others are."""
    if not any(_is_of(value, kind) for kind in self.types):
      raise UserError(
          '{} is of the wrong type'.format(self.name), '{}={!r}'.format(self.name, value),
          'give ' + ' or '.join(_IN_WORDS.get(kind, 'a tuple') for kind in self.types))
    if value is None:
      return
    if self.choices:
      check_choice(self.name, value, self.choices)
    for text in value if isinstance(value, tuple) else (value,):
      if isinstance(text, str):
        _check_text(self.name, text)
    if self.check is not None:
      self.check(self.name, value)


_GROUPS: Dict[type, str] = {}


def flag(default: Any, help: str = '', choices: Sequence[str] = (), names: Sequence[str] = (),
         check: Optional[Check] = None, rule: str = '', remedy: str = '',
         separator: str = ',') -> Any:
  """Declares a flag as a field of an attrs class; see Flag for the arguments."""
  return attr.ib(default=default, metadata={
      'help': help, 'choices': tuple(choices), 'names': tuple(names), 'check': check,
      'rule': rule, 'remedy': remedy, 'separator': separator})


def flag_group(title: str) -> Callable[[Type[Group]], Type[Group]]:
  """Registers a class of flags, under that title in `--help`."""
  def register(cls: Type[Group]) -> Type[Group]:
    _GROUPS[cls] = title
    return cls
  return register


def remove_group(group: type) -> None:
  """Undoes `flag_group`."""
  del _GROUPS[group]


def groups() -> Dict[type, str]:
  """Returns the classes of flags and their titles, in the order of their declaration."""
  return dict(_GROUPS)


def flags_of(group: type) -> List[Flag]:
  """Returns the flags of a class."""
  return [Flag(name=field.name, group=group, types=_types(field.type), default=field.default,
               **field.metadata) for field in attr.fields(group)]


def all_flags() -> Dict[str, Flag]:
  """Returns all flags by their names."""
  return {each.name: each for group in _GROUPS for each in flags_of(group)}


def check_choice(name: str, value: str, words: Sequence[str]) -> None:
  """Raises a UserError when the flag's value is none of the words."""
  if value not in words:
    raise UserError('--{} has no such choice'.format(name), '--{}={}'.format(name, value),
                    'choose from ' + ', '.join(words))


def whole_number(first: int, last: int = _LARGEST) -> Check:
  """Returns a check that a number is within these bounds, both included."""
  def check(name: str, value: int) -> None:
    if not first <= value <= last:
      raise UserError('--{} is out of range'.format(name), '--{}={}'.format(name, value),
                      'give a whole number from {} to {}'.format(first, last))
  return check


def satisfies(is_valid: Callable[[Any], bool], rule: str, example: str) -> Check:
  """Returns a check by a predicate.

  Args:
    is_valid: of the value.
    rule: that the others break, after the flag's name.
    example: what to do instead.
  """
  def check(name: str, value: Any) -> None:
    if not is_valid(value):
      raise UserError('--{} {}'.format(name, rule), '--{}={}'.format(name, text_of(value)), example)
  return check


def not_empty(example: str) -> Check:
  """Returns a check that a text is not empty."""
  return satisfies(bool, 'is empty', example)


def text_of(value: Any, separator: str = ',') -> str:
  """Returns a value in words, as a command line has it but for quotes."""
  return separator.join(map(str, value)) if isinstance(value, tuple) else str(value)


def _types(annotation: Any) -> Tuple[Any, ...]:
  is_union = getattr(annotation, '__origin__', None) is Union
  return annotation.__args__ if is_union else (annotation,)


def _is_of(value: Any, kind: Any) -> bool:
  if kind is float:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
  return type(value) is kind if kind in _IN_WORDS else isinstance(value, tuple)


def _check_text(name: str, text: str) -> None:
  """Raises a UserError for a text that a flagfile could not give again, or no file can have."""
  given = '--{}={!r}'.format(name, text)
  if '\0' in text or text.splitlines() not in ([], [text]):
    raise UserError('--{} has a line break or a null character'.format(name), given,
                    'give one without')
  if text != text.strip():
    raise UserError('--{} begins or ends with a blank'.format(name), given, 'give one without')
  if any('\ud800' <= character <= '\udfff' for character in text):
    raise UserError('--{} is not UTF-8'.format(name), given,
                    'give one that is, in a locale such as LANG=C.UTF-8; * stands for any name')
