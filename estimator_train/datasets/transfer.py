"""Transfers a file by HTTP into `NAME.part`, which is resumed, and renamed when it is complete."""

import contextlib
import logging
import os
import shutil
import time
from typing import Any, BinaryIO, Callable, Dict, Iterator, NamedTuple

from estimator_train.errors import UserError
from estimator_train.files.atomic import open_locked

LOG = logging.getLogger('estimator_train')

# To connect, and for each read; a server that is silent for longer counts as an interruption.
TIMEOUT_SECS = (10., 30.)
# In a row. One that brought as many bytes as WORTH_BYTES is no failure: archives are large.
ATTEMPTS = 5
WORTH_BYTES = 1 << 24
# What an interruption costs at most: urllib3 2 yields whole chunks, and drops the last.
CHUNK_BYTES = 1 << 16


class Fetched(NamedTuple):
  """What became of a file: `downloaded` is False where it was there."""
  name: str
  size: int
  downloaded: bool


class Rejected(Exception):
  """The server does not give the file; asking it again would not help.

  Attributes:
    status: of the HTTP response, where that is the reason; else 0.
  """

  def __init__(self, reason: str, status: int = 0) -> None:
    super().__init__(reason)
    self.status = status


class _Interrupted(Exception):
  """The connection broke, or the part cannot be continued; the next request may succeed."""


def fetch(path: str, needed: int, is_there: Callable[[str], bool],
          complete: Callable[[BinaryIO], None]) -> Fetched:
  """Makes sure that a file is at `path`; several processes may call this at once.

  A file that is there is left alone. Any other is written to `path`.part, and gets its name when it
  is complete. What an interrupted call leaves in the part is resumed by the next.

  Args:
    path: where the file goes; its folder is made where it is missing.
    needed: bytes that the file, and what comes out of it, will take on the disk.
    is_there: whether the file at a path is the right one; raises a UserError where it is another.
    complete: appends to the part what it lacks.

  Raises:
    UserError: the disk is too small or cannot be written, or `complete` raised it.
  """
  name, folder = os.path.basename(path), os.path.dirname(path) or '.'
  try:
    if is_there(path):
      return Fetched(name, os.path.getsize(path), False)
    os.makedirs(folder, exist_ok=True)
    with open_locked(path + '.part') as part:
      if is_there(path):  # Another process was faster.
        os.remove(part.name)
        return Fetched(name, os.path.getsize(path), False)
      try:
        check_space(folder, needed - part.tell())
        started = time.monotonic()
        complete(part)
      except BaseException:
        if not part.tell():
          os.remove(part.name)
        raise
      part.flush()
      os.fsync(part.fileno())
      os.replace(part.name, path)
      LOG.info('downloaded %s (%d bytes) in %.1f s', name, part.tell(), time.monotonic() - started)
      return Fetched(name, part.tell(), True)
  except OSError as error:
    raise UserError('cannot store the data set',
                    '{}: {}'.format(error.filename or folder, error.strerror or error),
                    'choose a --data_dir that can be written and has {:,} bytes free'.format(
                        needed)) from error


def new_session() -> Any:
  """Returns a requests.Session that verifies every certificate."""
  import requests
  session = requests.Session()
  # The variables are those that requests reads itself, but up to 2.27 it takes an empty one for a
  # wish to verify nothing.
  session.verify = (os.environ.get('REQUESTS_CA_BUNDLE') or os.environ.get('CURL_CA_BUNDLE')
                    or requests.certs.where())
  return session


def get(session: Any, url: str, headers: Dict[str, str], **options: Any) -> Any:
  """Sends a request; returns the response before its body is read."""
  return session.get(url, headers=headers, stream=True, timeout=TIMEOUT_SECS,
                     verify=session.verify, **options)


def receive(request: Callable[[Dict[str, str]], Any], part: BinaryIO, size: int = 0) -> None:
  """Appends to `part` what it lacks; requests the rest again where the connection is interrupted.

  Args:
    request: sends a request with these headers, and returns the response.
    part: opened for appending.
    size: of the whole file; 0: what the server says.

  Raises:
    Rejected: the file cannot be had from this server.
  """
  failures = 0
  while not size or part.tell() < size:
    start = part.tell()
    try:
      _receive_rest(request, part, size)
      return
    except _Interrupted as error:
      failures = 1 if part.tell() - start >= WORTH_BYTES else failures + 1
      if failures == ATTEMPTS:
        raise Rejected('{}, tried {} times'.format(error, ATTEMPTS)) from error
      LOG.info('trying again: %s', error)


def start_over(part: BinaryIO) -> None:
  """Empties a file that is half-written."""
  part.seek(0)
  part.truncate()


def check_space(folder: str, needed: int) -> None:
  """Raises a UserError when the disk of an existing folder has fewer bytes free."""
  free = shutil.disk_usage(folder).free
  if free < needed:
    raise UserError('the disk is too small',
                    '{} has {:,} bytes free, needed are {:,}'.format(folder, free, needed),
                    'make room, or choose a --data_dir on a larger disk')


@contextlib.contextmanager
def show_progress(what: str, total: int, done: int = 0) -> Iterator[Callable[[int], None]]:
  """Yields a function that takes further bytes: a bar on a terminal, elsewhere a line a tenth."""
  from tqdm import tqdm  # Only where it is needed: the program's start should be fast.
  with tqdm(total=total, initial=done, unit='B', unit_scale=True, desc=what, disable=None) as bar:
    def advance(count: int) -> None:
      nonlocal done
      bar.update(count)
      before, done = done, done + count
      if bar.disable and total and done * 10 // total > before * 10 // total:
        LOG.info('%s: %d %%', what, done * 100 // total)

    yield advance


def _receive_rest(request: Callable[[Dict[str, str]], Any], part: BinaryIO, size: int) -> None:
  from requests import RequestException
  start = part.tell()
  # Some servers unpack or pack what they send, unless asked not to.
  headers = {'Accept-Encoding': 'identity'}
  if start:
    headers['Range'] = 'bytes={}-'.format(start)
  try:
    response = request(headers)
  except RequestException as error:
    raise _Interrupted(_first_cause(error)) from error
  with response:
    total = _total_size(response, start, size)
    if total and total == start:  # Interrupted between the last byte and the final name.
      return
    if response.status_code != 206 or not total:
      start_over(part)
    if not total:
      raise _Interrupted('HTTP {} with Content-Length {} and Content-Range {}'.format(
          response.status_code,
          *map(response.headers.get, ('Content-Length', 'Content-Range'))))
    _append(response, part, total)


def _total_size(response: Any, start: int, size: int) -> int:
  """Returns the size of the whole file; 0 where the response cannot be used.

  Raises:
    Rejected: another request would not help.
  """
  status, headers = response.status_code, response.headers
  if status not in (200, 206, 416):
    raise Rejected('HTTP {} {}'.format(status, response.reason), status)
  if status == 200:
    kind, length = headers.get('Content-Type', ''), headers.get('Content-Length', '')
    # Of a proxy that asks to log in, say; not worth the bytes that are here already.
    if kind.startswith(('text/', 'application/json')):
      raise Rejected('a page of the type {} came instead'.format(kind))
    if size and length not in ('', str(size)):
      raise Rejected('sends {} bytes'.format(length))
    return size or int(length if length.isdigit() else 0)
  given = headers.get('Content-Range', '')
  total = given.rpartition('/')[2]
  if not total.isdigit() or size not in (0, int(total)):
    return 0
  sent = '*' if status == 416 else '{}-{}'.format(start, int(total) - 1)
  is_continued = given == 'bytes {}/{}'.format(sent, total)
  return int(total) if is_continued and (status == 206 or int(total) == start) else 0


def _append(response: Any, part: BinaryIO, total: int) -> None:
  from urllib3.exceptions import HTTPError
  with show_progress(os.path.basename(part.name), total, part.tell()) as advance:
    # Below what requests reads with, which would unpack a file that was published packed.
    chunks = response.raw.stream(CHUNK_BYTES, decode_content=False)
    while part.tell() < total:
      # Writing stays outside of the try: a full disk is no matter of the connection.
      try:
        chunk = next(chunks, b'')
      except HTTPError as error:
        raise _Interrupted(_first_cause(error)) from error
      if not chunk:  # With urllib3 1, an interruption looks like the end.
        raise _Interrupted('cut after {:,} of {:,} bytes'.format(part.tell(), total))
      part.write(chunk)
      advance(len(chunk))


def _first_cause(error: BaseException) -> str:
  """Returns the first cause: the texts on top of it have addresses that let others download."""
  from requests import RequestException
  while error.__context__ is not None:
    error = error.__context__
  if isinstance(error, OSError) and not isinstance(error, RequestException):
    return str(error)
  return type(error).__name__
