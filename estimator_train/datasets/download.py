"""Gets the published files of a data set: resumed where it was cut, and checked before use."""

import hashlib
import http.client
import logging
import os
import time
from typing import Any, BinaryIO, List, NamedTuple, Sequence
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from estimator_train.datasets.description import DataFile
from estimator_train.errors import UserError
from estimator_train.files.atomic import open_locked

LOG = logging.getLogger('estimator_train')

# For the connection and for each read; a server that is silent for longer counts as cut.
TIMEOUT_SECS = 30.
# Of one address for one file. Each goes on where the last was cut, and the next address does too.
ATTEMPTS = 5
CHUNK_BYTES = 1 << 16


class Fetched(NamedTuple):
  """What became of a file: `downloaded` is False where it was there."""
  name: str
  size: int
  downloaded: bool


class _Refused(Exception):
  """The address does not give the file; the next may."""


class _Cut(Exception):
  """The connection broke, or the part cannot be continued; the same address may do next time."""


def fetch(files: Sequence[DataFile], data_dir: str) -> List[Fetched]:
  """Makes sure that all files are in `data_dir`, which is made where it is missing.

  A file that is there, whole, is left alone, without a request. Any other is written to
  `NAME.part`, and gets its name when its size and MD5 are right. What an interrupted call leaves in
  `NAME.part` is resumed by the next. Several processes may call this at once.

  Raises:
    UserError: a file cannot be had or stored, or another has its name.
  """
  missing = list(files)
  try:
    os.makedirs(data_dir, exist_ok=True)
    # All of them first: a wrong file should not come to light after minutes of downloading.
    missing = [file for file in files if not _is_there(file, data_dir)]
    downloaded = {file.name for file in missing if _fetch_file(file, data_dir)}
  except OSError as error:
    remedy = 'choose a --data_dir that can be written and has {} bytes free'.format(
        sum(file.size for file in missing))
    given = '{}: {}'.format(error.filename or data_dir, error.strerror or error)
    raise UserError('cannot store the data set', given, remedy) from error
  return [Fetched(file.name, file.size, file.name in downloaded) for file in files]


def _is_there(file: DataFile, data_dir: str) -> bool:
  """Whether the file has its final name; raises UserError where it is another or damaged."""
  path = os.path.join(data_dir, file.name)
  if not os.path.exists(path):
    return False
  size = os.path.getsize(path)
  if size != file.size:
    raise UserError('a data file has the wrong size',
                    '{} ({} bytes, published are {})'.format(path, size, file.size),
                    'remove it and run --mode=download again')
  md5 = _md5(path)
  if md5 != file.md5:
    raise UserError('a data file is damaged',
                    '{} (md5 {}, published is {})'.format(path, md5, file.md5),
                    'remove it and run --mode=download again')
  return True


def _fetch_file(file: DataFile, data_dir: str) -> bool:
  """Downloads a file; returns False where another process did so meanwhile."""
  from tqdm import tqdm  # Only where it is needed: the program's start should be fast.
  path, reasons = os.path.join(data_dir, file.name), []
  with open_locked(path + '.part') as part:
    if _is_there(file, data_dir):
      os.remove(part.name)
      return False
    # disable=None: no bar where standard error is not a terminal; there, two plain lines.
    with tqdm(total=file.size, unit='B', unit_scale=True, desc=file.name, disable=None) as bar:
      say = LOG.info if bar.disable else LOG.debug
      say('downloading %s (%d bytes)', file.name, file.size)
      started = time.monotonic()
      for url in file.urls:
        try:
          _download(url, file, part, bar)
        except _Refused as error:
          reasons.append('{} ({})'.format(url, error))
          continue
        os.fsync(part.fileno())
        os.replace(part.name, path)
        say('downloaded %s (%d bytes) in %.1f s', file.name, file.size, time.monotonic() - started)
        return True
    if not part.tell():
      os.remove(part.name)
  remedy = 'try again, or put the file {} ({} bytes, md5 {}) into {}'.format(
      file.name, file.size, file.md5, data_dir)
  raise UserError('cannot download {}'.format(file.name), ', '.join(reasons), remedy)


def _download(url: str, file: DataFile, part: BinaryIO, bar: Any) -> None:
  """Completes `part` from one address; raises _Refused where that does not give the right file."""
  # Bytes of an earlier run or of another address: if they are wrong, this address is not to blame.
  inherited = part.tell() > 0
  reason = ''
  for _ in range(ATTEMPTS):
    try:
      if part.tell() < file.size:
        _receive(url, file, part, bar)
    except _Cut as error:
      reason = str(error)
      continue
    part.flush()
    md5 = _md5(part.name)  # A part longer than the file fails this, and starts over too.
    if md5 == file.md5:
      return
    start_over(part)
    reason = 'wrong md5 {}'.format(md5)
    if not inherited:
      raise _Refused(reason)
    inherited = False
  raise _Refused('{}, tried {} times'.format(reason, ATTEMPTS))


def _receive(url: str, file: DataFile, part: BinaryIO, bar: Any) -> None:
  """Sends one request, and appends what it yields until `part` has the published size."""
  start = part.tell()
  headers = {'Range': 'bytes={}-'.format(start)} if start else {}
  try:
    response = urlopen(Request(url, headers=headers), timeout=TIMEOUT_SECS)
  except HTTPError as error:
    response = error  # It is an answer as well.
  except URLError as error:
    raise _Refused(str(error.reason)) from error
  except (OSError, http.client.HTTPException) as error:
    raise _Cut(str(error) or type(error).__name__) from error
  with response:
    status = response.getcode()
    if status == 200:
      # The whole file, asked for or because the server knows no ranges. Another length is another
      # page (a log-in page, say), not worth the bytes that are here already.
      length = response.headers.get('Content-Length')
      if length not in (None, str(file.size)):
        raise _Refused('sends {} bytes'.format(length))
      start_over(part)
    elif status in (206, 416):
      given = response.headers.get('Content-Range')
      if given != 'bytes {}-{}/{}'.format(start, file.size - 1, file.size):
        start_over(part)
        raise _Cut('HTTP {} with Content-Range {}'.format(status, given))
    else:
      raise _Refused('HTTP {} {}'.format(status, response.reason))
    bar.reset()
    bar.n = bar.initial = part.tell()
    while part.tell() < file.size:
      # Writing stays outside of the try: a full disk is no matter of the connection.
      try:
        chunk = response.read(min(CHUNK_BYTES, file.size - part.tell()))
      except (OSError, http.client.HTTPException) as error:
        raise _Cut(str(error) or type(error).__name__) from error
      if not chunk:
        raise _Cut('cut after {} of {} bytes'.format(part.tell(), file.size))
      part.write(chunk)
      bar.update(len(chunk))


def start_over(part: BinaryIO) -> None:
  """Empties a file that is half-written."""
  part.seek(0)
  part.truncate()


def _md5(path: str) -> str:
  digest = hashlib.md5()
  with open(path, 'rb') as file:
    for chunk in iter(lambda: file.read(CHUNK_BYTES), b''):
      digest.update(chunk)
  return digest.hexdigest()
