"""Numbers as a reader wants them: with their unit, and no more digits than they are worth."""

import math
from typing import Any, Optional, Tuple

NOTHING = '–'
_SPACE = '\u00a0'  # Keeps a number and its unit on one line.


def is_number(value: Any) -> bool:
  """Whether the value is a finite number."""
  return isinstance(value, (int, float)) and math.isfinite(value)


def number(value: Optional[float]) -> str:
  """Returns a number by itself, to three digits or, from a hundred on, to one."""
  if not is_number(value):
    return NOTHING
  assert value is not None
  # A hundred and what is rounded to it need no decimals; zeros say that a digit is known.
  if value == int(value) or abs(value) >= 99.95:
    return '{:,.0f}'.format(value)
  return '{:#.3g}'.format(value)


def quantity(value: Optional[float], unit: str) -> str:
  """Returns a number with its unit."""
  return number(value) + _SPACE + unit if is_number(value) else NOTHING


def secs_unit(secs: float) -> Tuple[float, str]:
  """Returns by what to multiply seconds of this size, and the unit that they have then."""
  return (1., 's') if secs >= 1 else (1e3, 'ms') if secs >= 1e-3 else (1e6, 'µs')


def secs(value: Optional[float]) -> str:
  """Returns a time."""
  if not is_number(value):
    return NOTHING
  assert value is not None
  factor, unit = secs_unit(abs(value) or 1.)
  return quantity(value * factor, unit)


def percent(share: Optional[float]) -> str:
  """Returns a share of one as a percentage, to a tenth."""
  return '{:.1f}{}%'.format(1e2 * share, _SPACE) if share is not None and is_number(
      share) else NOTHING


def times(ratio: Optional[float]) -> str:
  """Returns a ratio."""
  return '{:.2f}×'.format(ratio) if ratio is not None and is_number(ratio) else NOTHING
