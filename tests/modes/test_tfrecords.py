"""Training on TFRecord files, end to end; the ImageNet recipe, which reads them."""

import gzip
import json
import os

import numpy as np
import pytest
from conftest import ROOT, record_of, write_records
from mode_runs import fails, image_flags, measure_shortly
from training_runs import assert_same_weights, variables

from estimator_train.data import Role, datasets
from estimator_train.data.opening import make_source
from estimator_train.settings import command_line

TINY = '--model=own_models:two_layers'


@pytest.fixture
def flags(image_records, tmp_path):
  return ['--dataset=tfrecord', '--train_pattern={}/train-*'.format(image_records),
          '--eval_pattern={}/test-*'.format(image_records), '--image_size=24,24',
          '--batch_size=6', TINY, '--model_dir={}'.format(tmp_path / 'model')]


@pytest.fixture
def run(run_well, flags):
  """Runs the program with those flags, and with more that win; it must succeed."""
  return lambda *more: run_well(*flags, *more)


@pytest.fixture
def refuse(run_program, flags):
  """Runs the program with those flags and more; it must fail with a message."""
  return lambda message, *more: fails(run_program(*flags, *more), message)


def test_as_with_files(run, run_program, flags, image_records, image_folders, tmp_path):
  """From compressed records for training, with an empty file among them."""
  for path in image_records.glob('train-*'):
    path.write_bytes(gzip.compress(path.read_bytes()))
  (image_records / 'train-00008').write_bytes(b'')
  common = ['--train_epochs=2', '--class_weights=balanced']
  done = run(*common)
  assert '{}/train-00008 has no records'.format(image_records) in done.err
  assert 'decompressing 7 TFRecord files into {}/model/dec'.format(tmp_path) in done.err
  files = run(*common, *image_flags(image_folders), '--model_dir={}'.format(tmp_path / 'files'))
  for key in ('global_step', 'accuracy', 'average_loss', 'examples', 'train_loss'):
    assert done.result[key] == pytest.approx(files.result[key]), key
  assert_same_weights(tmp_path / 'model', tmp_path / 'files')
  assert (tmp_path / 'model' / 'labels.txt').read_text() == 'A\nB\n'
  again = run_program('--mode=evaluate', flags[0], *flags[2:])  # Without training records.
  assert again.result['average_loss'] == pytest.approx(done.result['average_loss'])
  assert 'decompressing' not in run('--mode=train', '--train_steps=7').err
  run('--mode=train', '--train_steps=3', '--cache_features', '--model=own_models:frozen_first',
      '--model_dir={}'.format(tmp_path / 'frozen'))


def test_a_part_of_the_records_is_for_validation(run_well, run_program, image_records, tmp_path):
  (image_records / 'below').mkdir()
  for path in image_records.glob('test-*'):
    path.rename(image_records / 'below' / path.name)
  flags = ['--dataset=tfrecord', '--train_pattern={}'.format(image_records), TINY,
           '--validation_fraction=.3', '--image_size=24,24', '--batch_size=4',
           '--model_dir={}'.format(tmp_path / 'model')]
  done = run_well('--train_epochs=1', '--class_weights=balanced', *flags)
  assert 0 < done.result['examples'] < 14
  again = run_program('--mode=evaluate', '--model_dir={}'.format(tmp_path / 'model'))
  assert again.result['average_loss'] == pytest.approx(done.result['average_loss'])
  dataset = datasets.describe_data_set(command_line.parse(['--train_epochs=1', *flags]))
  train, test = (make_source(split, dataset.spec, role) for split, role in (
      (dataset.train, Role.TRAIN), (dataset.test, Role.TEST)))
  names = [source.image_name(index) for source in (train, test) for index in range(len(source))]
  assert len(test) == done.result['examples'] and len(set(names)) == len(names) == 28
  assert train.files_fingerprint() != test.files_fingerprint()
  assert fails(run_program('--train_steps=9', *flags, '--input_pipeline=published'),
               '--input_pipeline=published does not support --validation_fraction of TFRecord')


def test_bad_records(run, run_program, refuse, flags, image_records, tmp_path):
  image = (image_records.parent / 'data' / 'train' / 'A' / '0.jpeg').read_bytes()
  bad = image_records / 'train-00007-of-00008'
  write_records(bad, [b'\xff\xff', record_of(image, 0), record_of(b'text', 1)])
  cut = image_records / 'train-00000-of-00007'
  os.truncate(str(cut), cut.stat().st_size - 1)
  done = run('--train_epochs=1', '--on_bad_image=skip', '--max_bad_images=0.2')
  assert [(entry['file'], entry['reason'].split(';')[0].split(',')[0])
          for entry in done.result['skipped_images']] == [
      ('{}: record 0'.format(bad), 'not a tf.train.Example'),
      ('{}: record 2'.format(bad), 'Expected image (JPEG'),
      ('{}: record 1'.format(cut), 'truncated')]
  run('--mode=audit')
  findings = json.loads((tmp_path / 'model' / 'audit.json').read_text())['findings']
  assert {(found['file'], found['kind']) for found in findings
          if found['kind'] != 'duplicate'} == {
      ('{}: record 0'.format(bad), 'bad_record'), ('{}: record 2'.format(bad), 'not_an_image'),
      ('{}: record 1'.format(cut), 'bad_record')}
  done = run_program(*flags, '--mode=predict',
                     '--input={}/train-0000[07]-*'.format(image_records))
  *lines, last = map(json.loads, done.out.splitlines())
  assert [(line['file'], 'error' in line) for line in lines] == [
      ('{}:0'.format(cut), False), ('{}:1'.format(cut), True), ('{}:0'.format(bad), True),
      ('{}:1'.format(bad), False), ('{}:2'.format(bad), True)]
  assert last['predicted'] == 2 and done.code == 2
  assert "3 bad inputs, the first is '{}:1' (truncated)".format(cut) in done.err
  cut.unlink()
  refuse('an example cannot be read: {}: record 0 (not a tf.train.Example): '.format(bad),
         '--mode=train', '--train_steps=8', '--model_dir={}'.format(tmp_path / 'other'))


def test_what_cannot_be(run, refuse, image_records, tmp_path):
  (tmp_path / 'empty').write_bytes(b'')
  for change, message in (
      (['--train_pattern=/none/*'], '--train_pattern=/none/* (there is no /none): correct the pat'),
      (['--train_pattern={}/data/train/*/*.jpeg', '--labels=A,B'],
       'a file does not start with a TFRecord: {}/data/train/A/0.jpeg: exclude'),
      (['--compression=gzip'], 'a compressed TFRecord file is damaged: {}/records/train-0000'),
      (['--train_pattern={}/empty', '--labels=A,B'], 'the TFRecord files have no records')):
    refuse(message.format(tmp_path), '--mode=train', '--train_steps=1',
           *[text.format(tmp_path) for text in change])
  (image_records / 'labels.txt').unlink()
  refuse('the names of at least two classes are required: --dataset=tfrecord without --labels and '
         'without a labels.txt', '--train_steps=1')
  run('--mode=train', '--train_steps=1', '--labels=B,A')
  run('--mode=evaluate')  # With the class names of the run.


def test_the_published_input_pipeline_and_the_input_benchmark(run, monkeypatch):
  measure_shortly(monkeypatch)
  published = '--input_pipeline=published'
  assert run('--train_epochs=4', published).result['examples_seen'] == 72
  again = run('--mode=train', '--train_epochs=5', published)
  assert 'starts another epoch instead of continuing' in again.err
  measured = run('--mode=input_benchmark').result
  assert measured['cold_images_per_sec'] > 0
  assert list(measured['stages']) == ['read', 'decode', 'resize', 'batch']


@pytest.fixture
def train(run, tmp_path):
  """Trains by SGD in a folder, and returns the result."""
  return lambda folder, *arguments: run(
      '--optimizer=sgd', '--learning_rate=0.01', *arguments,
      '--model_dir={}'.format(tmp_path / folder)).result


RECIPE = ['--augment=crop_flip', '--weight_decay=0.01', '--label_smoothing=0.1']  # Of ImageNet.


def test_the_recipe_resumed_and_on_two_replicas(train, tmp_path):
  whole = train('whole', '--train_steps=6', *RECIPE)
  train('parts', '--mode=train', '--train_steps=2', *RECIPE)
  train('parts', '--mode=train', '--train_steps=6', '--num_cpu_replicas=2', *RECIPE)
  assert_same_weights(tmp_path / 'parts', tmp_path / 'whole')
  two = train('two', '--train_steps=6', '--num_cpu_replicas=2', *RECIPE)
  assert_same_weights(tmp_path / 'two', tmp_path / 'whole')
  assert two['average_loss'] == pytest.approx(whole['average_loss'], rel=1e-4)


def test_the_first_step_of_weight_decay(train, tmp_path):
  """Kernels get learning rate x factor x kernel more; other variables do not."""
  train('plain', '--mode=train', '--train_steps=1')
  train('decayed', '--mode=train', '--train_steps=1', '--weight_decay=0.5')
  plain, decayed = variables(tmp_path / 'plain'), variables(tmp_path / 'decayed')
  initials = variables(tmp_path / 'plain', 0)
  assert any(name.endswith('kernel') for name in initials)
  for name, initial in initials.items():
    np.testing.assert_allclose(
        plain[name] - decayed[name], .01 * .5 * initial * name.endswith('kernel'), atol=1e-6)


def test_smoothed_labels_are_trained_on_but_not_evaluated(train):
  """With a smoothing near 1, all labels are the same, and the model learns nothing."""
  smoothed = train('smoothed', '--train_steps=60', '--label_smoothing=0.999')
  assert .6 < smoothed['train_loss'] < .75
  again = train('smoothed', '--mode=evaluate', '--label_smoothing=0.5')
  assert again['average_loss'] == pytest.approx(smoothed['average_loss'])


@pytest.mark.slow
def test_the_flagfile_of_the_recipe(run_well, image_folders, tmp_path, monkeypatch):
  """With few records and small images, but with the network and all other flags of the recipe."""
  monkeypatch.syspath_prepend(str(ROOT))
  for split in ('train', 'test'):  # Label 0 is a background class.
    write_records(tmp_path / split, [record_of(path.read_bytes(), ' AB'.index(path.parent.name))
                                     for path in image_folders.glob(split + '/*/*.jpeg')])
  done = run_well('--flagfile={}'.format(ROOT / 'examples' / 'imagenet_resnet50.flags'),
                  '--train_pattern={}/train'.format(tmp_path), '--labels=A,B',
                  '--eval_pattern={}/test'.format(tmp_path), '--image_size=32,32',
                  '--batch_size=6', '--train_epochs=1', '--lr_boundaries_epochs=0.3,0.6,0.8',
                  '--lr_warmup_epochs=0.2', '--model_dir={}'.format(tmp_path / 'model'))
  assert done.result['global_step'] == 3 and done.result['examples'] == 10
  assert '23,512,130 of them trained' in done.err  # 25,557,032 with 1,000 classes.
  assert 'learning rate' in done.err
