"""Makes names of outputs and metrics distinct from each other, and from reserved names."""

from typing import Collection, Iterable, List


def make_distinct(names: Iterable[str], reserved: Collection[str], prefix: str) -> List[str]:
  """Returns distinct names, none of which is reserved.

  A name that is reserved, or that occurred before, gets the prefix as often as needed. All other
  names stay the same.
  """
  names, distinct = list(names), []
  for name in names:
    candidate = name
    while candidate in reserved or candidate in distinct or (
        candidate != name and candidate in names):
      candidate = prefix + candidate
    distinct.append(candidate)
  return distinct
