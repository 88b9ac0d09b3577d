"""Downloads the zip archive of a Kaggle data set.

The `kaggle` package provides only the credentials and the URL, because its download function is
unreliable. Release 1.7.4.5 reads the complete archive into memory and fails to resume. Release
1.6.17 writes to the final file name, and mistakes an interrupted connection for the end of the
file. Release 1.6.17 also resumes without checking which bytes the server sends.
"""

import contextlib
import functools
import io
import logging
import os
from typing import Any, BinaryIO, Dict, NamedTuple
from urllib.parse import urljoin, urlsplit

from estimator_train.datasets import transfer
from estimator_train.errors import UserError

LOG = logging.getLogger('estimator_train')

_LOCAL_HOSTS = ('localhost', '127.0.0.1', '::1')

SIGN_IN_REMEDY = (
    'create an API key at kaggle.com/settings, and put its kaggle.json into ~/.kaggle (or the '
    'folder KAGGLE_CONFIG_DIR), or set KAGGLE_USERNAME and KAGGLE_KEY')
_REMEDIES_BY_STATUS = {
    0: 'check the network and try again; the download resumes',  # Not an HTTP error.
    401: 'the key is wrong or expired: ' + SIGN_IN_REMEDY,
    403: 'check at kaggle.com/datasets/{} that this user may download it (signed in, terms '
         'accepted, telephone verified), and check the key: ' + SIGN_IN_REMEDY,
    404: 'check that kaggle.com/datasets/{} still exists',
    410: 'check that kaggle.com/datasets/{} still exists'}


class _KaggleAccess(NamedTuple):
  """Access to Kaggle's API.

  Attributes:
    session: a requests.Session with the user name and the API key.
    url: the base URL of the API.
    user: the user name.
  """
  session: Any
  url: str
  user: str


def fetch_archive(dataset: str, path: str, needed_bytes: int) -> transfer.DownloadResult:
  """Downloads the archive of a data set unless it is present.

  No request is sent if the archive is present. The content of the archive is checked only when it
  is unpacked. Several processes may call this function at the same time.

  Args:
    dataset: OWNER/NAME on Kaggle.
    path: the path of the archive; its folder is created if it does not exist.
    needed_bytes: the disk space for the archive and the files that are unpacked from it.

  Returns:
    The name and size of the archive, and whether it was downloaded now.

  Raises:
    UserError: there are no credentials, the disk is too small, or the archive cannot be downloaded.
  """
  return transfer.fetch_file(path, needed_bytes, os.path.exists,
                             lambda part_file: _download_remainder(dataset, path, part_file))


def _download_remainder(dataset: str, path: str, part_file: BinaryIO) -> None:
  """Signs in, and appends the missing bytes to the partial file of the archive."""
  access = _sign_in(dataset, path)
  size = transfer.partial_size(part_file)
  LOG.info('downloading %s from Kaggle%s', dataset,
           ', resuming after %d bytes' % size if size else '')
  try:
    with access.session:
      transfer.receive_file(functools.partial(_send_request, access, dataset), part_file)
  except transfer.DownloadFailed as error:
    reason = '{} for the user {}'.format(error, access.user) if error.status else str(error)
    remedy = _REMEDIES_BY_STATUS.get(error.status, 'try again later; the download resumes')
    raise UserError('cannot download {} from Kaggle'.format(dataset), reason,
                    remedy.format(dataset)) from error


def _sign_in(dataset: str, path: str) -> _KaggleAccess:
  """Returns access with the credentials of the user. Logs and errors must not contain the key."""
  printed = io.StringIO()
  try:
    # Importing kaggle signs in, prints to standard output, and raises various exceptions. Older
    # releases raise SystemExit to end the process.
    with contextlib.redirect_stdout(printed):
      import kaggle
      from kaggle.configuration import Configuration
    config: Dict[str, str] = kaggle.api.config_values
    user, key = config['username'], config['key']
    url = Configuration().host
  except (OSError, ValueError, KeyError, SystemExit) as error:
    if isinstance(error, OSError) and error.errno:
      raise UserError('the kaggle package cannot read or create its folder',
                      '{}: {}'.format(error.filename, error.strerror),
                      'set KAGGLE_CONFIG_DIR to a writable folder') from error
    raise UserError('Kaggle requires credentials',
                    'no KAGGLE_USERNAME and KAGGLE_KEY, and no kaggle.json with both',
                    '{}; or download the archive of kaggle.com/datasets/{} to {}'.format(
                        SIGN_IN_REMEDY, dataset, path)) from error
  if printed.getvalue().strip():
    LOG.warning('kaggle: %s', ' '.join(printed.getvalue().split()))
  session = transfer.new_session()
  session.auth = (str(user).encode(), str(key).encode())
  # Apply the settings ssl_ca_cert and proxy, which the user may have stored in kaggle.json.
  session.verify = config.get('ssl_ca_cert') or session.verify
  if config.get('proxy'):
    session.proxies = {'http': config['proxy'], 'https': config['proxy']}
  return _KaggleAccess(session, url, str(user))


def _send_request(access: _KaggleAccess, dataset: str, headers: Dict[str, str]) -> Any:
  """Requests the archive and returns the response; raises a UserError for a URL without TLS."""
  url = '{}/datasets/download/{}'.format(access.url, dataset)
  _check_tls(url)

  def check_redirect(response: Any, **unused_options: Any) -> None:
    target = access.session.get_redirect_target(response)
    if target:
      _check_tls(urljoin(response.url, target))

  return transfer.send_request(access.session, url, headers, hooks={'response': check_redirect})


def _check_tls(url: str) -> None:
  """Raises a UserError if a request to the URL would not protect the key and the archive."""
  address = urlsplit(url)
  if address.scheme != 'https' and address.hostname not in _LOCAL_HOSTS:
    raise UserError('requests to Kaggle must use TLS',
                    '{}://{}'.format(address.scheme, address.hostname),
                    'check KAGGLE_API_ENDPOINT, and that the network does not redirect kaggle.com')
