"""Image folders as TFRecord files: contents, the second run, bad images, and interruptions."""

import os
import signal

import pytest
import tensorflow.compat.v1 as tf
from test_training_modes import fails

from estimator_train.inputs import record_writer

# What takes long here is TensorFlow, and the same on any Python.
pytestmark = pytest.mark.slow


@pytest.fixture
def flags(image_folders, tmp_path):
  return ['--mode=write_tfrecords', '--dataset=image_folder', '--num_shards=4',
          '--train_pattern={}/train/*/*.jpeg'.format(image_folders),
          '--eval_pattern={}/test/*/*.jpeg'.format(image_folders),
          '--output={}'.format(tmp_path / 'records')]


def contents_of(folder):
  return {path.name: path.read_bytes() for path in folder.iterdir()}


def examples_of(path):
  return [tf.train.Example.FromString(record).features.feature
          for record in tf.io.tf_record_iterator(str(path))]


def test_contents(run_program, flags, image_folders, tmp_path):
  done = run_program(*flags)
  assert done.code == 0, done.err
  folder = tmp_path / 'records'
  names = ['{}-0000{}-of-00004'.format(split, shard) for split in ('eval', 'train')
           for shard in range(4)]
  assert sorted(contents_of(folder)) == sorted(names + ['labels.txt', 'write_tfrecords.json'])
  assert (folder / 'labels.txt').read_text() == '0:A\n1:B\n'
  sizes = [len(examples_of(folder / name)) for name in names]
  assert sizes == [3, 3, 2, 2, 5, 5, 4, 4]
  assert done.result['splits']['train'] == {
      'examples': 18, 'shards': 4,
      'bytes': sum((folder / name).stat().st_size for name in names[4:])}
  found = [example for name in names[4:] for example in examples_of(folder / name)]
  files = {path.read_bytes(): path for path in (image_folders / 'train').glob('*/*.jpeg')}
  labels = []
  for example in found:
    path = files.pop(example['image/encoded'].bytes_list.value[0])  # The original bytes.
    label = 'AB'.index(path.parent.name)
    assert example['image/class/label'].int64_list.value == [label]
    assert example['image/class/text'].bytes_list.value == [path.parent.name.encode()]
    assert example['image/filename'].bytes_list.value == [path.name.encode()]
    assert example['image/channels'].int64_list.value == [1]
    labels.append(label)
  assert not files and labels != sorted(labels)  # Shuffled.


def test_training_reads_them_like_the_images(run_program, flags, image_folders, tmp_path):
  assert run_program(*flags).code == 0
  common = ['--image_size=24,24', '--batch_size=6', '--model=own_models:two_layers']
  done = run_program('--train_steps=2', '--dataset=tfrecord',
                     '--train_pattern={}/records/train-*'.format(tmp_path),
                     '--eval_pattern={}/records/eval-*'.format(tmp_path),
                     '--model_dir={}'.format(tmp_path / 'model'), *common)
  assert done.code == 0, done.err
  images = run_program('--mode=evaluate', '--dataset=image_folder',
                       '--eval_pattern={}/test/*/*.jpeg'.format(image_folders),
                       '--model_dir={}'.format(tmp_path / 'model'), *common)
  for key in ('accuracy', 'average_loss', 'examples'):
    assert images.result[key] == pytest.approx(done.result[key], rel=1e-6)


def test_equal_runs_write_equal_files(run_program, flags, tmp_path):
  assert run_program(*flags).code == 0
  first = contents_of(tmp_path / 'records')
  again = flags[:-1] + ['--output={}'.format(tmp_path / 'again')]
  assert run_program(*again).code == 0
  assert contents_of(tmp_path / 'again') == first
  other = flags[:-1] + ['--output={}'.format(tmp_path / 'other'), '--seed=2']
  assert run_program(*other).code == 0
  assert contents_of(tmp_path / 'other') != first


def test_an_interrupted_run_is_completed(run_program, flags, tmp_path, monkeypatch):
  assert run_program(*flags).code == 0
  folder = tmp_path / 'records'
  first = contents_of(folder)
  for path in folder.iterdir():
    path.unlink()
  frame, calls = record_writer.record_index.frame, []

  def interrupt(data):
    calls.append(data)
    if len(calls) == 12:
      os.kill(os.getpid(), signal.SIGTERM)
    return frame(data)

  monkeypatch.setattr(record_writer.record_index, 'frame', interrupt)
  assert run_program(*flags).code == 143
  left = contents_of(folder)
  assert 'train-00001-of-00004' in left and 'train-00002-of-00004' not in left
  assert not [name for name in left if name.endswith('.part')]
  done = run_program(*flags)
  assert done.code == 0 and 'keeping 2 complete files of an earlier run' in done.err
  assert contents_of(folder) == first
  assert run_program(*flags).code == 0 and contents_of(folder) == first


@pytest.mark.parametrize('change', ['--seed=9', '--num_shards=3', '--labels=B,A', 'files'])
def test_other_inputs_are_not_mixed(run_program, flags, image_folders, tmp_path, change):
  assert run_program(*flags).code == 0
  first = contents_of(tmp_path / 'records')
  if change == 'files':
    os.utime(str(image_folders / 'train' / 'A' / '0.jpeg'), ns=(1, 1))
  assert fails(run_program(*flags, *[] if change == 'files' else [change]),
               '--output has TFRecord files of other images, classes, seeds or shards: --output={}'
               .format(tmp_path / 'records'))
  assert contents_of(tmp_path / 'records') == first


def test_files_of_another_program(run_program, flags, tmp_path):
  (tmp_path / 'records').mkdir()
  (tmp_path / 'records' / 'train-00000-of-00001').write_text('mine')
  assert fails(run_program(*flags), '--output has TFRecord files of other images')


def test_bad_images(run_program, flags, image_folders, tmp_path):
  bad = image_folders / 'train' / 'A' / 'bad.jpeg'
  bad.write_text('this is no image')
  assert fails(run_program(*flags), 'an image cannot be decoded: {} ('.format(bad))
  flags[-1] = '--output={}'.format(tmp_path / 'skipping')
  done = run_program('--on_bad_image=skip', '--max_bad_images=0.1', *flags)
  assert done.code == 0, done.err
  assert [image['file'] for image in done.result['skipped_images']] == [str(bad)]
  assert done.result['splits']['train']['examples'] == 18


def test_a_full_disk(run_program, flags, mounted):
  folder = mounted('size=16k')
  done = run_program(*flags[:-1] + ['--output={}'.format(folder)])
  assert done.code == 2 and 'No space left on device' in done.err.splitlines()[-1], done.err
  assert 'Traceback' not in done.err
  assert not [path for path in folder.iterdir() if path.name.endswith('.part')]


@pytest.mark.parametrize('change, message', [
    (['--output=-'], '--mode=write_tfrecords requires --output'),
    (['--num_shards=19'], '--num_shards must not exceed the number of images: --num_shards=19 for '
     '18 training images'),
    (['--mode=train', '--train_steps=1', '--model_dir=x'],
     '--num_shards is only for --mode=write_tfrecords'),
])
def test_what_cannot_be(run_program, flags, change, message):
  assert fails(run_program(*flags + change), message)


def test_without_an_eval_pattern(run_program, flags, tmp_path):
  done = run_program(*flags[:2] + [flags[3], flags[-1]])
  assert done.code == 0, done.err
  assert {name: (split['examples'], split['shards'])
          for name, split in done.result['splits'].items()} == {'train': (18, 1)}


def test_a_data_set_of_other_files(run_program, tmp_path):
  done = run_program('--mode=write_tfrecords', '--output={}'.format(tmp_path / 'records'))
  assert fails(done, '--mode=write_tfrecords requires a data set of image files: '
               '--dataset=fashion_mnist_sample')
