"""Training on TFRecord files, end to end, compared with the same images in files."""

import gzip
import json
import os
import zlib

import numpy as np
import pytest
from conftest import record_of, write_records
from test_training_modes import fails

# What takes long here is TensorFlow, and the same on any Python.
pytestmark = pytest.mark.slow

TINY = '--model=own_models:two_layers'


@pytest.fixture
def flags(image_records, tmp_path):
  return ['--dataset=tfrecord', '--train_pattern={}/train-*'.format(image_records),
          '--eval_pattern={}/test-*'.format(image_records), '--image_size=24,24',
          '--batch_size=6', TINY, '--model_dir={}'.format(tmp_path / 'model')]


def weights_of(model_dir):
  import tensorflow.compat.v1 as tf

  path = tf.train.latest_checkpoint(str(model_dir))
  return {name: tf.train.load_variable(path, name) for name, _ in tf.train.list_variables(path)}


def assert_same_weights(folder, other):
  first, second = weights_of(folder), weights_of(other)
  assert set(first) == set(second)
  for name, value in first.items():
    np.testing.assert_allclose(value, second[name], rtol=1e-5, atol=1e-6, err_msg=name)


def test_as_with_files(run_program, flags, image_folders, tmp_path):
  done = run_program('--train_epochs=2', '--class_weights=balanced', *flags)
  assert done.code == 0, done.err
  files = run_program(
      '--train_epochs=2', '--class_weights=balanced', '--dataset=image_folder',
      '--train_pattern={}/train/*/*.jpeg'.format(image_folders),
      '--eval_pattern={}/test/*/*.jpeg'.format(image_folders),
      *flags[3:-1] + ['--model_dir={}'.format(tmp_path / 'files')])
  assert files.code == 0, files.err
  for key in ('global_step', 'accuracy', 'average_loss', 'examples', 'train_loss'):
    assert done.result[key] == pytest.approx(files.result[key]), key
  assert_same_weights(tmp_path / 'model', tmp_path / 'files')
  assert (tmp_path / 'model' / 'labels.txt').read_text() == 'A\nB\n'
  again = run_program('--mode=evaluate', flags[0], *flags[2:])  # Without training records.
  assert again.result['average_loss'] == pytest.approx(done.result['average_loss'])


def test_interrupted_and_resumed(run_program, flags, tmp_path):
  straight = flags[:-1] + ['--model_dir={}'.format(tmp_path / 'straight')]
  assert run_program('--mode=train', '--train_steps=7', *straight).code == 0
  for steps in (3, 7):
    assert run_program('--mode=train', '--train_steps={}'.format(steps), *flags).code == 0
  assert_same_weights(tmp_path / 'model', tmp_path / 'straight')


def test_replicas(run_program, flags, tmp_path):
  assert run_program('--mode=train', '--train_steps=4', '--optimizer=sgd', *flags).code == 0
  two = flags[:-1] + ['--model_dir={}'.format(tmp_path / 'two'), '--num_cpu_replicas=2']
  assert run_program('--mode=train', '--train_steps=4', '--optimizer=sgd', *two).code == 0
  assert_same_weights(tmp_path / 'model', tmp_path / 'two')


@pytest.mark.parametrize('compression', ['GZIP', 'ZLIB'])
def test_compressed(run_program, flags, image_records, tmp_path, compression):
  compress = gzip.compress if compression == 'GZIP' else zlib.compress
  plain = flags[:-1] + ['--model_dir={}'.format(tmp_path / 'plain')]
  assert run_program('--train_steps=3', *plain).code == 0
  for path in image_records.glob('t*-of-*'):
    path.write_bytes(compress(path.read_bytes()))
  done = run_program('--train_steps=3', *flags)
  assert done.code == 0, done.err
  assert 'decompressing 7 TFRecord files into {}'.format(
      tmp_path / 'model' / 'decompressed') in done.err
  assert_same_weights(tmp_path / 'model', tmp_path / 'plain')
  again = run_program('--train_steps=4', *flags)
  assert again.code == 0 and 'decompressing' not in again.err
  (path,) = image_records.glob('train-00003*')
  path.write_bytes(path.read_bytes()[:-9])
  assert fails(run_program('--train_steps=5', *flags), 'a compressed TFRecord file is damaged: '
               '{} ('.format(path))


def test_cached(run_program, flags, tmp_path):
  done = run_program('--train_epochs=3', '--cache={}'.format(tmp_path / 'cache'), *flags)
  assert done.code == 0, done.err
  assert len(list((tmp_path / 'cache').glob('images-*.npy'))) == 1
  frozen = [flag for flag in flags if flag != TINY] + ['--model=own_models:frozen_first',
                                                       '--model_dir={}'.format(tmp_path / 'frozen')]
  done = run_program('--mode=train', '--train_steps=3', '--cache_features', *frozen)
  assert done.code == 0, done.err


def test_input_benchmark(run_program, flags):
  done = run_program('--mode=input_benchmark', *flags[:-1])
  assert done.code == 0, done.err
  assert list(done.result['stages']) == ['read', 'decode', 'resize', 'batch']
  assert done.result['verdict'] and done.result['cold_images_per_sec'] > 0


def test_predict(run_program, flags, image_records):
  assert run_program('--mode=train', '--train_steps=1', *flags).code == 0
  path = image_records / 'test-00000-of-00002'
  content = path.read_bytes()
  (image_records / 'cut').write_bytes(content[:-3])
  done = run_program('--mode=predict', '--input={}'.format(path), *flags)
  assert done.code == 0, done.err
  lines = [json.loads(line) for line in done.out.splitlines()]
  assert [line['file'] for line in lines[:-1]] == ['{}:{}'.format(path, index)
                                                   for index in range(5)]
  assert lines[-1]['predicted'] == 5
  cut = run_program('--mode=predict', '--input={}/cut'.format(image_records), *flags)
  assert cut.code == 2 and '1 bad file(s), the first is \'{}/cut:4\' (truncated)'.format(
      image_records) in cut.err
  errors = [json.loads(line).get('error') for line in cut.out.splitlines()[:5]]
  assert errors == 4 * [None] + ['truncated']


def test_bad_records(run_program, flags, image_records, tmp_path):
  image = (image_records.parent / 'data' / 'train' / 'A' / '0.jpeg').read_bytes()
  bad = image_records / 'train-00007-of-00008'
  write_records(bad, [b'\xff\xff', record_of(image, 0), record_of(b'text', 1)])
  cut = image_records / 'train-00000-of-00007'
  os.truncate(str(cut), cut.stat().st_size - 1)
  assert fails(run_program('--mode=train', '--train_steps=4', *flags),
               'a TFRecord file is damaged: {}: record 1 (truncated; the last '.format(cut))
  skipping = ['--on_bad_image=skip', '--max_bad_images=0.2']
  done = run_program('--train_epochs=1', *flags + skipping)
  assert done.code == 0, done.err
  assert [(entry['file'], entry['reason'].split(';')[0].split(',')[0])
          for entry in done.result['skipped_images']] == [
      ('{}: record 0'.format(bad), 'not a tf.train.Example'),
      ('{}: record 2'.format(bad), 'Expected image (JPEG'),
      ('{}: record 1'.format(cut), 'truncated')]
  audit = run_program('--mode=audit', *flags)
  assert audit.code == 0, audit.err
  findings = json.loads((tmp_path / 'model' / 'audit.json').read_text())['findings']
  assert {(found['file'], found['kind']) for found in findings
          if found['kind'] != 'duplicate'} == {
      ('{}: record 0'.format(bad), 'bad_record'), ('{}: record 2'.format(bad), 'not_an_image'),
      ('{}: record 1'.format(cut), 'bad_record')}
  os.remove(str(cut))
  assert fails(run_program('--mode=train', '--train_steps=8', *flags + [
      '--model_dir={}'.format(tmp_path / 'other')]),
               'an example cannot be read: {}: record 0 (not a tf.train.Example): '.format(bad))


@pytest.mark.parametrize('change, message', [
    (['--train_pattern=/none/*'], 'a pattern matches no file: --train_pattern=/none/* (there is no '
     '/none): correct the pattern'),
    (['--train_pattern='], '--train_pattern is required'),
    (['--train_pattern={folder}/data/train/*/*.jpeg', '--labels=A,B'],
     'a file does not start with a TFRecord: {folder}/data/train/A/0.jpeg: exclude'),
    (['--compression=gzip'], 'a compressed TFRecord file is damaged: {folder}/records/train-0000'),
    (['--train_pattern={folder}/empty', '--labels=A,B'], 'the TFRecord files have no records'),
    (['--train_pattern={folder}/records/labels.txt'], 'does not start with a TFRecord: '),
])
def test_what_cannot_be(run_program, flags, tmp_path, change, message):
  (tmp_path / 'empty').write_bytes(b'')
  done = run_program('--mode=train', '--train_steps=1',
                     *flags + [text.format(folder=tmp_path) for text in change])
  assert fails(done, message.format(folder=tmp_path))


def test_class_names(run_program, flags, image_records, tmp_path):
  (image_records / 'labels.txt').write_text('A\nA\n')
  assert fails(run_program('--train_steps=1', *flags),
               'labels.txt must have a different name in each line: {}'.format(image_records))
  (image_records / 'labels.txt').unlink()
  assert fails(run_program('--train_steps=1', *flags), 'the names of at least two classes are '
               'required: --dataset=tfrecord without --labels and without a labels.txt')
  assert run_program('--mode=train', '--train_steps=1', '--labels=B,A', *flags).code == 0
  evaluated = run_program('--mode=evaluate', *flags)  # With the class names of the run.
  assert evaluated.code == 0, evaluated.err


def test_an_empty_shard_is_reported(run_program, flags, image_records):
  (image_records / 'train-00008').write_bytes(b'')
  done = run_program('--mode=train', '--train_steps=1', *flags)
  assert done.code == 0 and '{}/train-00008 has no records'.format(image_records) in done.err


def test_the_published_input_pipeline(run_program, flags):
  done = run_program('--train_epochs=4', '--input_pipeline=published', *flags)
  assert done.code == 0 and done.result['examples_seen'] == 72, done.err
  again = run_program('--train_epochs=5', '--input_pipeline=published', *flags)
  assert again.code == 0 and 'starts another epoch instead of continuing' in again.err
  measured = run_program('--mode=input_benchmark', '--input_pipeline=published', *flags[:-1])
  assert measured.code == 0 and measured.result['stages'] == {}, measured.err
  assert fails(run_program('--train_steps=1', '--input_pipeline=published',
                           '--model_dir=' + flags[-1].partition('=')[2] + '_of_others'),
               '--input_pipeline=published requires image files or TFRecord files: '
               '--dataset=fashion_mnist_sample')
