"""Formats the numbers of the terminal, the log and the report page.

Every number has three significant digits, and a unit that fits. Integers are complete.
"""

import math
from typing import Any, Optional, Tuple

MISSING = '–'
# (the smallest duration in seconds, units in a second, name of the unit), the longest unit first.
_SECS_UNITS = ((36e3, 1 / 3600, 'h'), (1e3, 1 / 60, 'min'), (1., 1., 's'), (1e-3, 1e3, 'ms'))
_BYTE_UNITS = ((1e12, 'TB'), (1e9, 'GB'), (1e6, 'MB'), (1e3, 'kB'))


def is_number(value: Any) -> bool:
  """Returns whether the value is a number, neither infinite nor nan."""
  return isinstance(value, (int, float)) and math.isfinite(value)


def format_number(value: Optional[float]) -> str:
  """Formats a number with three digits; integers and numbers from 100 have no decimals."""
  if value is None or not is_number(value):
    return MISSING
  return '{:,.0f}'.format(value) if value == int(value) else _format_three_digits(value)


def _format_three_digits(value: float) -> str:
  # From 99.95 on, `#.3g` would return `100.`. The `#` keeps trailing zeros, which are significant.
  return ('{:,.0f}' if abs(value) >= 99.95 else '{:#.3g}').format(value)


def format_metric(value: Optional[float]) -> str:
  """Formats a loss or a metric of the log with three digits; `nan` and `inf` are shown."""
  return MISSING if value is None else _format_three_digits(value)


def format_quantity(value: Optional[float], unit: str) -> str:
  return '{} {}'.format(format_number(value), unit) if is_number(value) else MISSING


def format_count(count: int, noun: str) -> str:
  """Formats a number of things, whose singular is `noun`, such as `1 image` or `2,000 images`."""
  return '{:,} {}{}'.format(count, noun, '' if count == 1 else 's')


def choose_secs_unit(secs: float) -> Tuple[float, str]:
  """Returns a readable unit for this duration, as (number of units in a second, name)."""
  return next(((factor, name) for smallest, factor, name in _SECS_UNITS if secs >= smallest),
              (1e6, 'µs'))


def format_secs(value: Optional[float]) -> str:
  """Formats a duration in h, min, s, ms or µs."""
  if value is None or not is_number(value):
    return MISSING
  factor, unit = choose_secs_unit(abs(value) or 1.)
  return '{} {}'.format(_format_three_digits(value * factor), unit)


def format_clock(secs: float) -> str:
  """Formats a duration that is measured in whole seconds, as `42 s`, `3:05` or `2:03:05`."""
  if secs < 59.5:
    return '{:.0f} s'.format(secs)
  minutes, seconds = divmod(round(secs), 60)
  hours, minutes = divmod(minutes, 60)
  return '{}:{:02}:{:02}'.format(hours, minutes, seconds) if hours else '{}:{:02}'.format(
      minutes, seconds)


def format_bytes(count: float) -> str:
  """Formats a size in TB, GB, MB, kB or bytes, which are powers of 1,000."""
  for divisor, unit in _BYTE_UNITS:
    if count >= divisor:
      return '{} {}'.format(_format_three_digits(count / divisor), unit)
  return '{:.0f} bytes'.format(count)


def format_percent(fraction: Optional[float]) -> str:
  """Formats a fraction as a percentage with three digits, but at most two decimals."""
  if fraction is None or not is_number(fraction):
    return MISSING
  percentage = 100 * fraction
  size = abs(percentage)
  decimals = 0 if size >= 99.95 or size < .005 else 1 if size >= 9.995 else 2
  return '{:.{}f} %'.format(percentage, decimals)


def format_ratio(value: Optional[float]) -> str:
  if value is None or not is_number(value):
    return MISSING
  return _format_three_digits(value) + '×'
