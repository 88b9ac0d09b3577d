"""Gets the published files of a data set, which are compared with their checksums before use."""

import functools
import hashlib
import logging
import os
from typing import BinaryIO, List, Sequence

from estimator_train.datasets import transfer
from estimator_train.datasets.description import DataFile
from estimator_train.errors import UserError

LOG = logging.getLogger('estimator_train')


def fetch(files: Sequence[DataFile], data_dir: str) -> List[transfer.Fetched]:
  """Makes sure that all files are in `data_dir`, which is made where it is missing.

  A file that is there, whole, is left alone, without a request. Several processes may call this at
  once.

  Raises:
    UserError: a file cannot be had or stored, or another has its name.
  """
  # All of them first: a wrong file should not come to light after minutes of downloading.
  for file in files:
    _is_there(file, os.path.join(data_dir, file.name))
  return [transfer.fetch(os.path.join(data_dir, file.name), file.size,
                         functools.partial(_is_there, file), functools.partial(_complete, file))
          for file in files]


def _is_there(file: DataFile, path: str) -> bool:
  """Whether the file has its final name; raises UserError where it is another or damaged."""
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


def _complete(file: DataFile, part: BinaryIO) -> None:
  """Appends to a part what it lacks, from the first address that gives the right file."""
  LOG.info('downloading %s (%d bytes)', file.name, file.size)
  reasons = []
  for url in file.urls:
    try:
      _download(url, file, part)
      return
    except transfer.Rejected as error:
      reasons.append('{} ({})'.format(url, error))
  remedy = 'try again, or put the file {} ({} bytes, md5 {}) into {}'.format(
      file.name, file.size, file.md5, os.path.dirname(part.name))
  raise UserError('cannot download {}'.format(file.name), ', '.join(reasons), remedy)


def _download(url: str, file: DataFile, part: BinaryIO) -> None:
  # If the bytes of an earlier run or of another address are wrong, this address is not to blame.
  for _ in range(2 if part.tell() else 1):
    with transfer.new_session() as session:
      transfer.receive(lambda headers: transfer.get(session, url, headers), part, file.size)
    part.flush()
    md5 = _md5(part.name)  # A part longer than the file fails this, and starts over too.
    if md5 == file.md5:
      return
    transfer.start_over(part)
  raise transfer.Rejected('wrong md5 {}'.format(md5))


def _md5(path: str) -> str:
  digest = hashlib.md5()
  with open(path, 'rb') as file:
    for chunk in iter(lambda: file.read(1 << 16), b''):
      digest.update(chunk)
  return digest.hexdigest()
