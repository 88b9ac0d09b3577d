"""Formats numbers and their units for the report page, mostly with three significant digits."""

import math
from typing import Any, Optional, Tuple

MISSING = '–'
_NO_BREAK_SPACE = '\u00a0'  # Keeps a number and its unit on one line.


def is_number(value: Any) -> bool:
  """Returns whether the value is a finite number."""
  return isinstance(value, (int, float)) and math.isfinite(value)


def format_number(value: Optional[float]) -> str:
  """Formats a number with three digits; integers and numbers from 100 have no decimals."""
  if not is_number(value):
    return MISSING
  assert value is not None
  # From 99.95 on, `#.3g` would return `100.`. The `#` keeps trailing zeros, which are significant.
  if value == int(value) or abs(value) >= 99.95:
    return '{:,.0f}'.format(value)
  return '{:#.3g}'.format(value)


def format_quantity(value: Optional[float], unit: str) -> str:
  """Formats a number with its unit."""
  return format_number(value) + _NO_BREAK_SPACE + unit if is_number(value) else MISSING


def choose_secs_unit(secs: float) -> Tuple[float, str]:
  """Returns a readable unit for this duration, as (number of units per second, name)."""
  return (1., 's') if secs >= 1 else (1e3, 'ms') if secs >= 1e-3 else (1e6, 'µs')


def format_secs(value: Optional[float]) -> str:
  """Formats a duration in s, ms or µs."""
  if not is_number(value):
    return MISSING
  assert value is not None
  factor, unit = choose_secs_unit(abs(value) or 1.)
  return format_quantity(value * factor, unit)


def format_percent(fraction: Optional[float]) -> str:
  """Formats a fraction as a percentage with one decimal."""
  return '{:.1f}{}%'.format(1e2 * fraction, _NO_BREAK_SPACE) if (
      fraction is not None and is_number(fraction)) else MISSING


def format_ratio(value: Optional[float]) -> str:
  """Formats a ratio, for example a speed-up."""
  return '{:.2f}×'.format(value) if value is not None and is_number(value) else MISSING
