"""Finds the records of TFRecord files by their lengths, and reads the records in any order.

See record_framing.py for the format of a record.
"""

import contextlib
import functools
import hashlib
import io
import json
import logging
import os
import resource
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO, List, NamedTuple, Optional, Tuple

import numpy as np

from estimator_train.errors import BadExample, UserError, first_line, printable
from estimator_train.system import record_framing, storage
from estimator_train.system.machine import available_cores
from estimator_train.system.record_framing import FOOTER_BYTES, HEADER_BYTES

_LOG = logging.getLogger('estimator_train')
# A scan reads blocks of several records if the records are small, and otherwise only the lengths.
_BLOCK_BYTES, _MAX_SMALL_BYTES = 1 << 20, 1 << 12
_MAX_CACHED_INDICES = 64  # The maximum number of RecordIndex files in the folder of caches.
# A reader opens at most this fraction of the number of files that the process may open, and at most
# this number of files.
_OPEN_FILES_FRACTION, _MAX_OPEN_FILES = 0.5, 16384
_CACHE_VERSION = 2


class PositionedFile:
  """A file that is read at given offsets. Several threads can share it.

  The file is closed when the object is garbage-collected. One thread can therefore remove the
  object from a cache while another thread reads the file.

  Args:
    path: the path of a local file, or a URL such as `gs://bucket/file`.

  Attributes:
    size: the size in bytes when the file was opened.

  Raises:
    OSError: the file cannot be opened, or is not a regular file.
  """

  def __init__(self, path: bytes) -> None:
    self._lock = threading.Lock() if is_remote(path) else None
    if self._lock is not None:
      import tensorflow.compat.v1 as tf
      self._file: Any = tf.gfile.GFile(path, 'rb')
      try:
        self.size = self._file.size()
      except tf.errors.OpError as error:
        raise OSError(first_line(error)) from error
    else:
      # `detach` saves the memory of the buffer, because a reader keeps many files open.
      self._file = storage.open_regular_file(path).detach()
      self.size = os.fstat(self._file.fileno()).st_size

  def read(self, offset: int, count: int) -> bytes:
    """Returns `count` bytes from an offset on, or fewer at the end of the file."""
    if self._lock is None:
      return os.pread(self._file.fileno(), count, offset)
    with self._lock:
      self._file.seek(offset)
      content: bytes = self._file.read(count)
    return content

  def request_readahead(self, offset: int, count: int) -> None:
    """Asks the kernel to read a part of a local file ahead."""
    if self._lock is None:
      os.posix_fadvise(self._file.fileno(), offset, count, os.POSIX_FADV_WILLNEED)

  def close(self) -> None:
    self._file.close()


class FileDamage(NamedTuple):
  """Damage in a file, after which no record of the file can be found.

  Attributes:
    file_index: the index of the file.
    record: the number of the damaged record in the file, counted from 0.
    lost_bytes: the number of bytes from the damaged record to the end of the file.
  """
  file_index: int
  record: int
  reason: str
  lost_bytes: int


class RecordIndex(NamedTuple):
  """The positions of all records of several files, in the order of the files.

  Attributes:
    files: the paths of the files.
    original_paths: the paths of the user's files, for messages. They differ from `files` if the
      files were decompressed, because `files` has the paths of the decompressed copies.
    first_records: the index of the first record of each file, followed by the number of all
      records, int64 [files + 1].
    lengths: the size of the data of each record, int64 [records].
    damages: the damage of each damaged file, in the order of the files.
  """
  files: Tuple[bytes, ...]
  original_paths: Tuple[bytes, ...]
  first_records: np.ndarray
  lengths: np.ndarray
  damages: Tuple[FileDamage, ...]

  @property
  def num_records(self) -> int:
    return len(self.lengths)

  def check_intact(self) -> None:
    """Raises a UserError if a file is damaged, or if there are no records."""
    if self.damages:
      raise UserError('a TFRecord file is damaged', '{} ({})'.format(
          *self.describe_damage(self.damages[0])),
          'write the file again, or give --on_bad_image=skip')
    if not self.num_records:
      raise UserError('the TFRecord files have no records', ', '.join(
          printable(os.fsdecode(path)) for path in self.original_paths[:3]), 'change the pattern')

  def describe_damage(self, damage: FileDamage) -> Tuple[str, str]:
    """Returns the name of the damaged record, and the reason."""
    return (describe_record(self.original_paths[damage.file_index], damage.record),
            '{}; the last {:,} bytes of the file are lost'.format(damage.reason,
                                                                  damage.lost_bytes))

  def compute_offsets(self) -> np.ndarray:
    """Returns the offset of the data of each record in its file, int64 [records]."""
    ends = np.cumsum(self.lengths + (HEADER_BYTES + FOOTER_BYTES))
    starts = ends - self.lengths - FOOTER_BYTES
    starts_of_files = np.concatenate([[0], ends])[self.first_records[:-1]]
    return starts - np.repeat(starts_of_files, np.diff(self.first_records))

  def locate_record(self, record: int) -> Tuple[bytes, int]:
    """Returns the file of a record, and the number of the record in this file, counted from 0."""
    file_index = int(np.searchsorted(self.first_records, record, 'right')) - 1
    return self.original_paths[file_index], record - int(self.first_records[file_index])


class RecordReader:
  """Reads the records of an index. Several threads can share a reader."""

  def __init__(self, index: RecordIndex) -> None:
    self._index, self._offsets = index, index.compute_offsets()
    soft_limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    max_open_files = _MAX_OPEN_FILES if soft_limit == resource.RLIM_INFINITY else max(
        1, min(_MAX_OPEN_FILES, int(soft_limit * _OPEN_FILES_FRACTION)))
    # Closes the least recently used file if too many are open.
    self._open_file = functools.lru_cache(max_open_files)(
        lambda file_index: PositionedFile(index.files[file_index]))

  def read(self, records: np.ndarray) -> List[bytes]:
    """Returns the data of the records at these indices, int64 [n].

    Raises:
      OSError: a file cannot be read.
      BadExample: a record is damaged.
    """
    file_indices = np.searchsorted(self._index.first_records, records, 'right') - 1
    requests = list(zip(map(self._open_file, file_indices.tolist()),
                        self._offsets[records].tolist(),
                        (self._index.lengths[records] + FOOTER_BYTES).tolist()))
    # The kernel reads all records in parallel while this function waits for the first one.
    for file, offset, count in requests:
      file.request_readahead(offset, count)
    contents = []
    for record, (file, offset, count) in zip(records, requests):
      try:
        contents.append(record_framing.extract_data(
            file.read(offset, count), int(self._index.lengths[record])))
      except record_framing.DamagedRecord as damage:
        name = describe_record(*self._index.locate_record(record))
        raise BadExample(name, str(damage)) from damage
    return contents


def is_remote(path: bytes) -> bool:
  """Returns whether a path is a URL, such as `gs://bucket/file`."""
  return b'://' in path


def load_or_scan_index(files: Tuple[bytes, ...]) -> RecordIndex:
  """Returns the index of uncompressed files, from an earlier scan unless a file has changed.

  Raises:
    OSError: a file cannot be read.
  """
  key = hashlib.md5('{} {}'.format(
      _CACHE_VERSION, storage.fingerprint_files(files)).encode()).hexdigest()
  cache_folder = os.environ.get('XDG_CACHE_HOME') or os.path.join(os.path.expanduser('~'), '.cache')
  path = os.path.join(cache_folder, 'estimator_train', 'record_index', key + '.npz')
  index = _load_stored_index(path, files, key)
  if index is not None:
    return index
  with ThreadPoolExecutor(available_cores()) as threads:
    lengths, damages = zip(*threads.map(_scan_file, range(len(files)), files))
  index = RecordIndex(files, files, np.cumsum([0, *map(len, lengths)], dtype=np.int64),
                      np.concatenate(lengths), tuple(damage for damage in damages if damage))
  _store_index(path, index, key)
  return index


def starts_with_record(path: bytes) -> bool:
  """Returns whether a local file starts with a record; raises an OSError if it is unreadable."""
  with storage.open_regular_file(path) as file:
    return record_framing.is_header(file.read(HEADER_BYTES))


def describe_record(path: bytes, record: int) -> str:
  """Returns the name of a record for messages."""
  return '{}: record {}'.format(printable(os.fsdecode(path)), record)


def _scan_file(file_index: int, path: bytes) -> Tuple[np.ndarray, Optional[FileDamage]]:
  """Returns the lengths of the records in a file up to the first damage, and the damage, if any."""
  lengths: List[int] = []
  offset, block, block_offset, length, reason = 0, b'', 0, _BLOCK_BYTES, ''
  with contextlib.closing(PositionedFile(path)) as file:
    while offset < file.size and not reason:
      position = offset - block_offset
      if position + HEADER_BYTES > len(block):
        block_offset, position = offset, 0
        block = file.read(offset, _BLOCK_BYTES if length <= _MAX_SMALL_BYTES else HEADER_BYTES)
      try:
        length = record_framing.parse_data_length(block, position)
      except record_framing.DamagedRecord as damaged:
        reason = str(damaged)  # Without the length, the position of the next record is unknown.
        break
      next_offset = offset + HEADER_BYTES + length + FOOTER_BYTES
      if next_offset > file.size:
        reason = 'truncated'
      else:
        lengths.append(length)
        offset = next_offset
    damage = FileDamage(file_index, len(lengths), reason, file.size - offset) if reason else None
  return np.array(lengths, np.int64), damage


def _load_stored_index(path: str, files: Tuple[bytes, ...], key: str) -> Optional[RecordIndex]:
  """Returns the index that an earlier scan has stored; None if there is none for these files."""
  def parse_index(file: BinaryIO) -> RecordIndex:
    # ZipFile verifies the checksum of each array. It replaces np.load, whose NpzFile prints a
    # traceback when it is garbage-collected after an error.
    with zipfile.ZipFile(file) as archive:
      def read_array(name: str) -> np.ndarray:
        return np.lib.format.read_array(io.BytesIO(archive.read(name + '.npy')),
                                        allow_pickle=False)

      if bytes(read_array('key')) != key.encode():
        raise ValueError('it belongs to other files')
      damages = json.loads(bytes(read_array('damages')).decode())
      return RecordIndex(files, files, read_array('first_records'), read_array('lengths'),
                         tuple(FileDamage(*damage) for damage in damages))

  return storage.load_or_warn(path, parse_index)


def _store_index(path: str, index: RecordIndex, key: str) -> None:
  """Stores an index for later runs, unless the folder is not writable."""
  try:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with storage.open_atomic(path) as file:
      np.savez(file, first_records=index.first_records, lengths=index.lengths,
               **{name: np.frombuffer(text.encode(), np.uint8) for name, text in (
                   ('damages', json.dumps(index.damages)), ('key', key))})
    with os.scandir(os.path.dirname(path)) as entries:
      newest_first = sorted(entries, key=lambda entry: entry.stat().st_mtime, reverse=True)
    for entry in newest_first[_MAX_CACHED_INDICES:]:
      os.remove(entry.path)
  except OSError as error:
    _LOG.debug('cannot store the positions of the records (%s)', error)

