"""Finds TFRecord files and, if they are compressed, decompresses them once into a folder.

The records of a compressed file can be read only one after the other, from the beginning of the
file. The decompressed copies are read in any order.
"""

import hashlib
import logging
import os
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import Iterator, List, Sequence

from estimator_train.datasets import file_pattern, fingerprint, pattern_checks, record_index
from estimator_train.datasets.idx import GZIP_SIGNATURE
from estimator_train.datasets.positioned_file import PositionedFile, is_remote
from estimator_train.datasets.record_index import RecordIndex
from estimator_train.distribution.threads import available_cores
from estimator_train.errors import UserError, printable
from estimator_train.files import atomic
from estimator_train.settings import Settings, choices

_LOG = logging.getLogger('estimator_train')
# The arguments of zlib.decompressobj: the window size, which also selects the format.
_WINDOW_BITS = {'gzip': 16 + zlib.MAX_WBITS, 'zlib': zlib.MAX_WBITS}
# Small, because the rest of a block is copied at the end of each gzip member.
_READ_BYTES = 1 << 16
_COPY_VERSION = 2  # Version 1 lacked the gzip members after the first.


def load_index(pattern: str, given: str, compression: str, settings: Settings) -> RecordIndex:
  """Finds the files that match a pattern, and the positions of their records.

  Args:
    pattern: the pattern of the files, or a URL pattern such as `gs://bucket/train-*`.
    given: the text that gives the pattern, for messages, such as `--train_pattern=DATA/*`.
    compression: a value of `--compression`.
    settings: the settings of the run. Decompressed files are written to the folder of `--cache`,
      or to `--model_dir`.

  Raises:
    UserError: no file matches, a file cannot be read or has another format, or there is no space
      for the decompressed files.
  """
  files = _find_files(pattern, given)
  try:
    compressed = [index for index, path in enumerate(files)
                  if _find_compression(path, compression) != 'none']
    readable = _decompress(files, compressed, compression, settings) if compressed else files
    index = record_index.load_index(tuple(readable))._replace(names=tuple(files))
  except OSError as error:
    raise UserError('a TFRecord file cannot be read',
                    '{} ({})'.format(given, error), 'correct the pattern or the file') from error
  _warn_about_empty_files(index)
  return index


def _find_files(pattern: str, given: str) -> List[bytes]:
  """Returns the sorted files that match a pattern; raises a UserError if there are none."""
  if is_remote(os.fsencode(pattern)):
    files = _find_remote_files(pattern)
  else:
    files = file_pattern.expand(pattern)
  if not files:
    raise pattern_checks.no_match_error('a pattern matches no file', given, pattern,
                                        'DATA/train-*-of-*')
  pattern_checks.check_shards(given, files)
  return files


def _find_remote_files(pattern: str) -> List[bytes]:
  import tensorflow.compat.v1 as tf
  try:
    return sorted(os.fsencode(path) for path in tf.gfile.Glob(pattern))
  except tf.errors.OpError as error:
    raise UserError('the files cannot be listed', '{} ({})'.format(
        pattern, error.message.splitlines()[0]), 'correct the pattern') from error


def _find_compression(path: bytes, compression: str) -> str:
  """Returns the compression of a file: `none`, `gzip` or `zlib`.

  Raises:
    UserError: the file is not a TFRecord file.
  """
  with PositionedFile(path) as file:
    header = file.read(0, record_index.HEADER_BYTES)
  if compression != 'auto':
    return compression
  if not header or record_index.is_header(header):
    return 'none'
  if header.startswith(GZIP_SIGNATURE):
    return 'gzip'
  if _is_zlib_header(header):
    return 'zlib'
  raise UserError('a file does not start with a TFRecord', printable(os.fsdecode(path)),
                  'exclude this file from the pattern, or write it again')


def _is_zlib_header(header: bytes) -> bool:
  return len(header) > 1 and header[0] & 0x0f == 8 and int.from_bytes(header[:2], 'big') % 31 == 0


def _decompress(files: Sequence[bytes], compressed: Sequence[int], compression: str,
                settings: Settings) -> List[bytes]:
  """Returns the files, with decompressed copies in place of the compressed files.

  Raises:
    UserError: there is no folder for the copies, or a file is damaged.
  """
  folder = _make_folder(files[compressed[0]], settings)
  copies = list(files)
  for index in compressed:
    copies[index] = _copy_path(folder, files[index])
  missing = [index for index in compressed if not os.path.exists(copies[index])]
  if missing:
    _LOG.info('decompressing %d TFRecord files into %s', len(missing), folder)
  with ThreadPoolExecutor(available_cores()) as threads:
    list(threads.map(lambda index: _decompress_file(
        files[index], copies[index], _find_compression(files[index], compression)), missing))
  return copies


def _make_folder(compressed_file: bytes, settings: Settings) -> str:
  """Makes and returns the folder for decompressed files."""
  if settings.cache not in choices.CACHES:  # The path of a folder.
    folder = settings.cache
  elif settings.model_dir:
    folder = os.path.join(settings.model_dir, 'decompressed')
  else:
    raise UserError('compressed TFRecord files are decompressed into a folder',
                    '{} without --model_dir'.format(printable(os.fsdecode(compressed_file))),
                    'give --model_dir, or --cache=FOLDER')
  os.makedirs(folder, exist_ok=True)
  return folder


def _copy_path(folder: str, path: bytes) -> bytes:
  """Returns the path of the decompressed copy; it changes if the file changes."""
  key = '{} {}'.format(_COPY_VERSION, fingerprint.of_files([path]))
  digest = hashlib.md5(key.encode()).hexdigest()
  return os.path.join(os.fsencode(folder), os.path.basename(path) + b'-' + digest.encode())


def _decompress_file(source_path: bytes, copy_path: bytes, compression: str) -> None:
  """Writes the decompressed copy of a file; raises a UserError if the file is damaged."""
  with atomic.open_atomic(os.fsdecode(copy_path)) as copy:
    try:
      for data in _iter_decompressed(source_path, compression):
        copy.write(data)
    except zlib.error as error:
      raise UserError('a compressed TFRecord file is damaged',
                      '{} ({})'.format(printable(os.fsdecode(source_path)), error),
                      'write the file again, or correct --compression') from error


def _iter_decompressed(path: bytes, compression: str) -> Iterator[bytes]:
  """Yields the decompressed content of a file, block by block.

  As by gzip, concatenated gzip members are read as one stream, and other data after the last one is
  ignored with a warning.

  Raises:
    zlib.error: the file is damaged.
  """
  offset, block = 0, b''
  decompressor = zlib.decompressobj(_WINDOW_BITS[compression])
  with PositionedFile(path) as file:
    while True:
      if len(block) < len(GZIP_SIGNATURE):
        more = file.read(offset, _READ_BYTES)
        offset, block = offset + len(more), block + more
      if not block:
        break
      if decompressor.eof:
        if block.startswith(b'\0'):  # Padding.
          block = block.lstrip(b'\0')
          continue
        if compression != 'gzip':
          raise zlib.error('data after the end of the stream')
        if not block.startswith(GZIP_SIGNATURE):
          _LOG.warning('%s: ignoring data after the end of the compressed data',
                       printable(os.fsdecode(path)))
          break
        decompressor = zlib.decompressobj(_WINDOW_BITS[compression])
      yield decompressor.decompress(block)
      block = decompressor.unused_data
  if not decompressor.eof:
    raise zlib.error('truncated')


def _warn_about_empty_files(index: RecordIndex) -> None:
  counts = index.first_records[1:] - index.first_records[:-1]
  damaged = {damage.file_index for damage in index.damages}
  for file_index, (name, count) in enumerate(zip(index.names, counts)):
    if not count and file_index not in damaged:
      _LOG.warning('%s has no records', printable(os.fsdecode(name)))
