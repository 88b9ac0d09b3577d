"""Gets the archive of a Kaggle data set: one zip file.

The `kaggle` package signs in and knows the address. It does not transfer the file: release 1.7.4.5
reads a whole archive into memory and fails where it should resume; 1.6.17 writes under the final
name, takes an interrupted connection for the end of the file, and appends whatever the server
answers to the request to resume.
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

_THIS_MACHINE = ('localhost', '127.0.0.1', '::1')

SIGN_IN = ('create an API key at kaggle.com/settings, and put its kaggle.json into ~/.kaggle (or '
           'the folder KAGGLE_CONFIG_DIR), or set KAGGLE_USERNAME and KAGGLE_KEY')
_REMEDIES = {
    0: 'check the network and run it again; what is there already is kept',
    401: 'the key is wrong or expired: ' + SIGN_IN,
    403: 'look at kaggle.com/datasets/{} whether this user may download it (signed in, terms '
         'accepted, telephone verified), and check the key: ' + SIGN_IN,
    404: 'look at kaggle.com/datasets/{} whether it is still there',
    410: 'look at kaggle.com/datasets/{} whether it is still there'}


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


def fetch(dataset: str, path: str, needed: int) -> transfer.Fetched:
  """Makes sure that the archive of a data set is at `path`.

  One that is there is left alone, without a request; what is in it is for the unpacking to check.
  Several processes may call this at once.

  Args:
    dataset: OWNER/NAME on Kaggle.
    path: where the archive goes; its folder is made where it is missing.
    needed: bytes that the archive, and what comes out of it, will take on the disk.

  Raises:
    UserError: there are no credentials, the disk is too small, or the archive cannot be had.
  """
  return transfer.fetch(path, needed, os.path.exists,
                        lambda part: _complete(dataset, path, part))


def _complete(dataset: str, path: str, part: BinaryIO) -> None:
  access = _sign_in(dataset, path)
  LOG.info('downloading %s from Kaggle%s', dataset,
           ' (%d bytes are there)' % part.tell() if part.tell() else '')
  try:
    with access.session:
      transfer.receive(functools.partial(_request, access, dataset), part)
  except transfer.Rejected as error:
    given = '{} for the user {}'.format(error, access.user) if error.status else str(error)
    remedy = _REMEDIES.get(error.status, 'run it again later; what is there already is kept')
    raise UserError('cannot download {} from Kaggle'.format(dataset), given,
                    remedy.format(dataset)) from error


def _sign_in(dataset: str, path: str) -> _Access:
  """Reads the user's name and key, which appear in no message."""
  printed = io.StringIO()
  try:
    # Importing the package signs in, prints to standard output, and raises various exceptions
    # (older releases end the process).
    with contextlib.redirect_stdout(printed):
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
  if printed.getvalue().strip():
    LOG.warning('kaggle: %s', ' '.join(printed.getvalue().split()))
  session = transfer.new_session()
  session.auth = (str(user).encode(), str(key).encode())
  # The package has these two in kaggle.json.
  session.verify = config.get('ssl_ca_cert') or session.verify
  if config.get('proxy'):
    session.proxies = {'http': config['proxy'], 'https': config['proxy']}
  return _Access(session, url, str(user))


def _request(access: _Access, dataset: str, headers: Dict[str, str]) -> Any:
  url = '{}/datasets/download/{}'.format(access.url, dataset)
  _check_tls(url)

  def check_redirect(response: Any, **unused_options: Any) -> None:
    target = access.session.get_redirect_target(response)
    if target:
      _check_tls(urljoin(response.url, target))

  return transfer.get(access.session, url, headers, hooks={'response': check_redirect})


def _check_tls(url: str) -> None:
  """Raises a UserError where the key could be read, or the archive replaced, on the way."""
  address = urlsplit(url)
  if address.scheme != 'https' and address.hostname not in _THIS_MACHINE:
    raise UserError('Kaggle is asked over TLS alone',
                    '{}://{}'.format(address.scheme, address.hostname),
                    'check KAGGLE_API_ENDPOINT, and that this network leads to kaggle.com')
