"""Compressed TFRecord files: which data is read, and what ends in an error."""

import gzip
import os
import random
import zlib

import pytest

from estimator_train.data import tfrecord
from estimator_train.errors import UserError
from estimator_train.settings import Settings
from estimator_train.system.record_framing import frame_record

COUNT = 300
# Incompressible, so that the members straddle the blocks that are read.
RECORDS = b''.join(frame_record(bytes(random.Random(index).getrandbits(8) for _ in range(1000)))
                   for index in range(COUNT))
ZLIB = zlib.compress(RECORDS)


def members(*stops, between=b''):
  """Returns the records as gzip members that end at these positions, within records or not."""
  return between.join(gzip.compress(RECORDS[start:stop])
                      for start, stop in zip((0,) + stops, stops + (len(RECORDS),)))


def count_records(folder, content):
  (folder / 'train-0').write_bytes(content)
  return tfrecord.find_records(str(folder / 'train-*'), 'given', 'auto',
                             Settings(model_dir=str(folder / 'model'))).num_records


WHOLE = [  # One member and more, within records or not, and with padding.
    members(), members(1016 * 6), members(500, 70000), members(*range(3000, len(RECORDS), 3000)),
    gzip.compress(b'') + members(), members(1016, 5000, between=bytes(70000)), ZLIB + bytes(5)]
DAMAGED = [members(2000)[:-3], members() + b'\x1f\x8b', members() + b'\x1f\x8b\xff' * 9,
           members(2000) + bytes(9) + b'\x1f', ZLIB + b'more']


def test_all_records_are_read(tmp_path):
  for content in WHOLE:
    assert count_records(tmp_path, content) == COUNT


def test_what_cannot_be_read(tmp_path):
  (tmp_path / 'train-0').symlink_to('train-0')
  with pytest.raises(UserError, match='TFRecord file cannot be read: given .*symbolic links'):
    tfrecord.find_records(str(tmp_path / 'train-*'), 'given', 'auto', Settings())
  (tmp_path / 'train-0').unlink()
  os.mkfifo(str(tmp_path / 'train-0'))  # Opening it for reading would wait for a writer.
  with pytest.raises(UserError, match='TFRecord file cannot be read: given .*not a regular file'):
    tfrecord.find_records(str(tmp_path / 'train-*'), 'given', 'auto', Settings())


@pytest.mark.parametrize('content', DAMAGED, ids=['truncated', 'signature only', 'damaged member',
                                                  'padding and more', 'zlib and more'])
def test_damaged_files(tmp_path, content):
  with pytest.raises(UserError, match='a compressed TFRecord file is damaged: .*train-0 '):
    count_records(tmp_path, content)
  assert not list((tmp_path / 'model' / 'decompressed').iterdir())
