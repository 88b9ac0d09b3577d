"""Makes the names of outputs and metrics distinct from each other and from reserved names."""

from typing import Collection, Iterable, List


def make_distinct(names: Iterable[str], reserved: Collection[str], prefix: str) -> List[str]:
  """Returns names that are distinct and not reserved.

  A name that is reserved or repeated gets the prefix, if necessary several times.
  """
  names, distinct = list(names), []
  for name in names:
    candidate = name
    while candidate in reserved or candidate in distinct or (
        candidate != name and candidate in names):
      candidate = prefix + candidate
    distinct.append(candidate)
  return distinct
