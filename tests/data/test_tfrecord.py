"""Compressed TFRecord files: which data is read, and what ends in an error."""

import gzip
import random
import zlib

import pytest

from estimator_train.data import tfrecord
from estimator_train.data.records import frame
from estimator_train.errors import UserError
from estimator_train.settings import Settings

COUNT = 300
# Incompressible, so that the members straddle the blocks that are read.
RECORDS = b''.join(frame(bytes(random.Random(index).getrandbits(8) for _ in range(1000)))
                   for index in range(COUNT))
ZLIB = zlib.compress(RECORDS)


def members(*stops, between=b''):
  """Returns the records as gzip members that end at these positions, within records or not."""
  return between.join(gzip.compress(RECORDS[start:stop])
                      for start, stop in zip((0,) + stops, stops + (len(RECORDS),)))


def count_records(folder, content):
  (folder / 'train-0').write_bytes(content)
  return tfrecord.load_index(str(folder / 'train-*'), 'given', 'auto',
                                 Settings(model_dir=str(folder / 'model'))).num_records


@pytest.mark.parametrize('content, is_warned', [
    (members(), False), (members(1016 * 6), False), (members(500, 70000), False),
    (members(*range(3000, len(RECORDS), 3000)), False), (gzip.compress(b'') + members(), False),
    (members() + gzip.compress(b''), False), (members(1016, 5000, between=bytes(70000)), False),
    (ZLIB, False), (ZLIB + bytes(5), False), (members(2000) + b'more', True),
    (members(2000) + b'x', True), (members(2000) + bytes(9) + b'\x1f', True),
], ids=['one', 'two', 'three', 'hundred', 'empty first', 'empty last', 'padded', 'zlib',
        'padded zlib', 'and text', 'and a byte', 'padded and a byte'])
def test_all_records_are_read(tmp_path, content, is_warned, caplog):
  assert count_records(tmp_path, content) == COUNT
  warnings = [record.getMessage() for record in caplog.records if record.levelname == 'WARNING']
  assert len(warnings) == is_warned and all(
      'train-0: ignoring data after the end of the compressed data' in text for text in warnings)


@pytest.mark.parametrize('content', [
    members(2000)[:-3], members() + b'\x1f\x8b', members() + b'\x1f\x8b\xff' * 9, ZLIB + ZLIB,
    ZLIB + b'more',
], ids=['truncated', 'signature only', 'damaged member', 'two zlib streams', 'zlib and more'])
def test_damaged_files(tmp_path, content):
  with pytest.raises(UserError, match='a compressed TFRecord file is damaged: .*train-0 '):
    count_records(tmp_path, content)
  assert not list((tmp_path / 'model' / 'decompressed').iterdir())
