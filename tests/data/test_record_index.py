"""Where the records of files are: found without reading them, and damage noticed."""

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from conftest import write_records

from estimator_train.data import record_index as records_lib
from estimator_train.data.record_index import RecordReader

# Of three files, the second of which is empty: an empty record, small ones, and large ones.
LENGTHS = [[0, 1, 7, 5000, 3, 70000], [], [12] * 40 + [9000] * 20 + [1]]
CONTENTS = [[os.urandom(length) for length in of_file] for of_file in LENGTHS]
FLAT = CONTENTS[0] + CONTENTS[2]


@pytest.fixture
def files(tmp_path):
  paths = [tmp_path / 'records "{}"'.format(index) for index in range(len(CONTENTS))]
  for path, records in zip(paths, CONTENTS):
    write_records(path, records)
  return tuple(map(bytes, paths))


def test_records_are_those_of_tensorflow(files, tmp_path, monkeypatch):
  assert [record for path in files
          for record in tf.io.tf_record_iterator(os.fsdecode(path))] == FLAT
  for block_bytes, max_small_bytes in ((12, 0), (13, 10), (100, 1 << 12), (1 << 20, 1 << 12)):
    monkeypatch.setattr(records_lib, '_BLOCK_BYTES', block_bytes)
    monkeypatch.setattr(records_lib, '_MAX_SMALL_BYTES', max_small_bytes)
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / str(block_bytes)))
    index = records_lib.load_or_scan_index(files)
    assert index.lengths.tolist() == list(map(len, FLAT)) and index.damages == ()
  for order in (np.arange(67), np.random.RandomState(1).permutation(67)):
    assert RecordReader(index).read(order) == [FLAT[position] for position in order]
  assert [index.locate_record(record) for record in (0, 5, 6, 66)] == [
      (files[0], 0), (files[0], 5), (files[2], 0), (files[2], 60)]


def test_files_by_url(files):
  index = records_lib.load_or_scan_index(tuple(b'file://' + path for path in files))
  assert RecordReader(index).read(np.array([5, 0, 6])) == [FLAT[5], FLAT[0], FLAT[6]]
  with pytest.raises(OSError, match='No such file'):
    records_lib.load_or_scan_index((b'file:///missing/file',))


def test_the_cache_is_bounded_and_not_needed(files, tmp_path, monkeypatch):
  cache = tmp_path / 'cache'
  monkeypatch.setenv('XDG_CACHE_HOME', str(cache))
  monkeypatch.setattr(records_lib, '_MAX_CACHED_INDICES', 3)
  for number in range(5):
    write_records(tmp_path / str(number), [b'any'])
    records_lib.load_or_scan_index((bytes(tmp_path / str(number)),))
  assert len(list((cache / 'estimator_train' / 'record_index').iterdir())) == 3
  monkeypatch.setenv('XDG_CACHE_HOME', os.fsdecode(files[0]))  # No folder.
  assert records_lib.load_or_scan_index(files).num_records == 67


def test_a_truncated_file(files):
  """The last record of the file has 70,016 bytes with its length and checksums."""
  whole, lost_before = RecordReader(records_lib.load_or_scan_index(files)), 0
  for lost in (1, 4, 5, 70000, 70004, 70005, 70015):
    os.truncate(files[0], os.path.getsize(files[0]) - (lost - lost_before))
    lost_before = lost
    with pytest.raises(ValueError, match=r'records "0": record 5 \(truncated\)'):
      whole.read(np.array([5]))
    index = records_lib.load_or_scan_index(files)
    assert index.num_records == 66 and index.locate_record(5) == (files[2], 0)
    assert index.damages == (records_lib.FileDamage(0, 5, 'truncated', 70016 - lost),)


def test_damaged_bytes_are_named(files):
  def write(offset, data):
    with open(files[2], 'rb+') as file:
      file.seek(offset)
      file.write(data)

  write(28 + 12 + 3, b'\xff\xfe')  # The data of the second record, which has 12 bytes.
  reader = RecordReader(records_lib.load_or_scan_index(files))
  assert len(reader.read(np.array([6, 8]))) == 2
  with pytest.raises(ValueError, match=r'records "2": record 1 \(wrong checksum\)'):
    reader.read(np.array([6, 7]))
  write(28, b'\x0d')  # Its length.
  index = records_lib.load_or_scan_index(files)
  (damage,) = index.damages
  assert index.num_records == 7 and damage[:3] == (2, 1, 'wrong checksum of the length')


def test_few_files_are_open(tmp_path, monkeypatch):
  """As many shards as a process may open files, and more; read by several threads."""
  for number in range(200):
    write_records(tmp_path / '{:03d}'.format(number), [b'%d' % number])
  before = len(os.listdir('/proc/self/fd'))
  monkeypatch.setattr(records_lib, '_MAX_OPEN_FILES', 8)
  paths = tuple(map(bytes, sorted(tmp_path.glob('???'))))
  reader = RecordReader(records_lib.load_or_scan_index(paths))
  numbers = np.random.RandomState(1).permutation(200)
  with ThreadPoolExecutor(4) as threads:
    records = list(threads.map(lambda number: reader.read(np.array([number]))[0], numbers))
  assert records == [b'%d' % number for number in numbers]
  assert len(os.listdir('/proc/self/fd')) <= before + 8
