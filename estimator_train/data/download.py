"""Downloads files over HTTP, and resumes interrupted downloads from a partial file, `NAME.part`."""

import contextlib
import functools
import hashlib
import logging
import os
import shutil
from typing import Any, BinaryIO, Callable, Iterator, List, NamedTuple, Sequence

from estimator_train.data.description import DataFile
from estimator_train.errors import UserError
from estimator_train.system.atomic import open_locked
from estimator_train.system.progress import make_progress_bar

_LOG = logging.getLogger('estimator_train')

# The timeouts for connecting and for each read. After a timeout, the download is retried.
TIMEOUT_SECS = (10., 30.)
# A download fails after this number of consecutive failed attempts. An attempt that receives at
# least PROGRESS_BYTES restarts the count, so that a large archive can survive many interruptions.
MAX_ATTEMPTS = 5
PROGRESS_BYTES = 1 << 24
# An interruption discards up to this number of bytes, since urllib3 2 yields complete chunks only.
CHUNK_BYTES = 1 << 16


class DownloadResult(NamedTuple):
  """The result of downloading a file or folder of a data set, which is present afterwards.

  Attributes:
    name: the path in `data_dir`.
    size: the size in bytes.
    downloaded: False if the file or folder was present before.
  """
  name: str
  size: int
  downloaded: bool


class DownloadFailed(Exception):
  """The download failed: the server does not provide the file, or every attempt was interrupted.

  Attributes:
    status: the HTTP status code that caused the failure, or 0 if the cause is not an HTTP error.
  """

  def __init__(self, reason: str, status: int = 0) -> None:
    super().__init__(reason)
    self.status = status


class _DownloadInterrupted(Exception):
  """The connection failed, or the partial file cannot be resumed; the next request may succeed."""


def download_files(files: Sequence[DataFile], data_dir: str) -> List[DownloadResult]:
  """Downloads the missing files to `data_dir`, and verifies their checksums.

  Returns the path and size of every file, and whether it was downloaded. `data_dir` is created if
  it does not exist. No request is sent for a file that is present. Several processes may call this
  function at once.

  Raises:
    UserError: a file cannot be downloaded or stored, or an existing file is not the published one.
  """
  paths = [os.path.join(data_dir, file.name) for file in files]
  # Check existing files first, so that a wrong file is reported before a long download.
  for file, path in zip(files, paths):
    if os.path.exists(path):
      _verify(file, path)
  return [DownloadResult(file.name, file.size, fetch_file(
      path, file.size, functools.partial(_download_remainder, file)))
          for file, path in zip(files, paths)]


def fetch_file(path: str, needed_bytes: int, download: Callable[[BinaryIO], None]) -> bool:
  """Downloads a file unless it is present. Several processes may call this function at once.

  The file is downloaded to `path`.part and renamed when it is complete. If a call is interrupted,
  the next call resumes the download.

  Args:
    path: the path of the file; its folder is created if it does not exist.
    needed_bytes: the disk space for the file and for everything that is unpacked from the file.
    download: a function that appends the missing bytes to the partial file.

  Returns:
    Whether this call has downloaded the file.

  Raises:
    UserError: the disk is too small or cannot be written, or `download` failed.
  """
  if os.path.exists(path):
    return False
  folder = os.path.dirname(path) or '.'
  with storing_in(folder, needed_bytes), open_locked(path + '.part') as part_file:
    if os.path.exists(path):  # Another process has downloaded it in the meantime.
      os.remove(part_file.name)
      return False
    check_free_space(folder, needed_bytes - partial_size(part_file))
    download(part_file)
    part_file.flush()
    os.fsync(part_file.fileno())
    os.replace(part_file.name, path)
    return True


@contextlib.contextmanager
def storing_in(folder: str, needed_bytes: int) -> Iterator[None]:
  """Creates a folder, and translates the errors of storing files in it into UserErrors."""
  try:
    os.makedirs(folder, exist_ok=True)
    yield
  except OSError as error:
    raise UserError('cannot store the data set',
                    '{}: {}'.format(error.filename or folder, error.strerror or error),
                    'choose a writable --data_dir with {:,} bytes of free space'.format(
                        needed_bytes)) from error


def check_free_space(folder: str, needed_bytes: int) -> None:
  """Raises a UserError if the disk of an existing folder has less than `needed_bytes` free."""
  free_bytes = shutil.disk_usage(folder).free
  if free_bytes < needed_bytes:
    raise UserError('the disk is too small',
                    '{} has {:,} bytes free, {:,} are required'.format(
                        folder, free_bytes, needed_bytes),
                    'free some space, or choose a --data_dir on a larger disk')


def new_session() -> Any:
  """Returns a requests.Session that verifies all certificates."""
  import requests
  session = requests.Session()
  # Up to release 2.27, requests disables verification if one of these variables is empty. Setting
  # `verify` prevents this.
  session.verify = (os.environ.get('REQUESTS_CA_BUNDLE') or os.environ.get('CURL_CA_BUNDLE')
                    or requests.certs.where())
  return session


def receive_file(session: Any, url: str, part_file: BinaryIO, expected_size: int = 0) -> None:
  """Appends the missing bytes to a partial file, and retries after interruptions.

  Args:
    session: a session of `new_session`.
    url: the URL of the file.
    part_file: the partial file, open for appending.
    expected_size: the size of the complete file in bytes, or 0 to use the size that the server
      reports.

  Raises:
    DownloadFailed: this server does not provide the file, or MAX_ATTEMPTS attempts in a row failed.
  """
  failures = 0
  while True:
    start = partial_size(part_file)
    try:
      return _receive_remainder(session, url, part_file, expected_size)
    except _DownloadInterrupted as error:
      failures = 1 if partial_size(part_file) - start >= PROGRESS_BYTES else failures + 1
      if failures == MAX_ATTEMPTS:
        raise DownloadFailed('{}, tried {} times'.format(error, MAX_ATTEMPTS)) from error
      _LOG.info('retrying the download: %s', error)


def partial_size(part_file: BinaryIO) -> int:
  """Returns the number of bytes in a file that is open for appending."""
  return part_file.seek(0, os.SEEK_END)


@contextlib.contextmanager
def show_progress(label: str, total: int, done: int = 0) -> Iterator[Callable[[int], None]]:
  """Shows a progress bar, or logs every 10 % of the total where no bar is shown.

  Args:
    label: the text that precedes the progress.
    total: the number of bytes at the end.
    done: the number of bytes at the start.

  Yields:
    A function that adds a number of bytes to the progress.
  """
  with make_progress_bar(total=total, initial=done, unit='B', unit_scale=True, desc=label) as bar:
    def advance(count: int) -> None:
      nonlocal done
      bar.update(count)
      before, done = done, done + count
      if bar.disable and total and done * 10 // total > before * 10 // total:
        _LOG.info('%s: %d %%', label, done * 100 // total)

    yield advance


def _verify(file: DataFile, path: str) -> None:
  """Raises a UserError unless the content of an existing file is the published one."""
  size = os.path.getsize(path)
  found = 'md5 {}'.format(_md5(path)) if size == file.size else '{} bytes'.format(size)
  if found != 'md5 {}'.format(file.md5):
    raise UserError('a data file is not the published one',
                    '{} has {}, expected {} bytes, md5 {}'.format(path, found, file.size, file.md5),
                    'remove it and run --mode=download again')


def _download_remainder(file: DataFile, part_file: BinaryIO) -> None:
  """Completes a partial file from the first URL that serves the published file."""
  _LOG.info('downloading %s (%d bytes)', file.name, file.size)
  failures = []
  for url in file.urls:
    try:
      # The bytes of an earlier run or of another URL may be wrong. If so, they are discarded, and
      # the complete file is requested.
      for _ in range(2 if partial_size(part_file) else 1):
        with new_session() as session:
          receive_file(session, url, part_file, file.size)
        part_file.flush()
        md5 = _md5(part_file.name)
        if md5 == file.md5:
          return
        part_file.truncate(0)
      failures.append('{} (wrong md5 {})'.format(url, md5))
    except DownloadFailed as error:
      failures.append('{} ({})'.format(url, error))
  raise UserError('cannot download {}'.format(file.name), ', '.join(failures),
                  'try again, or copy the file {} ({} bytes, md5 {}) to {}'.format(
                      file.name, file.size, file.md5, os.path.dirname(part_file.name)))


def _md5(path: str) -> str:
  """Returns the MD5 checksum of a file, as 32 hexadecimal digits."""
  digest = hashlib.md5()
  with open(path, 'rb') as file:
    for chunk in iter(lambda: file.read(1 << 16), b''):
      digest.update(chunk)
  return digest.hexdigest()


def _receive_remainder(session: Any, url: str, part_file: BinaryIO, expected_size: int) -> None:
  """Sends one request for the missing bytes, and appends the response to the partial file."""
  import requests
  import urllib3
  start = partial_size(part_file)
  # Without the first header, some servers compress or decompress the file.
  headers = {'Accept-Encoding': 'identity', **(
      {'Range': 'bytes={}-'.format(start)} if start else {})}
  try:
    with session.get(url, headers=headers, stream=True, timeout=TIMEOUT_SECS,
                     verify=session.verify) as response:
      total = _total_size(response, start, expected_size)
      if total and total == start:  # An earlier run ended before renaming the complete file.
        return
      if response.status_code != 206 or not total:
        part_file.truncate(0)
      if not total:
        raise _DownloadInterrupted('HTTP {} with Content-Length {} and Content-Range {}'.format(
            response.status_code,
            *map(response.headers.get, ('Content-Length', 'Content-Range'))))
      with show_progress(os.path.basename(part_file.name), total,
                          partial_size(part_file)) as advance:
        # Read with urllib3, because requests would decompress a file that is published as gzip.
        for chunk in response.raw.stream(CHUNK_BYTES, decode_content=False):
          part_file.write(chunk)
          advance(len(chunk))
          if partial_size(part_file) >= total:
            break
  except requests.exceptions.InvalidSchema as error:
    raise DownloadFailed('a request without TLS is refused') from error
  except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
    raise _DownloadInterrupted(_root_cause(error)) from error
  if partial_size(part_file) < total:  # urllib3 1 reports an interruption as the end of the body.
    raise _DownloadInterrupted('interrupted after {:,} of {:,} bytes'.format(
        partial_size(part_file), total))


def _total_size(response: Any, start: int, expected_size: int) -> int:
  """Returns the size of the complete file in bytes, or 0 if the response cannot be used.

  Raises:
    DownloadFailed: a retry would not help.
  """
  status, headers = response.status_code, response.headers
  if status == 200:
    content_type, length = headers.get('Content-Type', ''), headers.get('Content-Length', '')
    # The page may be the login page of a proxy. The exception keeps the partial file; returning 0
    # would discard it.
    if content_type.startswith(('text/', 'application/json')):
      raise DownloadFailed('received a page of type {} instead of the file'.format(content_type))
    if expected_size and length not in ('', str(expected_size)):
      raise DownloadFailed('the server sends {} bytes instead of {}'.format(length, expected_size))
    return expected_size or int(length if length.isdigit() else 0)
  content_range = headers.get('Content-Range', '')
  if status == 416:
    return start if content_range == 'bytes */{}'.format(start) else 0
  if status != 206:
    raise DownloadFailed('HTTP {} {}'.format(status, response.reason), status)
  total = content_range.rpartition('/')[2]
  is_requested_range = total.isdigit() and content_range == 'bytes {}-{}/{}'.format(
      start, int(total) - 1, total)
  return int(total) if is_requested_range and expected_size in (0, int(total)) else 0


def _root_cause(error: BaseException) -> str:
  """Returns the text of the innermost exception if that is an OSError, else only the type.

  The text of any other exception may contain a signed URL, with which anyone can download the file.
  """
  from requests import RequestException
  while error.__context__ is not None:
    error = error.__context__
  if isinstance(error, OSError) and not isinstance(error, RequestException):
    return str(error)
  return type(error).__name__
