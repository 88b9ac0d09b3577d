"""Reads and writes the records of TFRecord files and of TensorBoard's event files.

A record consists of the length of the data (uint64, little-endian), the checksum of the length
(uint32), the data, and the checksum of the data (uint32).
"""

import functools
import os
import struct
import sys
import types
from typing import BinaryIO, Callable, Iterator

HEADER_BYTES, FOOTER_BYTES = 12, 4
_unpack_header = struct.Struct('<QI').unpack_from
_checksum_struct = struct.Struct('<I')
_CHECKSUM_MASK = 0xa282ead8
_MAX_LENGTH = 1 << 40  # The maximum size of a record in bytes.


class DamagedRecord(ValueError):
  """A record has a wrong checksum, or its end is missing."""


class TruncatedRecord(DamagedRecord):
  """The end of a record is missing, as at the end of a file whose writer was killed."""

  def __init__(self) -> None:
    super().__init__('truncated')


def frame_record(data: bytes) -> bytes:
  """Returns the record that contains the data."""
  length = struct.pack('<Q', len(data))
  return b''.join((length, _checksum_struct.pack(_masked_checksum(length)), data,
                   _checksum_struct.pack(_masked_checksum(data))))


def is_header(header: bytes) -> bool:
  """Returns whether a file that starts with these bytes starts with a record."""
  # Images and idx files start with bytes that, as a length, exceed _MAX_LENGTH. For such files, the
  # function that computes the checksum is not imported.
  return len(header) >= HEADER_BYTES and _unpack_header(header)[0] <= _MAX_LENGTH and (
      _has_valid_checksum(header, 0))


def parse_data_length(block: bytes, position: int = 0) -> int:
  """Returns the size in bytes of the data of the record whose header is at a position of a block.

  Raises:
    DamagedRecord: the header is truncated, or has a wrong checksum.
  """
  if position + HEADER_BYTES > len(block):
    raise TruncatedRecord
  if not _has_valid_checksum(block, position):
    raise DamagedRecord('wrong checksum of the length')
  length: int = _unpack_header(block, position)[0]
  return length


def extract_data(data_and_checksum: bytes, length: int) -> bytes:
  """Returns the data of a record without its checksum.

  Args:
    length: the size of the data in bytes, from the header.

  Raises:
    DamagedRecord: the data is truncated, or has a wrong checksum.
  """
  if len(data_and_checksum) < length + FOOTER_BYTES:
    raise TruncatedRecord
  data = data_and_checksum[:length]
  if _masked_checksum(data) != _checksum_struct.unpack_from(data_and_checksum, length)[0]:
    raise DamagedRecord('wrong checksum')
  return data


def iter_records(file: BinaryIO) -> Iterator[bytes]:
  """Yields the data of each record of a file.

  Raises:
    DamagedRecord: a record is damaged, so the positions of the next records are uncertain.
  """
  size = os.fstat(file.fileno()).st_size
  while True:
    header = file.read(HEADER_BYTES)
    if not header:
      return
    length = parse_data_length(header)
    if length > size:  # Reading so much could exhaust the memory.
      raise TruncatedRecord
    yield extract_data(file.read(length + FOOTER_BYTES), length)


def _has_valid_checksum(block: bytes, position: int) -> bool:
  _, checksum = _unpack_header(block, position)
  return _masked_checksum(block[position:position + 8]) == checksum


def _masked_checksum(data: bytes) -> int:
  """Returns the checksum of the format: the masked CRC-32C."""
  checksum: int = _import_crc32c()(data)
  return ((checksum >> 15 | checksum << 17) + _CHECKSUM_MASK) & 0xffffffff


@functools.lru_cache(maxsize=None)
def _import_crc32c() -> Callable[[bytes], int]:
  # This module imports pkg_resources, which takes 0.1 s, but has an effect only on Windows.
  sys.modules.setdefault('google_crc32c.__config__', types.ModuleType('google_crc32c.__config__'))
  import google_crc32c
  compute_crc32c: Callable[[bytes], int] = google_crc32c.value
  return compute_crc32c
