"""Files that appear under their name only when they are whole."""

import contextlib
import fcntl
import json
import logging
import os
from typing import Any, BinaryIO, Dict, Iterator

_LOG = logging.getLogger('estimator_train')


def write_text(path: str, text: str) -> None:
  """Writes the text, as UTF-8, aside and renames it into place."""
  write_bytes(path, text.encode('utf-8'))


def write_bytes(path: str, content: bytes) -> None:
  """Writes the bytes aside and renames them into place."""
  with open_aside(path) as file:
    file.write(content)


@contextlib.contextmanager
def open_aside(path: str) -> Iterator[BinaryIO]:
  """Opens a file for writing that is renamed into place at the end, or removed on an error."""
  aside = '{}.{}.part'.format(path, os.getpid())
  try:
    with open(aside, 'wb') as file:
      yield file
      file.flush()
      os.fsync(file.fileno())
    os.replace(aside, path)
  except BaseException as error:
    with contextlib.suppress(OSError):
      os.remove(aside)
    if isinstance(error, OSError) and error.filename in (None, aside):
      error.filename = path  # A disk that is full does not say where.
    raise


def write_json(path: str, value: Dict[str, Any]) -> None:
  """Writes the value as JSON, a line a key; figures that are not finite are refused."""
  lines = ('{}: {}'.format(json.dumps(name), json.dumps(part, allow_nan=False))
           for name, part in value.items())
  write_text(path, '{\n  ' + ',\n  '.join(lines) + '\n}\n')


@contextlib.contextmanager
def open_locked(path: str) -> Iterator[BinaryIO]:
  """Opens a file for appending, for one process at a time; the others wait."""
  while True:
    with open(path, 'ab') as part:
      try:
        fcntl.flock(part.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
      except BlockingIOError:
        _LOG.info('waiting for another process that writes %s', path)
        fcntl.flock(part.fileno(), fcntl.LOCK_EX)
      # Whoever had the lock may have renamed or removed the file that is open here.
      is_current = False
      with contextlib.suppress(FileNotFoundError):
        is_current = os.path.samestat(os.fstat(part.fileno()), os.stat(path))
      if is_current:
        yield part
        return
