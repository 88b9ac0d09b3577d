"""Unpacks a zip archive into a folder; the archive may be damaged, hostile, or half unpacked."""

import collections
import contextlib
import errno
import logging
import lzma
import os
import re
import shutil
import stat
import struct
import zipfile
import zlib
from typing import Dict, List, NamedTuple, Sequence, Set

from estimator_train.datasets.transfer import check_space, show_progress
from estimator_train.errors import UserError

LOG = logging.getLogger('estimator_train')

# An archive that would unpack to more is refused: the largest data set here is some 170,000 files
# and 11 GB (with its second copy), and photographs hardly get smaller in an archive. A bomb of
# zeros, on the other hand, shrinks to a thousandth and less.
MAX_FILES = 1000 * 1000
MAX_BYTES = 1 << 36
MAX_RATIO = 100
CHUNK_BYTES = 1 << 20

# What a Mac adds to folders and archives.
CLUTTER = ('__MACOSX', '.DS_Store')
CLUTTER_PREFIX = '._'
# In the folder of the file that is being written. Hidden, so that no file pattern takes it; the
# same in each run, so that the next overwrites what a killed one left.
ASIDE = '.unpacking'

# What zipfile raises for bytes that make no sense, for encryption and for unknown methods.
_DAMAGES = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError, ValueError,
            struct.error)


class Unpacked(NamedTuple):
  """How many members were written, were there already, and were left out."""
  written: int
  present: int
  skipped: int


def unpack(archive: str, folder: str, second_copy: str = '') -> Unpacked:
  """Unpacks the files of a zip archive below `folder`, one process at a time.

  Each file is written aside and gets its name when its CRC-32 is right. One that is there with the
  size and the CRC-32 of the archive is not written again, so that an interrupted call can be
  repeated; reading a file costs less than inflating and writing it.

  Links, devices, the clutter of Macs and empty folders are left out, and so are later files of a
  name that differs from an earlier one in nothing but case: not every file system holds both. The
  access rights are those that the user gives new files, whatever the archive says.

  Args:
    archive: path of the archive.
    folder: where its files go; it is made where it is missing.
    second_copy: a folder of the archive, with a slash at the end. A file below it is left out when
      the archive has the same (path, size, CRC-32) outside of it.

  Raises:
    UserError: the archive is damaged, has a member that would leave the folder or would unpack to
      more than the bounds above, or it cannot be stored. In the first case, the files before the
      damage are there; in the second and third, nothing is.
  """
  needed = 0
  try:
    with zipfile.ZipFile(archive) as opened:
      _check_bounds(opened, archive)
      members = _choose(opened, archive, second_copy)
      os.makedirs(folder, exist_ok=True)
      needed = sum(info.file_size for info in members
                   if not _has_size(_path(folder, info), info.file_size))
      check_space(folder, needed)
      written = _write_all(opened, members, folder)
      return Unpacked(written, len(members) - written, len(opened.infolist()) - len(members))
  except _DAMAGES as error:
    raise _damaged(archive, error) from error
  except OSError as error:
    # Without a number: of bz2. EINVAL: a place before the archive's begin.
    if error.errno in (None, errno.EINVAL) and not error.filename:
      raise _damaged(archive, error) from error
    raise UserError('cannot unpack ' + archive,
                    '{}: {}'.format(error.filename or folder, error.strerror or error),
                    'choose a folder that can be written and has {:,} bytes free'.format(
                        needed)) from error


def _damaged(archive: str, error: Exception) -> UserError:
  return UserError('an archive is damaged, or not a zip file', '{} ({})'.format(archive, error),
                   'remove it and get it again (--mode=download)')


def is_clutter(name: str) -> bool:
  """Whether a file or folder of that name is what a Mac adds."""
  return name in CLUTTER or name.startswith(CLUTTER_PREFIX)


def _check_bounds(opened: zipfile.ZipFile, archive: str) -> None:
  files, packed = len(opened.infolist()), os.path.getsize(archive)
  unpacked = sum(info.file_size for info in opened.infolist())
  if files > MAX_FILES or unpacked > MAX_BYTES or unpacked > MAX_RATIO * packed:
    raise UserError('an archive would unpack to more than is sensible',
                    '{} ({:,} files and {:,} bytes out of {:,})'.format(
                        archive, files, unpacked, packed),
                    'get it from its publisher again')


def _choose(opened: zipfile.ZipFile, archive: str, second_copy: str) -> List[zipfile.ZipInfo]:
  """Returns the members to unpack, in the order of the archive."""
  chosen: List[zipfile.ZipInfo] = []
  seen: Set[str] = set()
  left_out: Dict[str, int] = collections.Counter()
  for info in opened.infolist():
    _check_name(info, archive)
    parts = _parts(info)
    if info.filename.endswith('/'):
      continue
    if any(is_clutter(part) for part in parts):
      left_out['clutter'] += 1
    elif _kind(info) not in (0, stat.S_IFREG):  # 0: not from Unix, or not said.
      left_out['links and devices'] += 1
    elif second_copy and _is_copy(opened, info, second_copy):
      left_out['second copies'] += 1
    elif '/'.join(parts).casefold() in seen:
      left_out['files of the same name'] += 1
    else:
      seen.add('/'.join(parts).casefold())
      chosen.append(info)
  if left_out:
    LOG.info('%s: left out %s', archive, ', '.join(
        '{} ({})'.format(what, count) for what, count in sorted(left_out.items())))
  return chosen


def _check_name(info: zipfile.ZipInfo, archive: str) -> None:
  # Before zipfile cut it at a NUL. A backslash and a drive's letter mean something on Windows only,
  # but no archive to trust has them.
  name = info.orig_filename
  if (name.startswith('/') or '\\' in name or '\0' in name or re.match('[A-Za-z]:', name)
      or '..' in name.split('/') or not (_parts(info) or name.endswith('/'))):
    raise UserError('an archive has a member that would leave its folder',
                    '{} ({!r})'.format(archive, name), 'get it from its publisher again')


def _parts(info: zipfile.ZipInfo) -> List[str]:
  return [part for part in info.filename.split('/') if part not in ('', '.')]


def _kind(info: zipfile.ZipInfo) -> int:
  return stat.S_IFMT(info.external_attr >> 16)


def _is_copy(opened: zipfile.ZipFile, info: zipfile.ZipInfo, second_copy: str) -> bool:
  if not info.filename.startswith(second_copy):
    return False
  try:
    first = opened.getinfo(info.filename[len(second_copy):])
  except KeyError:
    return False
  return ((first.file_size, first.CRC, _kind(first)) == (info.file_size, info.CRC, _kind(info))
          and not first.filename.startswith(second_copy))


def _path(folder: str, info: zipfile.ZipInfo) -> str:
  return os.path.join(folder, *_parts(info))


def _has_size(path: str, size: int) -> bool:
  try:
    status = os.stat(path)
  except (FileNotFoundError, NotADirectoryError):
    return False
  return stat.S_ISREG(status.st_mode) and status.st_size == size


def _write_all(opened: zipfile.ZipFile, members: Sequence[zipfile.ZipInfo], folder: str) -> int:
  """Writes what is not there yet; returns how many that were."""
  made: Set[str] = set()
  written = 0
  with show_progress('unpacking', sum(info.file_size for info in members)) as advance:
    for info in members:
      path = _path(folder, info)
      if not (_has_size(path, info.file_size) and _crc(path) == info.CRC):
        if os.path.dirname(path) not in made:
          os.makedirs(os.path.dirname(path), exist_ok=True)
          made.add(os.path.dirname(path))
        _write(opened, info, path)
        written += 1
      advance(info.file_size)
  return written


def _write(opened: zipfile.ZipFile, info: zipfile.ZipInfo, path: str) -> None:
  aside = os.path.join(os.path.dirname(path), ASIDE)
  try:
    # zipfile yields no more than the size that was counted above, and checks the CRC at its end.
    with opened.open(info) as source, open(aside, 'wb') as target:
      shutil.copyfileobj(source, target, CHUNK_BYTES)
    os.replace(aside, path)
  except BaseException:
    with contextlib.suppress(OSError):
      os.remove(aside)
    raise


def _crc(path: str) -> int:
  crc = 0
  with open(path, 'rb') as file:
    for chunk in iter(lambda: file.read(CHUNK_BYTES), b''):
      crc = zlib.crc32(chunk, crc)
  return crc
