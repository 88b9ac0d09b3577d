"""Formats the cells of CSV files."""

from typing import Any

# Spreadsheets take a cell that begins with one of these characters, or their full-width forms, for
# a formula: https://owasp.org/www-community/attacks/CSV_Injection
_FORMULA_STARTS = tuple('=+-@\t\r\n\uff1d\uff0b\uff0d\uff20')


def format_cell(value: Any) -> Any:
  """Returns the value; text that spreadsheets would take for a formula begins with `'`."""
  if not isinstance(value, str) or len(value) < 2 or not value.startswith(_FORMULA_STARTS):
    return value
  try:
    float(value)
    return value
  except ValueError:
    return "'" + value
