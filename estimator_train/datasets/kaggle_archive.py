"""Gets the archive of a Kaggle data set: one zip file, resumed where it was cut.

The `kaggle` package signs in and knows the address. The transfer is done here, by the HTTP client
that the package itself uses: release 1.7.4.5 reads a whole archive into memory and fails where it
should resume; 1.6.17 writes under the final name, takes a cut connection for the end of the file,
and appends whatever the server answers to the request to resume.
"""

import contextlib
import io
import logging
import os
import time
from typing import Any, BinaryIO, Dict, NamedTuple
from urllib.parse import urljoin, urlsplit

from estimator_train.datasets.download import Fetched, start_over
from estimator_train.datasets.unpack import check_space, show_progress
from estimator_train.errors import UserError
from estimator_train.files.atomic import open_locked

LOG = logging.getLogger('estimator_train')

# For the connection and for each read; a server that is silent for longer counts as cut.
TIMEOUT_SECS = 30.
# In a row. One that brought as many bytes as WORTH_BYTES is no failure: the archives are large.
ATTEMPTS = 5
WORTH_BYTES = 1 << 24
# What a cut costs at most: urllib3 2 yields whole chunks, and drops the one that is cut.
CHUNK_BYTES = 1 << 16
_THIS_MACHINE = ('localhost', '127.0.0.1', '::1')

SIGN_IN = ('create an API key at kaggle.com/settings, and put its kaggle.json into ~/.kaggle (or '
           'the folder KAGGLE_CONFIG_DIR), or set KAGGLE_USERNAME and KAGGLE_KEY')


class _Access(NamedTuple):
  """What a request needs.

  Attributes:
    session: a requests.Session with the user's name and key.
    url: where Kaggle's interface begins.
    user: the user's name.
  """
  session: Any
  url: str
  user: str


class _Cut(Exception):
  """The connection broke, or the part cannot be continued; it may do next time."""


def fetch(dataset: str, path: str, needed: int) -> Fetched:
  """Makes sure that the archive of a data set is at `path`.

  One that is there is left alone, without a request. Any other is written to `path`.part, and gets
  its name when it is as long as the server says; what is in it is for the unpacking to check. What
  an interrupted call leaves in the part is resumed by the next. Several processes may call this at
  once.

  Args:
    dataset: OWNER/NAME on Kaggle.
    path: where the archive goes; its folder is made where it is missing.
    needed: bytes that the archive, and what comes out of it, will take on the disk.

  Raises:
    UserError: there are no credentials, the disk is too small, or the archive cannot be had.
  """
  name, folder = os.path.basename(path), os.path.dirname(path) or '.'
  if os.path.exists(path):
    return Fetched(name, os.path.getsize(path), False)
  access = _sign_in(dataset, path)
  try:
    os.makedirs(folder, exist_ok=True)
    with open_locked(path + '.part') as part:
      if os.path.exists(path):  # Another process was faster.
        os.remove(part.name)
        return Fetched(name, os.path.getsize(path), False)
      try:
        check_space(folder, needed - part.tell())
        _download(access, dataset, part)
      except BaseException:
        if not part.tell():
          os.remove(part.name)
        raise
      os.fsync(part.fileno())
      os.replace(part.name, path)
      return Fetched(name, part.tell(), True)
  except OSError as error:
    raise UserError('cannot store the data set',
                    '{}: {}'.format(error.filename or folder, error.strerror or error),
                    'choose a --data_dir that can be written and has {:,} bytes free'.format(
                        needed)) from error


def _sign_in(dataset: str, path: str) -> _Access:
  """Reads the user's name and key, which appear in no message."""
  said = io.StringIO()
  try:
    # Importing the package signs in, prints to standard output, and raises various exceptions
    # (older releases end the process).
    with contextlib.redirect_stdout(said):
      import kaggle
      from kaggle.configuration import Configuration
    config: Dict[str, str] = kaggle.api.config_values
    user, key = config['username'], config['key']
    url = Configuration().host
  except (OSError, ValueError, KeyError, SystemExit) as error:
    if isinstance(error, OSError) and error.errno:
      raise UserError('the kaggle package cannot read or make its folder',
                      '{}: {}'.format(error.filename, error.strerror),
                      'set KAGGLE_CONFIG_DIR to a folder that can be written') from error
    raise UserError('Kaggle asks for credentials',
                    'no KAGGLE_USERNAME and KAGGLE_KEY, and no kaggle.json that has both',
                    '{}; or get the archive of kaggle.com/datasets/{} yourself, as {}'.format(
                        SIGN_IN, dataset, path)) from error
  if said.getvalue().strip():
    LOG.warning('kaggle: %s', ' '.join(said.getvalue().split()))
  import requests
  session = requests.Session()
  session.auth = (str(user).encode(), str(key).encode())
  # The package has these two in kaggle.json as well. The variables are those that requests looks
  # at itself, but it takes an empty one, up to 2.27, for a wish to verify nothing.
  session.verify = (config.get('ssl_ca_cert') or os.environ.get('REQUESTS_CA_BUNDLE')
                    or os.environ.get('CURL_CA_BUNDLE') or requests.certs.where())
  if config.get('proxy'):
    session.proxies = {'http': config['proxy'], 'https': config['proxy']}
  return _Access(session, url, str(user))


def _download(access: _Access, dataset: str, part: BinaryIO) -> None:
  """Completes `part`; tries again where it was cut."""
  started, failures = time.monotonic(), 0
  LOG.info('downloading %s from Kaggle%s', dataset,
           ' (%d bytes are there)' % part.tell() if part.tell() else '')
  with access.session:
    while True:
      start = part.tell()
      try:
        _receive(access, dataset, part)
        break
      except _Cut as error:
        failures = 1 if part.tell() - start >= WORTH_BYTES else failures + 1
        if failures == ATTEMPTS:
          part.flush()
          raise _failed(dataset, '{}, tried {} times'.format(error, ATTEMPTS),
                        'check the network and run it again; it goes on after {:,} bytes'.format(
                            part.tell())) from error
        LOG.info('trying again: %s', error)
  part.flush()
  LOG.info('downloaded %s (%d bytes) in %.1f s', os.path.basename(part.name)[:-len('.part')],
           part.tell(), time.monotonic() - started)


def _receive(access: _Access, dataset: str, part: BinaryIO) -> None:
  """Sends one request, and appends what it yields to `part`; raises _Cut when that is not all."""
  start = part.tell()
  with _request(access, dataset, start) as response:
    status = response.status_code
    if status == 416 and start and response.headers.get('Content-Range') == _range('*', start):
      return  # Ended between the last byte and the final name.
    _check_answer(access, dataset, response)
    total = _total(response, start)
    if status != 206 or not total:  # All of it came, or nothing to continue with.
      start_over(part)
    if not total:
      raise _Cut('HTTP {} with Content-Length {} and Content-Range {}'.format(
          status, *map(response.headers.get, ('Content-Length', 'Content-Range'))))
    _append(response, part, total)


def _request(access: _Access, dataset: str, start: int) -> Any:
  from requests import RequestException
  headers = {'Accept-Encoding': 'identity'}
  if start:
    headers['Range'] = 'bytes={}-'.format(start)
  url = '{}/datasets/download/{}'.format(access.url, dataset)
  _check_tls(url)

  def check_redirect(response: Any, **unused_options: Any) -> None:
    target = access.session.get_redirect_target(response)
    if target:
      _check_tls(urljoin(response.url, target))

  try:
    return access.session.get(url, headers=headers, stream=True, timeout=TIMEOUT_SECS,
                              verify=access.session.verify, hooks={'response': check_redirect})
  except RequestException as error:
    raise _Cut(_reason(error)) from error


def _check_tls(url: str) -> None:
  """Raises a UserError where the key could be read, or the archive replaced, on the way."""
  address = urlsplit(url)
  if address.scheme != 'https' and address.hostname not in _THIS_MACHINE:
    raise UserError('Kaggle is asked over TLS alone',
                    '{}://{}'.format(address.scheme, address.hostname),
                    'check KAGGLE_API_ENDPOINT, and that this network leads to kaggle.com')


def _append(response: Any, part: BinaryIO, total: int) -> None:
  from requests import RequestException
  with show_progress(os.path.basename(part.name), total, part.tell()) as advance:
    chunks = response.iter_content(CHUNK_BYTES)
    while True:
      # Writing stays outside of the try: a full disk is no matter of the connection.
      try:
        chunk = next(chunks, b'')
      except RequestException as error:
        raise _Cut(_reason(error)) from error
      if not chunk:
        break
      part.write(chunk)
      advance(len(chunk))
  if part.tell() != total:  # With urllib3 1, a cut looks like the end.
    raise _Cut('cut after {:,} of {:,} bytes'.format(part.tell(), total))


def _total(response: Any, start: int) -> int:
  """Returns the length of the whole archive; 0 when the answer is of no use."""
  given = response.headers.get('Content-Range', '')
  if response.status_code == 200:
    total = response.headers.get('Content-Length', '')
  else:
    total = given.split('/')[-1]
  if not total.isdigit():
    return 0
  continues = given == _range('{}-{}'.format(start, int(total) - 1), int(total))
  return int(total) if response.status_code == 200 or continues else 0


def _range(part: str, total: int) -> str:
  return 'bytes {}/{}'.format(part, total)


def _check_answer(access: _Access, dataset: str, response: Any) -> None:
  """Raises a UserError when another request would not help."""
  if response.status_code not in (200, 206, 416):
    raise _refused(access, dataset, response)
  kind = response.headers.get('Content-Type', '')
  if response.status_code == 200 and kind.startswith(('text/', 'application/json')):
    # Of a proxy that asks to log in, say; not worth the bytes that are here already.
    raise _failed(dataset, 'a page of the type {} came instead'.format(kind),
                  'check that this network lets downloads through')


def _refused(access: _Access, dataset: str, response: Any) -> UserError:
  status = response.status_code
  given = 'HTTP {} {} for the user {}'.format(status, response.reason, access.user)
  if status == 401:
    return _failed(dataset, given, 'the key is wrong or expired: ' + SIGN_IN)
  if status == 403:
    return _failed(dataset, given, 'look at kaggle.com/datasets/{} whether this user may download '
                   'it (signed in, terms accepted, telephone verified), and check the key: {}'
                   .format(dataset, SIGN_IN))
  if status in (404, 410):
    return _failed(dataset, given, 'look at kaggle.com/datasets/{} whether it is still there'
                   .format(dataset))
  return _failed(dataset, given, 'run it again later; what is there already is kept')


def _failed(dataset: str, given: str, remedy: str) -> UserError:
  return UserError('cannot download {} from Kaggle'.format(dataset), given, remedy)


def _reason(error: BaseException) -> str:
  """Returns the first cause: the texts on top of it have addresses that let others download."""
  from requests import RequestException
  while error.__context__ is not None:
    error = error.__context__
  if isinstance(error, OSError) and not isinstance(error, RequestException):
    return str(error)
  return type(error).__name__
