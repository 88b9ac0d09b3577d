"""CIFAR-10: its archive is downloaded, read as published, and refused if it is damaged."""

import gzip
import hashlib
import json
import tracemalloc
import zlib

import file_server
import numpy as np
import pytest
from generated_data import cifar10_archive, cifar10_files, cifar10_records
from PIL import Image

from estimator_train.data import cifar10
from estimator_train.errors import UserError
from estimator_train.settings import Settings

PER_FILE = 10
FILES = cifar10_files(PER_FILE)
ARCHIVE = cifar10_archive(FILES)


def read(folder, archive, split='train'):
  if archive is not None:
    (folder / 'cifar-10-binary.tar.gz').write_bytes(archive)
  dataset = cifar10.describe(Settings(dataset='cifar10', data_dir=str(folder), model_dir='x',
                                      train_steps=1))
  split = getattr(dataset, split)
  return split.read(split.files)


def test_what_is_read(tmp_path):
  """Of members in any order; the channels are last."""
  expected = [cifar10_records(PER_FILE, seed)[:2] for seed in range(6)]
  for archive in (ARCHIVE, cifar10_archive(dict(reversed(list(FILES.items()))))):
    for split, files in (('train', expected[:5]), ('test', expected[5:])):
      images, classes = read(tmp_path, archive, split)
      assert images.dtype == classes.dtype == np.uint8 and images.flags.c_contiguous
      np.testing.assert_array_equal(images, np.concatenate([pixels for pixels, _ in files]))
      assert classes.tolist() == list(range(10)) * len(files)
  (published,) = cifar10.FILES
  assert published.md5 == 'c32a1d4ab5d03f1284b67883e8d87530' and len(cifar10.CLASS_NAMES) == 10


UNPACKED = gzip.decompress(ARCHIVE)
SIZE = UNPACKED.index(b'data_batch_1.bin') - len('cifar-10-batches-bin/') + 124  # Of the header.


def with_size(size):
  """Changes the size that the header of the first batch states."""
  header = bytearray(UNPACKED[SIZE - 124:SIZE + 388])
  header[124:136] = size
  header[148:156] = b' ' * 8
  header[148:156] = b'%06o\0 ' % sum(header)
  return gzip.compress(UNPACKED[:SIZE - 124] + bytes(header) + UNPACKED[SIZE + 388:])


def without(name):
  return {other: content for other, content in FILES.items() if other != name}


@pytest.mark.parametrize('archive, message', [
    (None, 'a data file does not exist: {}: download it'),
    (b'', 'there is no cifar-10-batches-bin/data_batch_1.bin'),
    (b'<html>', 'cannot be read: {} .*: remove it and download it again'),
    (UNPACKED, 'Not a gzipped file'),
    (ARCHIVE[:-9], 'ended before'), (ARCHIVE[:len(ARCHIVE) // 2], 'ended before'),
    (ARCHIVE[:5000] + bytes([ARCHIVE[5000] ^ 255]) + ARCHIVE[5001:], 'cannot be read'),
    (ARCHIVE[:-8] + bytes(8), 'CRC check failed'),
    (gzip.compress(UNPACKED[:20000]), 'truncated within .cifar-10-batches-bin/data_batch_1.bin'),
    (gzip.compress(UNPACKED[:1000]), 'header'), (gzip.compress(b'text' * 500), 'header'),
    (cifar10_archive(without('data_batch_3.bin')), 'no cifar-10-batches-bin/data_batch_3.bin'),
    (cifar10_archive({'../' + name: data for name, data in FILES.items()}), 'there is no'),
    (cifar10_archive(dict(FILES, **{'data_batch_2.bin': bytes(3072)})), '_2.bin has 3072 bytes'),
    (gzip.compress(UNPACKED + UNPACKED), 'data_batch_1.bin .* or is there twice'),
    (with_size(b'%011o\0' % 30730001), 'data_batch_1.bin. has 30,730,001 bytes'),
    (with_size(b'\xff' * 12), 'data_batch_1.bin. has -1 bytes'),
    (with_size(b'%011o\0' % (2 ** 32)), 'has 4,294,967,296 bytes'),
    (with_size(b'%011o\0' % 3073), 'header')],
    ids=lambda value: value if isinstance(value, str) else '')
def test_archives_that_are_refused(tmp_path, archive, message):
  path = tmp_path / 'cifar-10-binary.tar.gz'
  with pytest.raises(UserError, match=message.format(path)) as caught:
    read(tmp_path, archive)
  assert '\n' not in str(caught.value) and len(list(tmp_path.iterdir())) == (archive is not None)


def test_bomb(tmp_path):
  """Zeros without an end, in a thousandth of the size."""
  packer = zlib.compressobj(1, zlib.DEFLATED, zlib.MAX_WBITS | 16)
  bomb = b''.join(packer.compress(bytes(1 << 20)) for _ in range(300)) + packer.flush()
  tracemalloc.start()
  try:
    with pytest.raises(UserError, match='it has more than 268,435,456 bytes'):
      read(tmp_path, bomb)
    assert tracemalloc.get_traced_memory()[1] < 5e6
  finally:
    tracemalloc.stop()


@pytest.mark.page
def test_a_run(run_well, run_program, monkeypatch, tmp_path):
  """Downloads, trains, resumes, evaluates, and predicts; the page is written."""
  with file_server.running(monkeypatch) as server:
    server.answers['/cifar-10-binary.tar.gz'] = [file_server.ranged(ARCHIVE)]
    monkeypatch.setattr(cifar10, 'FILES', (cifar10.FILES[0]._replace(
        size=len(ARCHIVE), md5=hashlib.md5(ARCHIVE).hexdigest(),
        urls=(server.address + '/cifar-10-binary.tar.gz',)),))
    flags = ('--dataset=cifar10', '--model=own_models:two_layers', '--batch_size=20',
             '--data_dir', tmp_path / 'data', '--model_dir', tmp_path / 'run')
    trained = run_well(*flags, '--train_steps=20', '--num_cpu_replicas=2').result
    assert run_well(*flags, '--train_steps=40', '--cache=memory').result['global_step'] == 40
    assert len(server.requests) == 1 and trained['global_step'] == 20
    (tmp_path / 'data' / 'cifar-10-binary.tar.gz').write_bytes(ARCHIVE[:-1])
    done = run_program(*flags, '--train_steps=60')
    assert done.code == 2 and 'is not the published one' in done.err
  (tmp_path / 'data' / 'cifar-10-binary.tar.gz').write_bytes(ARCHIVE)
  assert run_well('--mode=evaluate', *flags).result['accuracy'] == 1
  page = (tmp_path / 'run' / 'report' / 'index.html').read_text()
  assert all(name in page for name in cifar10.CLASS_NAMES)
  images, classes, _ = cifar10_records(PER_FILE, 5)
  for index, image in enumerate(images):
    Image.fromarray(image).save(str(tmp_path / '{}.png'.format(index)))
  run_well('--mode=predict', *flags, '--input', tmp_path / '*.png', '--output', tmp_path / 'out')
  found = [json.loads(line)['label'] for line in (tmp_path / 'out').read_text().splitlines()]
  assert found == [cifar10.CLASS_NAMES[label] for label in classes]
