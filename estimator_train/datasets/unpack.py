"""Unpacks a zip archive, which may be damaged, malicious, or already partly unpacked."""

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

from estimator_train.datasets.transfer import check_free_space, show_progress
from estimator_train.errors import UserError

LOG = logging.getLogger('estimator_train')

# Limits on the unpacked archive, against decompression bombs. The archive of oct2017, which is the
# largest, has about 170,000 files and 11 GB. MAX_RATIO limits the factor of the compression:
# photographs hardly compress, while zeros compress by a factor of 1,000 and more.
MAX_FILES = 1000 * 1000
MAX_BYTES = 1 << 36
MAX_RATIO = 100
CHUNK_BYTES = 1 << 20

# Names of the metadata files that macOS adds to folders and archives.
MACOS_NAMES = ('__MACOSX', '.DS_Store')
MACOS_PREFIX = '._'
# The temporary name of a file while it is written. The name is hidden, so that file patterns do not
# match it, and constant, so that the next run overwrites the temporary file of a killed run.
TEMPORARY_NAME = '.unpacking'

# Exceptions that zipfile raises for damaged or encrypted archives and unknown compression methods.
_DAMAGE_ERRORS = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError,
                  ValueError, struct.error)


class UnpackCounts(NamedTuple):
  """The numbers of archive members that were written, already present, and skipped."""
  written: int
  present: int
  skipped: int


def unpack_zip(archive: str, folder: str, second_copy: str = '') -> UnpackCounts:
  """Unpacks the files of a zip archive into a folder. No other process may use the folder.

  Each file is written to a temporary name, and renamed after the CRC-32 is verified. A file that is
  present with the right size and CRC-32 is not written again. This check saves time when an
  interrupted call is repeated, because reading a file is faster than unpacking the file.

  Links, devices, macOS metadata and empty folders are skipped. If the paths of several files are
  equal or differ only in case, only the first file is unpacked, because some file systems cannot
  store more than one of these files.
  Files get the default permissions of the user instead of the permissions in the archive.

  Args:
    archive: the path of the archive.
    folder: the folder to unpack into; it is created if it does not exist.
    second_copy: a folder in the archive, with a trailing slash. A file in this folder is skipped if
      the archive has a file of the same relative path, size and CRC-32 outside of the folder.

  Raises:
    UserError: the archive is damaged, has a member with a path outside of the folder, exceeds
      MAX_FILES, MAX_BYTES or MAX_RATIO, or cannot be stored. If the archive is damaged, the files
      before the damage are written. If a path or a limit is wrong, nothing is written.
  """
  needed_bytes = 0
  try:
    with zipfile.ZipFile(archive) as zip_file:
      _check_limits(zip_file, archive)
      members = _choose_members(zip_file, archive, second_copy)
      os.makedirs(folder, exist_ok=True)
      needed_bytes = sum(member.file_size for member in members
                         if not _has_size(_member_path(folder, member), member.file_size))
      check_free_space(folder, needed_bytes)
      written = _write_members(zip_file, members, folder)
      return UnpackCounts(written, len(members) - written, len(zip_file.infolist()) - len(members))
  except _DAMAGE_ERRORS as error:
    raise _damaged_error(archive, error) from error
  except OSError as error:
    # A damaged archive can also raise an OSError: bz2 raises an OSError without errno, and a wrong
    # offset causes EINVAL.
    if error.errno in (None, errno.EINVAL) and not error.filename:
      raise _damaged_error(archive, error) from error
    raise UserError('cannot unpack ' + archive,
                    '{}: {}'.format(error.filename or folder, error.strerror or error),
                    'choose a writable folder with {:,} bytes of free space'.format(
                        needed_bytes)) from error


def _damaged_error(archive: str, error: Exception) -> UserError:
  return UserError('an archive is damaged, or not a zip file', '{} ({})'.format(archive, error),
                   'remove it and download it again with --mode=download')


def is_macos_metadata(name: str) -> bool:
  """Whether a file or folder with this name is metadata of macOS."""
  return name in MACOS_NAMES or name.startswith(MACOS_PREFIX)


def _check_limits(zip_file: zipfile.ZipFile, archive: str) -> None:
  """Raises a UserError if the archive exceeds MAX_FILES, MAX_BYTES or MAX_RATIO."""
  num_files, packed_bytes = len(zip_file.infolist()), os.path.getsize(archive)
  unpacked_bytes = sum(member.file_size for member in zip_file.infolist())
  if (num_files > MAX_FILES or unpacked_bytes > MAX_BYTES
      or unpacked_bytes > MAX_RATIO * packed_bytes):
    raise UserError('an archive would unpack to more than the allowed size',
                    '{} ({:,} files and {:,} bytes from {:,} packed bytes)'.format(
                        archive, num_files, unpacked_bytes, packed_bytes),
                    'download it from its publisher again')


def _choose_members(zip_file: zipfile.ZipFile, archive: str,
                    second_copy: str) -> List[zipfile.ZipInfo]:
  """Returns the members to unpack, in the order of the archive, and logs the skipped members."""
  chosen: List[zipfile.ZipInfo] = []
  chosen_paths: Set[str] = set()
  skipped: Dict[str, int] = collections.Counter()
  for member in zip_file.infolist():
    _check_name(member, archive)
    parts = _path_parts(member)
    if member.filename.endswith('/'):
      continue
    if any(is_macos_metadata(part) for part in parts):
      skipped['macOS metadata'] += 1
    elif _file_type(member) not in (0, stat.S_IFREG):
      skipped['links and devices'] += 1
    elif second_copy and _is_second_copy(zip_file, member, second_copy):
      skipped['second copies'] += 1
    elif '/'.join(parts).casefold() in chosen_paths:
      skipped['files of the same name'] += 1
    else:
      chosen_paths.add('/'.join(parts).casefold())
      chosen.append(member)
  if skipped:
    LOG.info('%s: skipped %s', archive, ', '.join(
        '{} ({})'.format(reason, count) for reason, count in sorted(skipped.items())))
  return chosen


def _check_name(member: zipfile.ZipInfo, archive: str) -> None:
  """Raises a UserError if the path of a member may be outside of the folder of the archive."""
  # zipfile truncates filename at a null character, but not orig_filename. Backslashes and drive
  # letters are special on Windows only, but trustworthy archives do not contain them.
  name = member.orig_filename
  if (name.startswith('/') or '\\' in name or '\0' in name or re.match('[A-Za-z]:', name)
      or '..' in name.split('/') or not (_path_parts(member) or name.endswith('/'))):
    raise UserError('an archive has a member with a path outside of its folder',
                    '{} ({!r})'.format(archive, name), 'download it from its publisher again')


def _path_parts(member: zipfile.ZipInfo) -> List[str]:
  """Returns the names of the folders and of the file in the path of a member."""
  return [part for part in member.filename.split('/') if part not in ('', '.')]


def _file_type(member: zipfile.ZipInfo) -> int:
  """Returns the file type of a member, such as stat.S_IFREG; 0 if the archive does not state it."""
  return stat.S_IFMT(member.external_attr >> 16)


def _is_second_copy(zip_file: zipfile.ZipFile, member: zipfile.ZipInfo, second_copy: str) -> bool:
  """Whether the member is in the folder `second_copy` and has an equal file outside of it."""
  if not member.filename.startswith(second_copy):
    return False
  try:
    original = zip_file.getinfo(member.filename[len(second_copy):])
  except KeyError:
    return False
  return ((original.file_size, original.CRC, _file_type(original))
          == (member.file_size, member.CRC, _file_type(member))
          and not original.filename.startswith(second_copy))


def _member_path(folder: str, member: zipfile.ZipInfo) -> str:
  return os.path.join(folder, *_path_parts(member))


def _has_size(path: str, size: int) -> bool:
  """Whether the path is a regular file of this size."""
  try:
    status = os.stat(path)
  except (FileNotFoundError, NotADirectoryError):
    return False
  return stat.S_ISREG(status.st_mode) and status.st_size == size


def _write_members(zip_file: zipfile.ZipFile, members: Sequence[zipfile.ZipInfo],
                   folder: str) -> int:
  """Writes the members that are not present, and returns the number of these members."""
  created_folders: Set[str] = set()
  num_written = 0
  with show_progress('unpacking', sum(member.file_size for member in members)) as advance:
    for member in members:
      path = _member_path(folder, member)
      if not (_has_size(path, member.file_size) and _file_crc(path) == member.CRC):
        if os.path.dirname(path) not in created_folders:
          os.makedirs(os.path.dirname(path), exist_ok=True)
          created_folders.add(os.path.dirname(path))
        _write_member(zip_file, member, path)
        num_written += 1
      advance(member.file_size)
  return num_written


def _write_member(zip_file: zipfile.ZipFile, member: zipfile.ZipInfo, path: str) -> None:
  """Writes a member to a temporary name, verifies the CRC-32, and renames the file."""
  temporary = os.path.join(os.path.dirname(path), TEMPORARY_NAME)
  try:
    # zipfile reads at most member.file_size bytes, which _check_limits has counted, and verifies
    # the CRC-32 at the end.
    with zip_file.open(member) as source, open(temporary, 'wb') as target:
      shutil.copyfileobj(source, target, CHUNK_BYTES)
    os.replace(temporary, path)
  except BaseException:
    with contextlib.suppress(OSError):
      os.remove(temporary)
    raise


def _file_crc(path: str) -> int:
  crc = 0
  with open(path, 'rb') as file:
    for chunk in iter(lambda: file.read(CHUNK_BYTES), b''):
      crc = zlib.crc32(chunk, crc)
  return crc
