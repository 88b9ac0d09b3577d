"""Downloads files over HTTP, and resumes interrupted downloads from a partial file, `NAME.part`."""

import contextlib
import functools
import http.client
import logging
import os
import re
import shutil
import socket
import ssl
import time
import urllib.error
import urllib.request
from typing import Any, BinaryIO, Callable, Iterator, List, NamedTuple, Optional, Sequence

from estimator_train.data import DataFile
from estimator_train.errors import UserError
from estimator_train.system import storage
from estimator_train.system.progress import make_progress_bar

_LOG = logging.getLogger('estimator_train')

# The timeout for connecting and for each read. After a timeout, the download is retried.
TIMEOUT_SECS = 30.
# A download fails after this number of consecutive failed attempts. An attempt that receives at
# least PROGRESS_BYTES restarts the count, so that a large archive can survive many interruptions.
MAX_ATTEMPTS = 5
PROGRESS_BYTES = 1 << 24
_CHUNK_BYTES = 1 << 16
# A connection has stalled if it delivers fewer bytes per second than this over _SLOW_SECS, although
# each of them restarts the timeout.
_SLOW_SECS, _MIN_BYTES_PER_SEC = 5., 100
# Errors of the network, after which the next request may succeed.
_INTERRUPTIONS = (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError,
                  socket.timeout, ssl.SSLError)
# The header with the size of the complete file, by the status: of the complete file, of its bytes
# from {} on, or that there are none from {} on.
_SIZES = {200: ('Content-Length', r'(\d+)$'), 206: ('Content-Range', r'bytes {}-\d+/(\d+)$'),
          416: ('Content-Range', r'bytes \*/({})$')}


class DownloadResult(NamedTuple):
  """A file or folder of a data set, which is present after the download.

  Attributes:
    name: the path in `data_dir`.
    size: the size in bytes.
    downloaded: False if the file or folder was present before.
  """
  name: str
  size: int
  downloaded: bool


class DownloadFailed(Exception):
  """The download failed: the server does not provide the file, or every attempt was interrupted."""


class SecureHandler(urllib.request.BaseHandler):
  """Refuses requests without TLS, also after a redirect."""
  handler_order = 0  # Before the handlers of urllib.

  def http_open(self, request: urllib.request.Request) -> None:
    raise DownloadFailed('a request without TLS is refused')

  ftp_open = http_open


def download_files(files: Sequence[DataFile], data_dir: str) -> List[DownloadResult]:
  """Downloads the missing files to `data_dir`, and verifies their checksums.

  `data_dir` is created if it does not exist. No request is sent for a file that is present. Several
  processes may call this function at once.

  Raises:
    UserError: a file cannot be downloaded or stored, or an existing file is not the published one.
  """
  paths = [os.path.join(data_dir, file.name) for file in files]
  # Check existing files first, so that a wrong file is reported before a long download.
  for file, path in zip(files, paths):
    md5 = storage.digest_file(path) if os.path.exists(path) else file.md5
    if md5 != file.md5:
      raise UserError('a data file is not the published one',
                      '{} has {} bytes, md5 {}, expected {} bytes, md5 {}'.format(
                          path, os.path.getsize(path), md5, file.size, file.md5),
                      'remove it and run --mode=download again')
  return [DownloadResult(file.name, file.size, download_if_missing(
      path, file.size, functools.partial(_complete_published_file, file)))
          for file, path in zip(files, paths)]


def download_if_missing(path: str, needed_bytes: int, complete: Callable[[BinaryIO], None]) -> bool:
  """Downloads a file unless it is present. Several processes may call this function at once.

  The file is downloaded to `path`.part and renamed when it is complete. If a call is interrupted,
  the next call resumes the download.

  Args:
    path: the path of the file; its folder is created if it does not exist.
    needed_bytes: the disk space for the file and for everything that is unpacked from the file.
    complete: appends the missing bytes to the partial file.

  Returns:
    Whether this call has downloaded the file.

  Raises:
    UserError: the disk is too small or cannot be written, or `complete` failed.
  """
  if os.path.exists(path):
    return False
  folder = os.path.dirname(path) or '.'
  with making_folder(folder, needed_bytes), storage.open_locked(path + '.part') as part_file:
    if os.path.exists(path):  # Another process has downloaded it in the meantime.
      os.remove(part_file.name)
      return False
    check_free_space(folder, needed_bytes - partial_size(part_file))
    complete(part_file)
    part_file.flush()
    os.fsync(part_file.fileno())
    os.replace(part_file.name, path)
    return True


@contextlib.contextmanager
def making_folder(folder: str, needed_bytes: int) -> Iterator[None]:
  """Makes a folder, and translates the errors of storing files in it into UserErrors."""
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


def append_missing_bytes(url: str, part_file: BinaryIO, authorization: str = '',
                         size: Optional[int] = None) -> None:
  """Downloads the missing bytes of a partial file, and retries after interruptions.

  Args:
    url: the URL of the file.
    part_file: the partial file, open for appending.
    authorization: a secret for the server of the URL, not for those to which it redirects. With a
      secret, requests without TLS are refused.
    size: the published size of the file in bytes, of which no more is received; None: unknown.

  Raises:
    DownloadFailed: this server does not provide the file, or MAX_ATTEMPTS attempts in a row failed.
  """
  failures = 0
  while True:
    start = partial_size(part_file)
    try:
      with contextlib.closing(_request(url, start, authorization)) as response:
        return _append(response, start, part_file, size)
    except _INTERRUPTIONS as error:
      failures = 1 if partial_size(part_file) - start >= PROGRESS_BYTES else failures + 1
      if failures == MAX_ATTEMPTS:
        raise DownloadFailed('{}, tried {} times'.format(
            getattr(error, 'reason', error), MAX_ATTEMPTS)) from error
      _LOG.info('retrying the download: %s', error)


def partial_size(part_file: BinaryIO) -> int:
  """Returns the number of bytes in a file that is open for appending."""
  return part_file.seek(0, os.SEEK_END)


@contextlib.contextmanager
def show_progress(label: str, total: int, done: int = 0) -> Iterator[Callable[[int], None]]:
  """Shows a progress bar, or logs every 10 % of the total where no bar is shown.

  Yields a function that adds a number of bytes to the progress, which begins at `done`.
  """
  with make_progress_bar(total=total, initial=done, unit='B', unit_scale=True, desc=label) as bar:
    def advance(count: int) -> None:
      nonlocal done
      bar.update(count)
      before, done = done, done + count
      if bar.disable and total and done * 10 // total > before * 10 // total:
        _LOG.info('%s: %d %%', label, done * 100 // total)

    yield advance


def _complete_published_file(file: DataFile, part_file: BinaryIO) -> None:
  """Completes a partial file from the first URL that serves the published file."""
  _LOG.info('downloading %s (%d bytes)', file.name, file.size)
  failures = []
  for url in sorted(file.urls, key=lambda url: not url.startswith('https:')):
    try:
      if partial_size(part_file) > file.size:
        part_file.truncate(0)
      # The bytes of an earlier run or of another URL may be wrong. If so, they are discarded, and
      # the complete file is requested.
      for _ in range(2 if partial_size(part_file) else 1):
        append_missing_bytes(url, part_file, size=file.size)
        part_file.flush()
        md5 = storage.digest_file(part_file.name)
        if md5 == file.md5:
          return
        part_file.truncate(0)
      failures.append('{} (wrong md5 {})'.format(url, md5))
    except DownloadFailed as error:
      failures.append('{} ({})'.format(url, error))
  raise UserError('cannot download {}'.format(file.name), ', '.join(failures),
                  'try again, or copy the file {} ({} bytes, md5 {}) to {}'.format(
                      file.name, file.size, file.md5, os.path.dirname(part_file.name)))


def _append(response: Any, start: int, part_file: BinaryIO, size: Optional[int]) -> None:
  """Appends the response, which has the bytes of the file from `start` on, to the partial file.

  Raises:
    ConnectionError: the response is incomplete, or cannot be used; a retry may help.
    DownloadFailed: a retry would not help.
  """
  total = _total_size(response, start, size or 0)
  if response.code == 200 or not total:
    part_file.truncate(0)
  if not total:
    raise ConnectionError('HTTP {} with Content-Length {} and Content-Range {}'.format(
        response.code, *map(response.headers.get, ('Content-Length', 'Content-Range'))))
  if size is not None and total != size:
    raise DownloadFailed('the server has a file of {:,} bytes instead of {:,}'.format(total, size))
  began, received = time.monotonic(), 0
  with show_progress(os.path.basename(part_file.name), total, partial_size(part_file)) as advance:
    while partial_size(part_file) < total:
      try:
        # `read` would wait for all bytes, each of which restarts the timeout.
        chunk = response.read1(min(_CHUNK_BYTES, total - partial_size(part_file)))
      except OSError as error:  # Must not be taken for an error of the disk.
        raise ConnectionError(str(error)) from error
      if not chunk:  # http.client reports an interruption as the end of the body.
        raise ConnectionError('interrupted after {:,} of {:,} bytes'.format(
            partial_size(part_file), total))
      part_file.write(chunk)
      advance(len(chunk))
      received += len(chunk)
      secs = time.monotonic() - began
      if secs >= _SLOW_SECS:  # So slow that the download would not end.
        if received < _MIN_BYTES_PER_SEC * secs:
          raise ConnectionError('stalled: {:,} bytes in {:.0f} s'.format(received, secs))
        began, received = time.monotonic(), 0


def _request(url: str, start: int, authorization: str) -> Any:
  """Requests the bytes of a file from `start` on; returns the response, also of an error.

  Raises:
    DownloadFailed: the URL, or a URL to which it redirects, is invalid.
  """
  import certifi  # A dependency of kaggle.
  try:
    request = urllib.request.Request(url)
  except ValueError as error:
    raise DownloadFailed('an invalid URL: {}'.format(error)) from error
  if start:
    request.add_header('Range', 'bytes={}-'.format(start))
  if authorization:
    request.add_unredirected_header('Authorization', authorization)
  context = ssl.create_default_context()
  context.load_verify_locations(certifi.where())  # In addition to the certificates of the system.
  opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context),
                                       *[SecureHandler()] * bool(authorization))
  try:
    return opener.open(request, timeout=TIMEOUT_SECS)
  except urllib.error.HTTPError as error:
    return error
  except (ValueError, OverflowError) as error:  # Of a URL that cannot be parsed, or its port.
    raise DownloadFailed('an invalid URL or redirect: {}'.format(error)) from error


def _total_size(response: Any, start: int, published: int) -> int:
  """Returns the size of the complete file in bytes, or 0 if the response cannot be used.

  Args:
    response: the response, whose code may be that of an error.
    start: the first requested byte.
    published: the published size, which a proxy that sends chunks omits; 0: unknown.

  Raises:
    DownloadFailed: a retry would not help.
  """
  header, pattern = _SIZES.get(response.code, ('', ''))
  content_type = response.headers.get('Content-Type', '')
  if not header:
    raise DownloadFailed('HTTP {} {}'.format(response.code, getattr(response, 'reason', '')))
  # The page may be the login page of a proxy.
  if response.code == 200 and content_type.startswith(('text/', 'application/json')):
    raise DownloadFailed('received a page of type {} instead of the file'.format(content_type))
  if response.code == 200 and header not in response.headers:
    return published
  match = re.match(pattern.format(start), response.headers.get(header, ''))
  return int(match.group(1)) if match else 0
