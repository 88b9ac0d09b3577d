"""CIFAR: its archives are downloaded, read as published, and refused if they are damaged."""

import hashlib

import file_server
import numpy as np
import pytest
from generated_data import cifar10_files, cifar_archive

from estimator_train.data import cifar10, cifar100
from estimator_train.errors import UserError
from estimator_train.settings import Settings

IMAGES, FILES = cifar10_files(10)
ARCHIVE = cifar_archive(FILES)


def read(folder, archive, split='train'):
  if archive is not None:
    (folder / 'cifar-10-binary.tar.gz').write_bytes(archive)
  split = getattr(cifar10.describe_data_set(Settings(
      dataset='cifar10', data_dir=str(folder), model_dir='x', train_steps=1)), split)
  return split.read_files(split.files)


def test_what_is_read(tmp_path):
  """Of members in any order; the channels are last."""
  for archive in (ARCHIVE, cifar_archive(dict(reversed(list(FILES.items()))))):
    for split, expected in (('train', IMAGES[:5]), ('test', IMAGES[5:])):
      images, classes = read(tmp_path, archive, split)
      assert images.dtype == classes.dtype == np.uint8 and images.flags.c_contiguous
      np.testing.assert_array_equal(images, expected.reshape(-1, 32, 32, 3))
      assert classes.tolist() == list(range(10)) * len(expected)
  (published,) = cifar10.FILES
  assert published.md5 == 'c32a1d4ab5d03f1284b67883e8d87530' and len(cifar10.CLASS_NAMES) == 10


@pytest.mark.parametrize('archive, message', [
    (None, 'cannot be read: {} .No such file .*: remove it and download it again'),
    (ARCHIVE[:len(ARCHIVE) // 2], 'cannot be read: {} .*: remove it and download it again'),
    (cifar_archive({'other.bin': b''}), 'cifar-10-batches-bin/data_batch_1.bin'),
    (cifar_archive(dict(FILES, **{'data_batch_2.bin': bytes(3072)})), 'cannot reshape')],
    ids=range(4))
def test_archives_that_are_refused(tmp_path, archive, message):
  """That of a run is refused before, by its MD5 checksum."""
  with pytest.raises(UserError, match=message.format(tmp_path / 'cifar-10-binary.tar.gz')):
    read(tmp_path, archive)


def test_cifar100(tmp_path):
  """The class index is the second index of a record."""
  pixels = np.arange(3 * 3072).astype(np.uint8).reshape(3, 3072)
  records = np.column_stack([[4, 1, 14], [73, 9, 99], pixels]).astype(np.uint8)
  (tmp_path / 'cifar-100-binary.tar.gz').write_bytes(cifar_archive(
      {'train.bin': records[:2].tobytes(), 'test.bin': records[2:].tobytes()}, 'cifar-100-binary'))
  dataset = cifar100.describe_data_set(Settings(
      dataset='cifar100', data_dir=str(tmp_path), model_dir='x', train_steps=1))
  assert len(set(dataset.labels)) == 100 and dataset.name == 'cifar100'
  for split, expected, class_names in ((dataset.train, pixels[:2], ['shark', 'bottle']),
                                       (dataset.test, pixels[2:], ['worm'])):
    images, classes = split.read_files(split.files)
    np.testing.assert_array_equal(
        images, expected.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
    assert [dataset.labels[index] for index in classes] == class_names
  assert dataset.files[0].md5 == '03b5dce01913d631647c71ecec9e9cb8'


@pytest.mark.page
def test_a_run(run_well, run_program, monkeypatch, tmp_path):
  """Downloads, trains and evaluates; the page is written."""
  with file_server.running(monkeypatch) as server:
    server.answers['/cifar-10-binary.tar.gz'] = [file_server.ranged(ARCHIVE)]
    monkeypatch.setattr(cifar10, 'FILES', (cifar10.FILES[0]._replace(
        size=len(ARCHIVE), md5=hashlib.md5(ARCHIVE).hexdigest(),
        urls=(server.address + '/cifar-10-binary.tar.gz',)),))
    flags = ('--dataset=cifar10', '--model=own_models:two_layers', '--batch_size=20',
             '--data_dir', tmp_path / 'data', '--model_dir', tmp_path / 'run')
    run_well(*flags, '--train_steps=40', '--num_cpu_replicas=2')
    assert len(server.requests) == 1
    (tmp_path / 'data' / 'cifar-10-binary.tar.gz').write_bytes(ARCHIVE[:-1])
    done = run_program(*flags, '--train_steps=60')
    assert done.code == 2 and 'is not the published one' in done.err
  (tmp_path / 'data' / 'cifar-10-binary.tar.gz').write_bytes(ARCHIVE)
  assert run_well('--mode=evaluate', *flags).result['accuracy'] == 1
  page = (tmp_path / 'run' / 'report' / 'index.html').read_text()
  assert all(name in page for name in cifar10.CLASS_NAMES)
