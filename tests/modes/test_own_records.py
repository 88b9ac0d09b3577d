"""Training on records and datasets that functions of the user parse, end to end."""

import json

import own_records
import pytest
import tensorflow.compat.v1 as tf
from conftest import write_records
from test_tfrecords import assert_same_weights
from test_training_modes import fails

# What takes long here is TensorFlow, and the same on any Python.
pytestmark = pytest.mark.slow


@pytest.fixture
def flags(tmp_path, monkeypatch):
  def record(number):
    pixels = bytes([100 * (number % 2) + number]) * 36
    return tf.train.Example(features=tf.train.Features(feature={
        'pixels': tf.train.Feature(bytes_list=tf.train.BytesList(value=[pixels])),
        'label': tf.train.Feature(int64_list=tf.train.Int64List(value=[number % 2])),
    })).SerializeToString()

  for shard in range(2):
    write_records(tmp_path / 'data' / '{}-of-2'.format(shard),
                  map(record, range(10 * shard, 10 * shard + 10)))
  monkeypatch.setenv(own_records.FOLDER_VARIABLE, str(tmp_path / 'data'))
  return ['--model=own_models:two_layers', '--batch_size=4',
          '--model_dir={}'.format(tmp_path / 'model')]


@pytest.mark.parametrize('dataset', ['records', 'examples'])
def test_train_resume_and_replicas(run_program, flags, tmp_path, dataset):
  flags.append('--dataset=own_records:' + dataset)
  done = run_program('--train_epochs=3', *flags)
  assert done.code == 0, done.err
  assert done.result['global_step'] == 15 and done.result['examples'] == 20
  for steps in (4, 15):
    resumed = run_program('--train_steps={}'.format(steps), *flags + [
        '--model_dir={}'.format(tmp_path / 'resumed'), '--num_cpu_replicas=2'])
    assert resumed.code == 0, resumed.err
  assert resumed.result['average_loss'] == pytest.approx(done.result['average_loss'], rel=1e-3)
  cached = run_program('--mode=train', '--train_epochs=3', '--cache=memory', *flags + [
      '--model_dir={}'.format(tmp_path / 'cached')])
  assert cached.code == 0, cached.err
  assert_same_weights(tmp_path / 'cached', tmp_path / 'model')
  benchmark = run_program('--mode=input_benchmark', *flags)
  assert benchmark.code == 0 and list(benchmark.result['stages']) == {
      'records': ['read', 'batch'], 'examples': []}[dataset], benchmark.err


@pytest.mark.parametrize('dataset', ['records', 'examples'])
def test_class_weights(run_program, flags, dataset):
  done = run_program('--mode=train', '--train_steps=2', '--class_weights=balanced', *flags
                     + ['--dataset=own_records:' + dataset])
  assert done.code == 0, done.err


def test_cached_features(run_program, flags):
  done = run_program('--mode=train', '--train_steps=2', '--cache_features', *flags[1:]
                     + ['--dataset=own_records:records', '--model=own_models:frozen_first'])
  assert done.code == 0, done.err


def test_weights(run_program, flags, tmp_path):
  """Only the dark examples count."""
  done = run_program('--train_epochs=60', '--learning_rate=0.01', *flags
                     + ['--dataset=own_records:weighted_examples'])
  assert done.code == 0, done.err
  report = json.loads((tmp_path / 'model' / 'evaluation.json').read_text())
  assert report['confusion_matrix'] == [[10, 0], [10, 0]] and report['average_loss'] < 0.1
  counts = json.loads((tmp_path / 'model' / 'example_counts.json').read_text())
  assert counts['own_records.weighted'] == 20


def test_the_standard_schema(run_program, flags, image_records, monkeypatch):
  monkeypatch.setenv(own_records.FOLDER_VARIABLE, str(image_records))
  done = run_program('--train_steps=2', *flags + ['--dataset=own_records:standard_records'])
  assert done.code == 0 and done.result['examples'] == 18, done.err


@pytest.mark.parametrize('change, message', [
    (['--cache=/tmp/x'], 'only image files can be cached in a folder'),
    (['--input_pipeline=published'], '--input_pipeline=published requires image files or TFRecord'),
    (['--dataset=own_records:examples', '--cache_features', '--model=own_models:frozen_first'],
     '--cache_features requires data whose changes are noticed: --dataset=own_records:examples'),
])
def test_what_cannot_be(run_program, flags, change, message):
  assert fails(run_program('--mode=train', '--train_steps=1', *flags
                           + ['--dataset=own_records:records'] + change), message)
