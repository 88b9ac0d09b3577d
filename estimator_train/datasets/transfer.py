"""Downloads a file by HTTP to `NAME.part`, resumes it if interrupted, and renames it at the end."""

import contextlib
import logging
import os
import shutil
import time
from typing import Any, BinaryIO, Callable, Dict, Iterator, NamedTuple

from estimator_train.errors import UserError
from estimator_train.files.atomic import open_locked

LOG = logging.getLogger('estimator_train')

# Timeouts to connect and for each read. A timeout counts as an interruption.
TIMEOUT_SECS = (10., 30.)
# Consecutive failures after which a download ends. An attempt that receives at least PROGRESS_BYTES
# restarts the count, so that a large archive survives many interruptions.
MAX_ATTEMPTS = 5
PROGRESS_BYTES = 1 << 24
# The most that an interruption discards: urllib3 2 yields complete chunks only.
CHUNK_BYTES = 1 << 16


class FetchedFile(NamedTuple):
  """A file that is present; `downloaded` is False if it was present before."""
  name: str
  size: int
  downloaded: bool


class DownloadFailed(Exception):
  """The download failed: the server does not provide the file, or every attempt was interrupted.

  Attributes:
    status: the HTTP status code that is the reason, or 0 for another reason.
  """

  def __init__(self, reason: str, status: int = 0) -> None:
    super().__init__(reason)
    self.status = status


class _DownloadInterrupted(Exception):
  """The connection failed, or the partial file cannot be resumed; the next request may succeed."""


def fetch_file(path: str, needed: int, is_present: Callable[[str], bool],
               download: Callable[[BinaryIO], None]) -> FetchedFile:
  """Downloads a file unless it is present. Several processes may call this at the same time.

  The file is downloaded to `path`.part and renamed when it is complete. If a call is interrupted,
  the next one resumes the download.

  Args:
    path: the path of the file; its folder is created if it does not exist.
    needed: the disk space, in bytes, for the file and for what is unpacked from it.
    is_present: whether the file at a path is complete; raises a UserError if its content is wrong.
    download: appends the missing bytes to the partial file.

  Raises:
    UserError: the disk is too small or cannot be written, or `download` raised it.
  """
  name, folder = os.path.basename(path), os.path.dirname(path) or '.'
  try:
    if is_present(path):
      return FetchedFile(name, os.path.getsize(path), False)
    os.makedirs(folder, exist_ok=True)
    with open_locked(path + '.part') as part:
      if is_present(path):  # Another process has downloaded it in the meantime.
        os.remove(part.name)
        return FetchedFile(name, os.path.getsize(path), False)
      try:
        check_free_space(folder, needed - partial_size(part))
        started = time.monotonic()
        download(part)
      except BaseException:
        if not partial_size(part):
          os.remove(part.name)
        raise
      part.flush()
      os.fsync(part.fileno())
      os.replace(part.name, path)
      size = partial_size(part)
      LOG.info('downloaded %s (%d bytes) in %.1f s', name, size, time.monotonic() - started)
      return FetchedFile(name, size, True)
  except OSError as error:
    raise UserError('cannot store the data set',
                    '{}: {}'.format(error.filename or folder, error.strerror or error),
                    'choose a writable --data_dir with {:,} bytes of free space'.format(
                        needed)) from error


def new_session() -> Any:
  """Returns a requests.Session that verifies all certificates."""
  import requests
  session = requests.Session()
  # requests reads these variables itself, but up to release 2.27 it disables verification if one of
  # them is empty.
  session.verify = (os.environ.get('REQUESTS_CA_BUNDLE') or os.environ.get('CURL_CA_BUNDLE')
                    or requests.certs.where())
  return session


def send_request(session: Any, url: str, headers: Dict[str, str], **options: Any) -> Any:
  """Sends a GET request and returns the response, whose body is not read yet."""
  return session.get(url, headers=headers, stream=True, timeout=TIMEOUT_SECS,
                     verify=session.verify, **options)


def receive_file(request: Callable[[Dict[str, str]], Any], part: BinaryIO, size: int = 0) -> None:
  """Appends the missing bytes to a partial file, and retries after interruptions.

  Args:
    request: sends a request with the given headers and returns the response.
    part: the partial file, open for appending.
    size: the size of the complete file in bytes; 0: the size that the server reports.

  Raises:
    DownloadFailed: this server does not provide the file, or MAX_ATTEMPTS attempts failed.
  """
  failures = 0
  while not size or partial_size(part) < size:
    start = partial_size(part)
    try:
      _receive_remainder(request, part, size)
      return
    except _DownloadInterrupted as error:
      failures = 1 if partial_size(part) - start >= PROGRESS_BYTES else failures + 1
      if failures == MAX_ATTEMPTS:
        raise DownloadFailed('{}, tried {} times'.format(error, MAX_ATTEMPTS)) from error
      LOG.info('retrying the download: %s', error)


def partial_size(part: BinaryIO) -> int:
  """Returns the number of bytes in a file that is open for appending."""
  return part.seek(0, os.SEEK_END)


def discard_contents(part: BinaryIO) -> None:
  """Empties a partial file."""
  part.seek(0)
  part.truncate()


def check_free_space(folder: str, needed: int) -> None:
  """Raises a UserError if the disk of an existing folder has less than `needed` bytes free."""
  free = shutil.disk_usage(folder).free
  if free < needed:
    raise UserError('the disk is too small',
                    '{} has {:,} bytes free, {:,} are required'.format(folder, free, needed),
                    'free some space, or choose a --data_dir on a larger disk')


@contextlib.contextmanager
def show_progress(what: str, total: int, done: int = 0) -> Iterator[Callable[[int], None]]:
  """Shows a progress bar on a terminal, else logs each further 10 % of the total; yields a function
  to add bytes."""
  from tqdm import tqdm  # Imported here to keep the start of the program fast.
  with tqdm(total=total, initial=done, unit='B', unit_scale=True, desc=what, disable=None) as bar:
    def advance(count: int) -> None:
      nonlocal done
      bar.update(count)
      before, done = done, done + count
      if bar.disable and total and done * 10 // total > before * 10 // total:
        LOG.info('%s: %d %%', what, done * 100 // total)

    yield advance


def _receive_remainder(request: Callable[[Dict[str, str]], Any], part: BinaryIO, size: int) -> None:
  from requests import RequestException
  start = partial_size(part)
  # Without this header, some servers compress or decompress the file.
  headers = {'Accept-Encoding': 'identity'}
  if start:
    headers['Range'] = 'bytes={}-'.format(start)
  try:
    response = request(headers)
  except RequestException as error:
    raise _DownloadInterrupted(_root_cause(error)) from error
  with response:
    total = _total_size(response, start, size)
    if total and total == start:  # The previous run ended before it renamed the complete file.
      return
    if response.status_code != 206 or not total:
      discard_contents(part)
    if not total:
      raise _DownloadInterrupted('HTTP {} with Content-Length {} and Content-Range {}'.format(
          response.status_code,
          *map(response.headers.get, ('Content-Length', 'Content-Range'))))
    _append_body(response, part, total)


def _total_size(response: Any, start: int, size: int) -> int:
  """Returns the size of the complete file in bytes, or 0 if the response cannot be used.

  Raises:
    DownloadFailed: a retry would not help.
  """
  status, headers = response.status_code, response.headers
  if status not in (200, 206, 416):
    raise DownloadFailed('HTTP {} {}'.format(status, response.reason), status)
  if status == 200:
    kind, length = headers.get('Content-Type', ''), headers.get('Content-Length', '')
    # For example the login page of a proxy. Keep the bytes that were received before.
    if kind.startswith(('text/', 'application/json')):
      raise DownloadFailed('received a page of type {} instead'.format(kind))
    if size and length not in ('', str(size)):
      raise DownloadFailed('the server sends {} bytes'.format(length))
    return size or int(length if length.isdigit() else 0)
  content_range = headers.get('Content-Range', '')
  total = content_range.rpartition('/')[2]
  if not total.isdigit() or size not in (0, int(total)):
    return 0
  sent = '*' if status == 416 else '{}-{}'.format(start, int(total) - 1)
  is_resumed = content_range == 'bytes {}/{}'.format(sent, total)
  return int(total) if is_resumed and (status == 206 or int(total) == start) else 0


def _append_body(response: Any, part: BinaryIO, total: int) -> None:
  from urllib3.exceptions import HTTPError
  with show_progress(os.path.basename(part.name), total, partial_size(part)) as advance:
    # Read with urllib3, because requests would decompress a file that is published compressed.
    chunks = response.raw.stream(CHUNK_BYTES, decode_content=False)
    while partial_size(part) < total:
      # Write outside of the try block: a full disk is not an interruption.
      try:
        chunk = next(chunks, b'')
      except HTTPError as error:
        raise _DownloadInterrupted(_root_cause(error)) from error
      if not chunk:  # urllib3 1 reports an interruption as the end of the body.
        raise _DownloadInterrupted('interrupted after {:,} of {:,} bytes'.format(
            partial_size(part), total))
      part.write(chunk)
      advance(len(chunk))


def _root_cause(error: BaseException) -> str:
  """Returns the text of the innermost exception if it is an OSError, else only its type."""
  from requests import RequestException
  while error.__context__ is not None:
    error = error.__context__
  if isinstance(error, OSError) and not isinstance(error, RequestException):
    return str(error)
  return type(error).__name__
