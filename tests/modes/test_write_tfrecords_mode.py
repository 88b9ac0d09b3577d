"""Image folders as TFRecord files: contents, the second run, bad images, and interruptions."""

import os
import signal

import pytest
import tensorflow.compat.v1 as tf
from conftest import contents_of
from mode_runs import fails, image_flags, signal_before

from estimator_train.modes import write_tfrecords


@pytest.fixture
def write(run_program, image_folders, tmp_path):
  """Writes four shards into the folder `records`, unless more flags replace these."""
  def run(*more, data=None):
    if data is None:
      data = [*image_flags(image_folders), '--num_shards=4']
    return run_program('--mode=write_tfrecords', '--output={}'.format(tmp_path / 'records'), *data,
                       *more)

  return run


def examples_of(path):
  return [tf.train.Example.FromString(record).features.feature
          for record in tf.io.tf_record_iterator(str(path))]


def test_contents_without_a_bad_image(write, image_folders, tmp_path):
  bad = image_folders / 'train' / 'A' / 'bad.jpeg'
  bad.write_text('this is no image')
  assert fails(write('--output={}'.format(tmp_path / 'failed')),
               'an image cannot be decoded: {} ('.format(bad))
  done = write('--on_bad_image=skip', '--max_bad_images=0.1')
  assert done.code == 0, done.err
  assert [image['file'] for image in done.result['skipped_images']] == [str(bad)]
  assert '\n  skipped     1 bad image\n' in done.err
  bad.unlink()
  folder = tmp_path / 'records'
  names = ['{}-0000{}-of-00004'.format(split, shard) for split in ('eval', 'train')
           for shard in range(4)]
  assert set(contents_of(folder)) == {
      'labels.txt', 'skipped_images.json', 'write_tfrecords.json', *names}
  assert (folder / 'labels.txt').read_text() == '0:A\n1:B\n'
  examples = [examples_of(folder / name) for name in names]
  assert [len(some) for some in examples] == [3, 3, 2, 2, 5, 5, 4, 4]
  assert done.result['splits']['train'] == {
      'examples': 18, 'shards': 4,
      'bytes': sum((folder / name).stat().st_size for name in names[4:])}
  files = {path.read_bytes(): path for path in (image_folders / 'train').glob('*/*.jpeg')}
  labels = []
  for example in sum(examples[4:], []):
    path = files.pop(example['image/encoded'].bytes_list.value[0])  # The original bytes.
    label = 'AB'.index(path.parent.name)
    assert example['image/class/label'].int64_list.value == [label]
    assert example['image/class/text'].bytes_list.value == [path.parent.name.encode()]
    assert example['image/filename'].bytes_list.value == [path.name.encode()]
    assert example['image/channels'].int64_list.value == [1]
    labels.append(label)
  assert not files and labels != sorted(labels)  # Shuffled.
  done = write('--output={}'.format(tmp_path / 'few'), data=image_flags(image_folders)[:2])
  assert {name: (split['examples'], split['shards'])
          for name, split in done.result['splits'].items()} == {'train': (18, 1)}


def test_an_interrupted_run_is_completed_and_others_are_not_mixed(write, image_folders, tmp_path,
                                                                  monkeypatch):
  folder = tmp_path / 'records'
  done = write('--output={}'.format(tmp_path / 'first'))
  assert done.code == 0 and 'keeping' not in done.err
  first = contents_of(tmp_path / 'first')
  signal_before(monkeypatch, write_tfrecords.record_framing, 'frame_record', signal.SIGTERM, at=12)
  assert write().code == 143
  left = contents_of(folder)
  assert 'train-00001-of-00004' in left and 'train-00002-of-00004' not in left
  assert not [name for name in left if name.endswith('.part')]
  done = write()
  assert done.code == 0 and 'keeping 2 complete files of an earlier run' in done.err
  assert contents_of(folder) == first
  assert write().code == 0 and contents_of(folder) == first
  for name, content in (('train-00000-of-00004', b''), ('train-00001-of-00004', first[
      'train-00001-of-00004'][:-9]), ('train-00003-of-00004', first['eval-00000-of-00004'])):
    (folder / name).write_bytes(content)
  done = write()
  assert done.code == 0 and 'keeping 1 complete files' in done.err
  assert 'differ from their records in write_tfrecords.json: {}, '.format(
      folder / 'train-00000-of-00004') in done.err
  assert contents_of(folder) == first
  (folder / 'write_tfrecords.json').write_text('{"digest": 5}')
  assert fails(write(), 'a file in --output is damaged: {} ('.format(
      folder / 'write_tfrecords.json'))
  (folder / 'write_tfrecords.json').write_bytes(first['write_tfrecords.json'])
  mixed = ('--output must not have TFRecord files of other images, class names, --seed or '
           '--num_shards: --output={}')
  for change in ('--seed=9', '--num_shards=3', '--labels=B,A'):
    assert fails(write(change), mixed.format(folder))
  os.utime(str(image_folders / 'train' / 'A' / '0.jpeg'), ns=(1, 1))
  assert fails(write(), mixed.format(folder))
  assert contents_of(folder) == first
  (tmp_path / 'mine').mkdir()
  (tmp_path / 'mine' / 'train-00000-of-00001').write_text('of another program')
  assert fails(write('--output={}'.format(tmp_path / 'mine')), mixed.format(tmp_path / 'mine'))


def test_what_cannot_be(write):
  for change, message in (
      (['--output=-'], '--mode=write_tfrecords requires --output'),
      (['--num_shards=19'], 'exceed the number of images: --num_shards=19 for 18 training images')):
    assert fails(write(*change), message)
  assert fails(write(data=()), '--mode=write_tfrecords requires a data set of image files or of '
               'images in TFRecords: --dataset=fashion_mnist_sample')
