"""Reads and writes the framing of records in TFRecord files and in TensorBoard's event files.

A record is the length of the data (uint64, little-endian), the checksum of these eight bytes
(uint32), the data, and the checksum of the data (uint32).
"""

import functools
import os
import struct
import warnings
from typing import BinaryIO, Callable, Iterator

HEADER_BYTES, FOOTER_BYTES = 12, 4
_unpack_header = struct.Struct('<QI').unpack_from
_checksum_struct = struct.Struct('<I')
_CHECKSUM_MASK = 0xa282ead8
_MAX_LENGTH = 1 << 40  # The maximum size of a record in bytes.


class DamagedRecord(ValueError):
  """A record has a wrong checksum, or its end is missing. The text is the reason."""


class TruncatedRecord(DamagedRecord):
  """The end of a record is missing, as at the end of a file whose writer was killed."""

  def __init__(self) -> None:
    super().__init__('truncated')


def frame(data: bytes) -> bytes:
  """Returns a record: the data, with its length and the checksums."""
  length = struct.pack('<Q', len(data))
  return b''.join((length, _checksum_struct.pack(_masked_checksum(length)), data,
                   _checksum_struct.pack(_masked_checksum(data))))


def is_header(header: bytes) -> bool:
  """Returns whether some bytes are the start of a record: a length and its checksum."""
  # The first bytes of images and idx files, as a length, exceed _MAX_LENGTH. For such files, the
  # function that computes the checksum is therefore not imported.
  return len(header) >= HEADER_BYTES and _unpack_header(header)[0] <= _MAX_LENGTH and (
      _has_valid_checksum(header, 0))


def parse_header(block: bytes, position: int = 0) -> int:
  """Returns the size of the data of a record, from the header at a position of a block.

  Raises:
    DamagedRecord: the header is truncated, or has a wrong checksum.
  """
  if position + HEADER_BYTES > len(block):
    raise TruncatedRecord
  if not _has_valid_checksum(block, position):
    raise DamagedRecord('wrong checksum of the length')
  length: int = _unpack_header(block, position)[0]
  return length


def parse_data(content: bytes, length: int) -> bytes:
  """Returns the data of a record.

  Args:
    content: the data and its checksum, as they were read.
    length: the size of the data, from the header.

  Raises:
    DamagedRecord: the data is truncated, or has a wrong checksum.
  """
  if len(content) < length + FOOTER_BYTES:
    raise TruncatedRecord
  data = content[:length]
  if _masked_checksum(data) != _checksum_struct.unpack_from(content, length)[0]:
    raise DamagedRecord('wrong checksum')
  return data


def iter_records(file: BinaryIO) -> Iterator[bytes]:
  """Yields the data of each record of a file.

  Raises:
    DamagedRecord: a record is damaged. The positions of further records are then uncertain.
  """
  size = os.fstat(file.fileno()).st_size
  while True:
    header = file.read(HEADER_BYTES)
    if not header:
      return
    length = parse_header(header)
    if length > size:  # To read so much could exhaust the memory.
      raise TruncatedRecord
    yield parse_data(file.read(length + FOOTER_BYTES), length)


def _has_valid_checksum(block: bytes, position: int) -> bool:
  _, checksum = _unpack_header(block, position)
  return _masked_checksum(block[position:position + 8]) == checksum


def _masked_checksum(data: bytes) -> int:
  """Returns the masked CRC-32C of some bytes, which the format uses."""
  checksum: int = _crc32c()(data)
  return ((checksum >> 15 | checksum << 17) + _CHECKSUM_MASK) & 0xffffffff


@functools.lru_cache(maxsize=None)
def _crc32c() -> Callable[[bytes], int]:
  """Imports and returns the function that computes a CRC-32C. The import takes 0.1 s."""
  with warnings.catch_warnings():  # The import of pkg_resources in this module adds a filter.
    import google_crc32c
  function: Callable[[bytes], int] = google_crc32c.value
  return function
