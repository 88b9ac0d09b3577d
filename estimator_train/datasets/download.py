"""Downloads the published files of a data set and verifies their checksums."""

import functools
import hashlib
import logging
import os
from typing import BinaryIO, List, Sequence

from estimator_train.datasets import transfer
from estimator_train.datasets.description import DataFile
from estimator_train.errors import UserError

LOG = logging.getLogger('estimator_train')


def download_files(files: Sequence[DataFile], data_dir: str) -> List[transfer.DownloadResult]:
  """Downloads the missing files to `data_dir`.

  Returns the path and size of every file, and whether it was downloaded. `data_dir` is created if
  it does not exist. No request is sent for a file that is present. Several processes may call this
  function at once.

  Raises:
    UserError: a file cannot be downloaded or stored, or an existing file is not the published one.
  """
  # Check existing files first, so that a wrong file is reported before a long download.
  are_present = [_verify_if_present(file, os.path.join(data_dir, file.name)) for file in files]
  return [transfer.DownloadResult(file.name, file.size, downloaded=False) if is_present
          else transfer.fetch_file(os.path.join(data_dir, file.name), file.size,
                                   functools.partial(_verify_if_present, file),
                                   functools.partial(_download_remainder, file))
          for file, is_present in zip(files, are_present)]


def _verify_if_present(file: DataFile, path: str) -> bool:
  """Returns whether there is a file at `path`; raises a UserError if its content is wrong."""
  if not os.path.exists(path):
    return False
  size = os.path.getsize(path)
  if size != file.size:
    raise UserError('a data file has the wrong size',
                    '{} ({} bytes instead of {})'.format(path, size, file.size),
                    'remove it and run --mode=download again')
  md5 = _md5(path)
  if md5 != file.md5:
    raise UserError('a data file is damaged',
                    '{} (md5 {} instead of {})'.format(path, md5, file.md5),
                    'remove it and run --mode=download again')
  return True


def _download_remainder(file: DataFile, part_file: BinaryIO) -> None:
  """Completes a partial file from the first URL that serves the published file."""
  LOG.info('downloading %s (%d bytes)', file.name, file.size)
  failures = []
  for url in file.urls:
    try:
      _download_from(url, file, part_file)
      return
    except transfer.DownloadFailed as error:
      failures.append('{} ({})'.format(url, error))
  remedy = 'try again, or copy the file {} ({} bytes, md5 {}) to {}'.format(
      file.name, file.size, file.md5, os.path.dirname(part_file.name))
  raise UserError('cannot download {}'.format(file.name), ', '.join(failures), remedy)


def _download_from(url: str, file: DataFile, part_file: BinaryIO) -> None:
  """Downloads the missing bytes of a partial file from a URL, and verifies the MD5 checksum."""
  # The partial file may contain wrong bytes of an earlier run or of another URL. The first attempt
  # keeps these bytes; the second attempt downloads the complete file.
  for _ in range(2 if transfer.partial_size(part_file) else 1):
    with transfer.new_session() as session:
      transfer.receive_file(
          lambda headers: transfer.send_request(session, url, headers), part_file, file.size)
    part_file.flush()
    md5 = _md5(part_file.name)  # Also detects a partial file that is longer than the published one.
    if md5 == file.md5:
      return
    transfer.discard_contents(part_file)
  raise transfer.DownloadFailed('wrong md5 {}'.format(md5))


def _md5(path: str) -> str:
  """Returns the MD5 checksum of a file, as 32 hexadecimal digits."""
  digest = hashlib.md5()
  with open(path, 'rb') as file:
    for chunk in iter(lambda: file.read(1 << 16), b''):
      digest.update(chunk)
  return digest.hexdigest()
