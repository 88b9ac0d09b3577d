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
from estimator_train.system.formatting import format_bytes
from estimator_train.system.progress import make_bar

_LOG = logging.getLogger('estimator_train')

# The timeout for connecting and for each read. After a timeout, the download is retried.
TIMEOUT_SECS = 30.
# A download fails after this number of consecutive failed attempts. An attempt that receives at
# least PROGRESS_BYTES restarts the count, so that a large archive can be interrupted many times.
MAX_ATTEMPTS = 5
PROGRESS_BYTES = 1 << 24
_CHUNK_BYTES = 1 << 16
# A connection has stalled if it delivers fewer bytes per second than this over _SLOW_SECS. The
# timeout does not detect this, because each received byte restarts the timeout.
_SLOW_SECS, _MIN_BYTES_PER_SEC = 5., 100
# Errors of the network, after which the next request may succeed.
_INTERRUPTIONS = (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError,
                  socket.timeout, ssl.SSLError)
# For each status of a response: the header that contains the size of the complete file, and the
# pattern of this size in the header. The response has the complete file (200), its bytes from {} on
# (206), or no bytes, because the file ends at {} (416).
_SIZE_PATTERNS = {200: ('Content-Length', r'(\d+)$'),
                  206: ('Content-Range', r'bytes {}-\d+/(\d+)$'),
                  416: ('Content-Range', r'bytes \*/({})$')}


class DownloadResult(NamedTuple):
  """A file or folder of a data set, which is present after the download.

  Attributes:
    name: the path in `data_dir`.
    size: the size in bytes.
    downloaded: whether this call downloaded the file or folder.
  """
  name: str
  size: int
  downloaded: bool


class DownloadFailed(Exception):
  """The server does not provide the file, or all attempts to download it were interrupted."""


class SecureHandler(urllib.request.BaseHandler):
  """Refuses all requests without TLS, including redirected requests."""
  handler_order = 0  # urllib calls this handler before its own.

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
  # Check all existing files first, so that a wrong file is reported before a long download.
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


def download_if_missing(path: str, needed_bytes: int,
                        append_rest: Callable[[BinaryIO], None]) -> bool:
  """Downloads a file unless it is present. Several processes may call this function at once.

  The file is downloaded to `path`.part and renamed when it is complete. If a call is interrupted,
  the next call resumes the download.

  Args:
    path: the path of the file; its folder is created if it does not exist.
    needed_bytes: the disk space for the file and for everything that is unpacked from the file.
    append_rest: appends the missing bytes to the partial file.

  Returns:
    Whether this call has downloaded the file.

  Raises:
    UserError: the disk is too small or cannot be written, or `append_rest` failed.
  """
  if os.path.exists(path):
    return False
  folder = os.path.dirname(path) or '.'
  with prepare_folder(folder, needed_bytes), storage.open_locked(path + '.part') as part_file:
    if os.path.exists(path):  # Another process has downloaded it in the meantime.
      os.remove(part_file.name)
      return False
    check_free_space(folder, needed_bytes - partial_size(part_file))
    append_rest(part_file)
    part_file.flush()
    os.fsync(part_file.fileno())
    os.replace(part_file.name, path)
    return True


@contextlib.contextmanager
def prepare_folder(folder: str, needed_bytes: int) -> Iterator[None]:
  """Makes a folder, and translates OSErrors while files are stored in it into UserErrors."""
  try:
    os.makedirs(folder, exist_ok=True)
    yield
  except OSError as error:
    raise UserError('cannot store the data set',
                    '{}: {}'.format(error.filename or folder, error.strerror or error),
                    'choose a writable --data_dir with {} of free space'.format(
                        format_bytes(needed_bytes))) from error


def check_free_space(folder: str, needed_bytes: int) -> None:
  """Raises a UserError if the disk of an existing folder has less than `needed_bytes` free."""
  free_bytes = shutil.disk_usage(folder).free
  if free_bytes < needed_bytes:
    raise UserError('the disk is too small',
                    '{} has {} free, {} are required'.format(
                        folder, format_bytes(free_bytes), format_bytes(needed_bytes)),
                    'free some space, or choose a --data_dir on a larger disk')


def append_missing_bytes(url: str, part_file: BinaryIO, authorization: str = '',
                         size: Optional[int] = None) -> None:
  """Downloads the missing bytes of a partial file, and retries after interruptions.

  Args:
    part_file: the partial file, open for appending.
    authorization: a secret, which is sent only to the server of the URL, and not to servers to
      which it redirects. With a secret, requests without TLS are refused.
    size: the published size of the file in bytes; None if it is unknown. Files of other sizes are
      refused.

  Raises:
    DownloadFailed: this server does not provide the file, or MAX_ATTEMPTS attempts in a row failed.
  """
  failures = 0
  while True:
    offset = partial_size(part_file)
    try:
      with contextlib.closing(_send_request(url, offset, authorization)) as response:
        return _append_response(response, offset, part_file, size)
    except _INTERRUPTIONS as error:
      failures = 1 if partial_size(part_file) - offset >= PROGRESS_BYTES else failures + 1
      if failures == MAX_ATTEMPTS:
        raise DownloadFailed('{}, tried {} times'.format(
            getattr(error, 'reason', error), MAX_ATTEMPTS)) from error
      _LOG.info('retrying the download: %s', error)


def partial_size(part_file: BinaryIO) -> int:
  """Returns the number of bytes in a file that is open for appending."""
  return part_file.seek(0, os.SEEK_END)


@contextlib.contextmanager
def show_progress(label: str, total: int, done: int = 0) -> Iterator[Callable[[int], None]]:
  """Shows a progress bar or, where no bar is shown, logs every 10 % of the total.

  Yields a function that adds a number of bytes to the progress, which begins at `done`.
  """
  with make_bar(label, total, 'bytes', done) as bar:
    def advance(count: int) -> None:
      nonlocal done
      bar.update(count)
      done_before, done = done, done + count
      if not bar.is_shown and total and done * 10 // total > done_before * 10 // total:
        _LOG.info('%s: %d %%', label, done * 100 // total)

    yield advance


def _complete_published_file(file: DataFile, part_file: BinaryIO) -> None:
  """Downloads the missing bytes of a file from the first URL that has the published file."""
  _LOG.info('downloading %s (%s)', file.name, format_bytes(file.size))
  failures = []
  for url in sorted(file.urls, key=lambda url: not url.startswith('https:')):
    try:
      if partial_size(part_file) > file.size:
        part_file.truncate(0)
      # The partial file may contain wrong bytes from an earlier run or another URL. In this case,
      # the second iteration requests the complete file.
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


def _append_response(response: Any, offset: int, part_file: BinaryIO, size: Optional[int]) -> None:
  """Appends the response to a request for the bytes from `offset` on to the partial file.

  Raises:
    ConnectionError: the response is incomplete, or cannot be used; a retry may help.
    DownloadFailed: a retry would not help.
  """
  total = _total_size(response, offset, size or 0)
  if response.code == 200 or not total:
    part_file.truncate(0)
  if not total:
    raise ConnectionError('HTTP {} with Content-Length {} and Content-Range {}'.format(
        response.code, *map(response.headers.get, ('Content-Length', 'Content-Range'))))
  if size is not None and total != size:
    raise DownloadFailed('the server has a file of {:,} bytes instead of {:,}'.format(total, size))
  window_start, window_bytes = time.monotonic(), 0
  with show_progress(os.path.basename(part_file.name), total, partial_size(part_file)) as advance:
    while partial_size(part_file) < total:
      try:
        # `read` would wait for the whole chunk, and each received byte would restart the timeout.
        chunk = response.read1(min(_CHUNK_BYTES, total - partial_size(part_file)))
      except OSError as error:  # The caller would take an OSError for an error of the disk.
        raise ConnectionError(str(error)) from error
      if not chunk:  # http.client reports an interruption as the end of the body.
        raise ConnectionError('interrupted after {:,} of {:,} bytes'.format(
            partial_size(part_file), total))
      part_file.write(chunk)
      advance(len(chunk))
      window_bytes += len(chunk)
      window_secs = time.monotonic() - window_start
      if window_secs >= _SLOW_SECS:
        if window_bytes < _MIN_BYTES_PER_SEC * window_secs:
          raise ConnectionError('stalled: {:,} bytes in {:.0f} s'.format(window_bytes, window_secs))
        window_start, window_bytes = time.monotonic(), 0


def _send_request(url: str, offset: int, authorization: str) -> Any:
  """Requests the bytes of a file from `offset` on, and returns the response, even for an error.

  Raises:
    DownloadFailed: the URL, or a URL to which it redirects, is invalid.
  """
  import certifi  # This package is a dependency of kaggle.
  try:
    request = urllib.request.Request(url)
  except ValueError as error:
    raise DownloadFailed('an invalid URL: {}'.format(error)) from error
  if offset:
    request.add_header('Range', 'bytes={}-'.format(offset))
  if authorization:
    request.add_unredirected_header('Authorization', authorization)
  context = ssl.create_default_context()
  context.load_verify_locations(certifi.where())  # Adds to the certificates of the system.
  opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context),
                                       *[SecureHandler()] * bool(authorization))
  try:
    return opener.open(request, timeout=TIMEOUT_SECS)
  except urllib.error.HTTPError as error:
    return error
  except (ValueError, OverflowError) as error:  # The URL or its port cannot be parsed.
    raise DownloadFailed('an invalid URL or redirect: {}'.format(error)) from error


def _total_size(response: Any, offset: int, published_size: int) -> int:
  """Returns the size of the complete file in bytes, or 0 if the response cannot be used.

  Args:
    response: the response, which may be an error.
    offset: the position of the first requested byte.
    published_size: the published size in bytes; 0 if it is unknown. It is returned if a proxy that
      sends chunks omits Content-Length.

  Raises:
    DownloadFailed: a retry would not help.
  """
  header, pattern = _SIZE_PATTERNS.get(response.code, ('', ''))
  content_type = response.headers.get('Content-Type', '')
  if not header:
    raise DownloadFailed('HTTP {} {}'.format(response.code, getattr(response, 'reason', '')))
  # Instead of the file, a proxy may send a login page.
  if response.code == 200 and content_type.startswith(('text/', 'application/json')):
    raise DownloadFailed('received a page of type {} instead of the file'.format(content_type))
  if response.code == 200 and header not in response.headers:
    return published_size
  match = re.match(pattern.format(offset), response.headers.get(header, ''))
  return int(match.group(1)) if match else 0
