"""Compressed TFRecord files: which data is read, and what ends in an error."""

import gzip
import random
import zlib

import pytest

from estimator_train.datasets import record_files
from estimator_train.datasets.record_index import frame
from estimator_train.errors import UserError
from estimator_train.settings import Settings

COUNT = 300
# Incompressible, so that the members straddle the blocks that are read.
RECORDS = b''.join(frame(bytes(random.Random(index).getrandbits(8) for _ in range(1000)))
                   for index in range(COUNT))


def members(*stops):
  """Returns the records as gzip members that end at these positions, within records or not."""
  return [gzip.compress(RECORDS[start:stop])
          for start, stop in zip((0,) + stops, stops + (len(RECORDS),))]


def count_records(folder, content, **given):
  (folder / 'train-0').write_bytes(content)
  return record_files.load_index(str(folder / 'train-*'), 'given', given.pop('compression', 'auto'),
                                 Settings(model_dir=str(folder / 'model'))).num_records


@pytest.mark.parametrize('content', [
    b''.join(members()), b''.join(members(1016 * 6)), b''.join(members(500, 70000)),
    b''.join(members(*range(3000, len(RECORDS), 3000))), gzip.compress(b'') + members()[0],
    members()[0] + gzip.compress(b''), bytes(70000).join(members(1016, 5000)),
    zlib.compress(RECORDS), zlib.compress(RECORDS) + bytes(5),
], ids=['one', 'two', 'three', 'hundred', 'empty first', 'empty last', 'padded', 'zlib',
        'padded zlib'])
def test_all_records_are_read(tmp_path, content, caplog):
  assert count_records(tmp_path, content) == COUNT
  assert not [record for record in caplog.records if record.levelname == 'WARNING']


@pytest.mark.parametrize('rest', [b'more', b'x', bytes(9) + b'\x1f'])
def test_other_data_after_the_last_member_is_ignored(tmp_path, rest, caplog):
  assert count_records(tmp_path, b''.join(members(2000)) + rest) == COUNT
  assert 'train-0: ignoring data after the end of the compressed data' in caplog.text


@pytest.mark.parametrize('content', [
    b''.join(members(2000))[:-3], members()[0] + b'\x1f\x8b', members()[0] + b'\x1f\x8b\xff' * 9,
    zlib.compress(RECORDS) + zlib.compress(RECORDS), zlib.compress(RECORDS) + b'more',
], ids=['truncated', 'signature only', 'damaged member', 'two zlib streams', 'zlib and more'])
def test_damaged_files(tmp_path, content):
  with pytest.raises(UserError, match='a compressed TFRecord file is damaged: .*train-0 '):
    count_records(tmp_path, content)
  assert not list((tmp_path / 'model' / 'decompressed').iterdir())
