"""Reads compressed TFRecord files, and decompresses them into a folder.

The records of a compressed file can be read only sequentially, from the beginning of the file. Such
a file is therefore decompressed once into a folder. The records of the copy can be read in any
order.
"""

import contextlib
import functools
import hashlib
import os
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import Callable, Dict, Iterator, List

from estimator_train.data.idx import GZIP_SIGNATURE
from estimator_train.data.record_index import PositionedFile
from estimator_train.errors import UserError, printable
from estimator_train.settings import Settings
from estimator_train.settings.flags import CACHES
from estimator_train.system import record_framing, storage
from estimator_train.system.machine import available_cores
from estimator_train.system.progress import show_phase

_WINDOW_BITS = 32 + zlib.MAX_WBITS  # Adding 32 makes zlib detect the format, gzip or zlib.
# Blocks are small, because zlib copies the rest of a block at the end of each gzip member.
_READ_BYTES = 1 << 16
_COPY_VERSION = 2  # Copies of version 1 lacked all gzip members after the first.


def is_compressed_header(header: bytes) -> bool:
  """Returns whether the first bytes of a file identify it as a gzip or zlib file."""
  # In a zlib file, the low bits of the first byte are the compression method, 8, and the first two
  # bytes are a multiple of 31.
  return header.startswith(GZIP_SIGNATURE) or (
      len(header) > 1 and header[0] & 0x0f == 8 and int.from_bytes(header[:2], 'big') % 31 == 0)


def has_compressed_records(path: bytes) -> bool:
  """Returns whether a file has compressed records; raises an OSError if it cannot be read."""
  with contextlib.closing(PositionedFile(path)) as file:
    if not is_compressed_header(file.read(0, record_framing.HEADER_BYTES)):
      return False
  try:
    return record_framing.is_header(_make_read_function(path)(record_framing.HEADER_BYTES))
  except zlib.error:
    return False


def iter_compressed_records(path: bytes) -> Iterator[Callable[[], bytes]]:
  """Yields a function for each record of a compressed file, which checks and returns its data.

  Raises:
    OSError, zlib.error, DamagedRecord: the rest of the file cannot be read. If only the data of a
      record is damaged, the function of this record raises the DamagedRecord.
  """
  read = _make_read_function(path)
  for header in iter(lambda: read(record_framing.HEADER_BYTES), b''):
    length = record_framing.parse_data_length(header)
    content = read(length + record_framing.FOOTER_BYTES)
    yield functools.partial(record_framing.extract_data, content, length)


def _make_read_function(path: bytes) -> Callable[[int], bytes]:
  """Makes a function that reads up to N further decompressed bytes of a file."""
  blocks, buffer = _iter_decompressed(path), bytearray()

  def read(count: int) -> bytes:
    while len(buffer) < count:
      block = next(blocks, None)
      if block is None:
        break
      buffer.extend(block)
    data = bytes(buffer[:count])
    del buffer[:count]
    return data

  return read


def decompress_files(compressed_paths: List[bytes], settings: Settings) -> Dict[bytes, bytes]:
  """Decompresses files, and returns a dict from the path of each file to the path of its copy.

  The copies are in the folder of `--cache`, or in a folder in `--model_dir`.

  Raises:
    UserError: there is no folder for the copies, or a file is damaged.
  """
  if settings.input.cache not in CACHES:  # The path of a folder.
    folder = settings.input.cache
  elif settings.run.model_dir:
    folder = os.path.join(settings.run.model_dir, 'decompressed')
  else:
    raise UserError('compressed TFRecord files are decompressed into a folder',
                    '{} without --model_dir'.format(printable(os.fsdecode(compressed_paths[0]))),
                    'give --model_dir, or --cache=FOLDER')
  os.makedirs(folder, exist_ok=True)
  copies: Dict[bytes, bytes] = {}
  for path in compressed_paths:
    # The key, and thus the path of the copy, changes if the file changes.
    key = '{} {}'.format(_COPY_VERSION, storage.fingerprint_files([path]))
    copies[path] = os.path.join(os.fsencode(folder), b'%s-%s' % (
        os.path.basename(path), hashlib.md5(key.encode()).hexdigest().encode()))
  missing = [path for path, copy in copies.items() if not os.path.exists(copy)]
  if missing:
    with show_phase('decompressing {} TFRecord files into {}'.format(len(missing), folder)), \
        ThreadPoolExecutor(available_cores()) as threads:
      list(threads.map(lambda path: _decompress_file(path, copies[path]), missing))
  return copies


def _decompress_file(source_path: bytes, copy_path: bytes) -> None:
  """Writes the decompressed copy of a file; raises a UserError if the file is damaged."""
  with storage.open_atomic(os.fsdecode(copy_path)) as copy:
    try:
      for data in _iter_decompressed(source_path):
        copy.write(data)
    except zlib.error as error:
      raise UserError('a compressed TFRecord file is damaged',
                      '{} ({})'.format(printable(os.fsdecode(source_path)), error),
                      'write the file again, or correct --compression') from error


def _iter_decompressed(path: bytes) -> Iterator[bytes]:
  """Yields the decompressed content of a file, block by block.

  Like gzip, this function reads concatenated streams as one, and ignores zeros after a stream.

  Raises:
    zlib.error: the file is damaged.
  """
  offset, block, decompressor = 0, b'', zlib.decompressobj(_WINDOW_BITS)
  with contextlib.closing(PositionedFile(path)) as file:
    while True:
      if not block:
        block = file.read(offset, _READ_BYTES)
        offset += len(block)
        if not block:
          break
      if decompressor.eof:
        block = block.lstrip(b'\0')
        if not block:
          continue
        decompressor = zlib.decompressobj(_WINDOW_BITS)
      yield decompressor.decompress(block)
      block = decompressor.unused_data
  if not decompressor.eof:
    raise zlib.error('truncated')
