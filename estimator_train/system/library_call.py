"""Whether a function of the library runs, in a process that belongs to the caller.

If so, proposals are calls of functions instead of commands, and no watchdog ends the process.
"""

import contextlib
from typing import Iterator, List

_calls: List[None] = []  # An item for each running function.


@contextlib.contextmanager
def library_call() -> Iterator[None]:
  _calls.append(None)
  try:
    yield
  finally:
    _calls.pop()


def is_library_call() -> bool:
  return bool(_calls)
