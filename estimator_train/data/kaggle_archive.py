"""Downloads the zip archive of a Kaggle data set, and unpacks a folder of it.

The `kaggle` package provides only the credentials and the URL, because its download function is
unreliable. Release 1.7.4.5 reads the complete archive into memory and fails to resume. Release
1.6.17 writes to the final file name, and mistakes an interrupted connection for the end of the
file. Release 1.6.17 also resumes without checking which bytes the server sends.
"""

import contextlib
import errno
import io
import logging
import os
import re
import shutil
import stat
import struct
import zipfile
import zlib
from typing import Any, BinaryIO, Callable, List, Tuple
from urllib.parse import urljoin, urlsplit

from estimator_train.data import download
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

# Limits on the unpacked archive, against decompression bombs. The archive of oct2017, which is the
# largest, has about 170,000 files and 11 GB. MAX_RATIO limits the factor of the compression:
# photographs hardly compress, while zeros compress by a factor of 1,000 and more.
MAX_FILES = 1000 * 1000
MAX_BYTES = 1 << 36
MAX_RATIO = 100
# zipfile limits how much memory it takes to decompress these only.
_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
# Exceptions that zipfile raises for damaged or encrypted archives.
_DAMAGE_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError, struct.error)


def fetch_archive(dataset: str, path: str, needed_bytes: int) -> bool:
  """Downloads the archive of a data set unless it is present; returns whether it was downloaded.

  The content of the archive is checked only when it is unpacked. Several processes may call this
  function at the same time.

  Args:
    dataset: OWNER/NAME on Kaggle.
    path: the path of the archive; its folder is created if it does not exist.
    needed_bytes: the disk space for the archive and the files that are unpacked from it.

  Raises:
    UserError: there are no credentials, the disk is too small, or the archive cannot be downloaded.
  """
  return not os.path.exists(path) and download.fetch_file(
      path, needed_bytes, lambda part_file: _download_remainder(dataset, path, part_file))


def unpack_folder(archive: str, choose_prefix: Callable[[List[str]], str], target: str) -> None:
  """Unpacks one folder of a zip archive. No other process may use the target.

  The files are unpacked into a temporary folder, which is renamed when it is complete. They get the
  default permissions of the user. Hidden files, such as the metadata of macOS, are left out.

  Args:
    archive: the path of the archive.
    choose_prefix: takes the names of all members; returns the folder, with a trailing slash.
    target: the path of the unpacked folder, which must not exist.

  Raises:
    UserError: the archive is damaged, has a link or a path outside of its folder, exceeds
      MAX_FILES, MAX_BYTES or MAX_RATIO, or cannot be stored. Nothing is left.
  """
  # Hidden, so that file patterns do not match it if this process is killed.
  temporary = os.path.join(os.path.dirname(target), '.unpacking')
  try:
    with zipfile.ZipFile(archive) as zip_file:
      _check_members(zip_file.infolist(), archive)
      prefix = choose_prefix(zip_file.namelist())
      members = [member for member in zip_file.infolist() if member.filename.startswith(prefix)
                 and not member.filename.endswith('/') and '/.' not in member.filename]
      total = sum(member.file_size for member in members)
      shutil.rmtree(temporary, ignore_errors=True)
      download.check_free_space(os.path.dirname(target), total)
      with download.show_progress('unpacking', total) as advance:
        for member in members:
          # Reads at most member.file_size bytes, which are within the limits, and checks the CRC.
          zip_file.extract(member, temporary)
          advance(member.file_size)
      os.rename(os.path.join(temporary, prefix), target)
  except _DAMAGE_ERRORS as error:
    raise _damaged_error(archive, error) from error
  except OSError as error:
    if error.errno == errno.EINVAL and not error.filename:  # A wrong offset in a damaged archive.
      raise _damaged_error(archive, error) from error
    raise UserError('cannot unpack ' + archive,
                    '{}: {}'.format(error.filename or target, error.strerror or error),
                    'choose a writable --data_dir with more free space') from error
  finally:
    shutil.rmtree(temporary, ignore_errors=True)


def _damaged_error(archive: str, error: Exception) -> UserError:
  return UserError('an archive is damaged, or not a zip file', '{} ({})'.format(archive, error),
                   'remove it and download it again with --mode=download')


def _check_members(members: List[zipfile.ZipInfo], archive: str) -> None:
  """Raises a UserError if an archive exceeds the limits or has an unsafe member."""
  packed_bytes, unpacked_bytes = os.path.getsize(archive), sum(info.file_size for info in members)
  if (len(members) > MAX_FILES or unpacked_bytes > MAX_BYTES
      or unpacked_bytes > MAX_RATIO * packed_bytes):
    raise UserError('an archive would unpack to more than the allowed size',
                    '{} ({:,} files and {:,} bytes from {:,} packed bytes)'.format(
                        archive, len(members), unpacked_bytes, packed_bytes),
                    'download it from its publisher again')
  for member in members:
    # zipfile truncates filename at a null character, but not orig_filename. Backslashes and drive
    # letters are special on Windows only, but trustworthy archives do not contain them.
    name = member.orig_filename
    if (re.match('/|[A-Za-z]:', name) or '\\' in name or '\0' in name or '..' in name.split('/')
        or stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR)
        or member.compress_type not in _COMPRESSIONS):
      raise UserError('an archive must have ordinary files in its folder only',
                      '{} ({!r})'.format(archive, name), 'download it from its publisher again')


def _download_remainder(dataset: str, path: str, part_file: BinaryIO) -> None:
  """Signs in, and appends the missing bytes to the partial file of the archive."""
  session, url = _sign_in(dataset, path)
  size = download.partial_size(part_file)
  LOG.info('downloading %s from Kaggle%s', dataset,
           ', resuming after %d bytes' % size if size else '')
  try:
    with session:
      download.receive_file(session, url, part_file)
  except download.DownloadFailed as error:
    user = session.auth[0].decode()
    reason = '{} for the user {}'.format(error, user) if error.status else str(error)
    remedy = _REMEDIES_BY_STATUS.get(error.status, 'try again later; the download resumes')
    raise UserError('cannot download {} from Kaggle'.format(dataset), reason,
                    remedy.format(dataset)) from error


def _sign_in(dataset: str, path: str) -> Tuple[Any, str]:
  """Returns a requests.Session with the credentials of the user, and the URL of the archive.

  Logs and errors must not contain the key.
  """
  printed = io.StringIO()
  try:
    # Importing kaggle signs in, prints to standard output, and raises various exceptions. Older
    # releases raise SystemExit to end the process.
    with contextlib.redirect_stdout(printed):
      import kaggle
      from kaggle.configuration import Configuration
    config = kaggle.api.config_values
    credentials = tuple(str(config[name]).encode() for name in ('username', 'key'))
    url = '{}/datasets/download/{}'.format(Configuration().host, dataset)
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
  _check_tls(url)
  session = download.new_session()
  session.auth = credentials
  # Apply the settings ssl_ca_cert and proxy, which the user may have stored in kaggle.json.
  session.verify = config.get('ssl_ca_cert') or session.verify
  if config.get('proxy'):
    session.proxies = {'http': config['proxy'], 'https': config['proxy']}

  def check_redirect(response: Any, **unused_options: Any) -> None:
    redirect = session.get_redirect_target(response)
    if redirect:
      _check_tls(urljoin(response.url, redirect))

  session.hooks['response'].append(check_redirect)
  return session, url


def _check_tls(url: str) -> None:
  """Raises a UserError if a request to the URL would not protect the key and the archive."""
  address = urlsplit(url)
  if address.scheme != 'https' and address.hostname not in _LOCAL_HOSTS:
    raise UserError('requests to Kaggle must use TLS',
                    '{}://{}'.format(address.scheme, address.hostname),
                    'check KAGGLE_API_ENDPOINT, and that the network does not redirect kaggle.com')
