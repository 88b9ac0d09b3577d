"""Checks the types and ranges of values that were read from JSON.

A check is a function that returns a valid value, and raises a ValueError for any other value. The
functions of this module are checks, or return checks, such as `mapping(list_of(integer()))`.
`storage.load` runs the checks of a file, and reports all errors in the same way.
"""

import json
from typing import Any, Callable, Mapping, Optional

Check = Callable[[Any], Any]
_MAX_INTEGER = 2 ** 53  # Larger integers are not exact in all programs that read JSON.
_MAX_NUMBER = 1e100  # Much larger numbers overflow when they are added or squared.


def parse(text: str, check: Check) -> Any:
  """Returns the value of a JSON text; raises a ValueError for nan, which JSON does not have."""
  return check(json.loads(text, parse_constant=_reject_constant))


def anything(value: Any) -> Any:
  return value


def text(value: Any) -> str:
  return _require(isinstance(value, str), 'text', value)


def boolean(value: Any) -> bool:
  return _require(isinstance(value, bool), 'true or false', value)


def integer(low: int = 0, high: int = _MAX_INTEGER) -> Check:
  return lambda value: _require(
      type(value) is int and low <= value <= high,
      'an integer from {} to {}'.format(low, high), value)


def number(low: float = -_MAX_NUMBER, high: float = _MAX_NUMBER) -> Check:
  return lambda value: _require(
      type(value) in (int, float) and low <= value <= high,
      'a number from {:g} to {:g}'.format(low, high), value)


def optional(check: Check) -> Check:
  """Returns a check that also accepts null."""
  return lambda value: None if value is None else check(value)


def list_of(check: Check) -> Check:
  """Returns a check for a list whose items all pass `check`."""
  def check_list(value: Any) -> Any:
    for index, item in enumerate(_require(isinstance(value, list), 'a list', value)):
      _check_item(check, index, item)
    return value

  return check_list


def tuple_of(*checks: Check) -> Check:
  """Returns a check for a list that has one item for each check."""
  def check_tuple(value: Any) -> Any:
    _require(isinstance(value, list) and len(value) == len(checks),
             'a list of {}'.format(len(checks)), value)
    for index, (check, item) in enumerate(zip(checks, value)):
      _check_item(check, index, item)
    return value

  return check_tuple


def mapping(check: Check) -> Check:
  """Returns a check for an object with any keys, whose values all pass `check`."""
  def check_mapping(value: Any) -> Any:
    for name, item in _require(isinstance(value, dict), 'an object', value).items():
      _check_item(check, name, item)
    return value

  return check_mapping


def fields(required_fields: Mapping[str, Check],
           optional_fields: Optional[Mapping[str, Check]] = None) -> Check:
  """Returns a check for an object that has the required fields, and may have any others.

  Args:
    required_fields: the checks of the fields that must be present.
    optional_fields: the checks of fields that may be missing.
  """
  checks = {**(optional_fields or {}), **required_fields}

  def check_fields(value: Any) -> Any:
    _require(isinstance(value, dict), 'an object', value)
    for name, check in checks.items():
      if name in value:
        _check_item(check, name, value[name])
      elif name in required_fields:
        raise ValueError('{} is missing'.format(name))
    return value

  return check_fields


def _check_item(check: Check, name: Any, value: Any) -> None:
  try:
    check(value)
  except ValueError as error:
    raise ValueError('{}: {}'.format(name, error)) from error


def _require(is_valid: bool, expected: str, value: Any) -> Any:
  if not is_valid:
    raise ValueError('expected {}, found {:.60}'.format(expected, repr(value)))
  return value


def _reject_constant(constant: str) -> None:
  raise ValueError('{} is not a number of JSON'.format(constant))
