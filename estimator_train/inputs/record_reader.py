"""Reads records of TFRecord files in any order, and verifies their checksums."""

import collections
import resource
import struct
import threading
from typing import Dict, List

import numpy as np

from estimator_train.datasets.positioned_file import PositionedFile
from estimator_train.datasets.record_index import (
  FOOTER_BYTES,
  RecordIndex,
  describe_record,
  masked_checksum,
)
from estimator_train.inputs.source import BadExample

# The part of the open files that the operating system allows to a process, and the most files that
# a reader keeps open.
_OPEN_FILES_FRACTION, _MAX_OPEN_FILES = 0.5, 16384
_unpack_checksum = struct.Struct('<I').unpack_from


class RecordReader:
  """Reads the records of an index. Several threads can share a reader.

  Args:
    index: the positions of the records.
  """

  def __init__(self, index: RecordIndex) -> None:
    self._index, self._offsets = index, index.offsets()
    self._files: Dict[int, PositionedFile] = collections.OrderedDict()
    self._lock = threading.Lock()
    soft_limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    self._max_open_files = _MAX_OPEN_FILES if soft_limit == resource.RLIM_INFINITY else max(
        1, min(_MAX_OPEN_FILES, int(soft_limit * _OPEN_FILES_FRACTION)))

  def read(self, records: np.ndarray) -> List[bytes]:
    """Returns the data of records.

    Args:
      records: the indices of the records, int64 [n].

    Raises:
      OSError: a file cannot be read.
      BadExample: a record is damaged.
    """
    file_indices = np.searchsorted(self._index.first_records, records, 'right') - 1
    places = list(zip(map(self._open_file, file_indices.tolist()),
                      self._offsets[records].tolist(),
                      (self._index.lengths[records] + FOOTER_BYTES).tolist()))
    # The kernel reads all records in parallel while this function waits for the first one.
    for file, offset, count in places:
      file.request_readahead(offset, count)
    contents = [file.read(offset, count) for file, offset, count in places]
    return [self._check(record, content, count)
            for record, content, (_, _, count) in zip(records, contents, places)]

  def _check(self, record: int, content: bytes, count: int) -> bytes:
    """Returns the data of a record whose data and checksum have been read."""
    data = content[:-FOOTER_BYTES]
    if len(content) < count:
      reason = 'truncated'
    elif masked_checksum(data) != _unpack_checksum(content, len(data))[0]:
      reason = 'wrong checksum'
    else:
      return data
    raise BadExample(describe_record(*self._index.locate(record)), reason)

  def _open_file(self, file_index: int) -> PositionedFile:
    """Returns an open file. The files that were used least recently are closed."""
    with self._lock:
      file = self._files.pop(file_index, None)
      if file is None:
        if len(self._files) >= self._max_open_files:
          del self._files[next(iter(self._files))]
        file = PositionedFile(self._index.files[file_index])
      self._files[file_index] = file
    return file
