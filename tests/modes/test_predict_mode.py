"""`--mode=predict`, end to end: it sees what evaluation does, and needs no training data."""

import csv
import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from conftest import ROOT
from test_training_modes import fails

import estimator_train
from estimator_train import __main__ as program
from estimator_train.datasets import fashion_mnist_sample
from estimator_train.inputs import unlabelled

IMAGES = os.path.join(fashion_mnist_sample.SAMPLE_FOLDER, 't10k-images-idx3-ubyte.gz')
LABELS = os.path.join(fashion_mnist_sample.SAMPLE_FOLDER, 't10k-labels-idx1-ubyte.gz')


def lines(text):
  return [json.loads(line) for line in text.splitlines()]


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
  """The folder of a short run on Fashion-MNIST."""
  folder = tmp_path_factory.mktemp('trained') / 'model'
  assert program.main(['--dataset=fashion_mnist_sample', '--model=own_models:two_layers',
                       '--train_steps=20', '--batch_size=50', '--num_cpu_replicas=2',
                       '--noreport_page', '--model_dir={}'.format(folder)]) == 0
  return folder


@pytest.fixture
def model_dir(trained, tmp_path):
  """A copy of that folder."""
  return shutil.copytree(str(trained), str(tmp_path / 'model'))


def predict(run_program, folder, *arguments):
  return run_program('--flagfile={}/flags.txt'.format(folder), '--mode=predict',
                     '--model_dir={}'.format(folder), *arguments)


def files_of(folder):
  return {os.path.join(root, name): os.stat(os.path.join(root, name)).st_mtime_ns
          for root, _, names in os.walk(str(folder)) for name in names}


def test_idx_like_the_evaluation(run_program, model_dir):
  with open(os.path.join(model_dir, 'evaluation.json')) as file:
    evaluated = json.load(file)
  shutil.rmtree(os.path.join(model_dir, 'keras'))
  before = files_of(model_dir)
  done = predict(run_program, model_dir, '--input=' + IMAGES)
  assert done.code == 0, done.err
  *found, last = lines(done.out)
  assert last == {'mode': 'predict', 'model_dir': model_dir, 'output': '-', 'predicted': 1000,
                  'bad': 0, 'global_step': 20, 'checkpoint': model_dir + '/model.ckpt-20'}
  assert [line['file'] for line in found] == ['{}:{}'.format(IMAGES, number)
                                              for number in range(1000)]
  with gzip.open(LABELS) as file:
    true = [fashion_mnist_sample.CLASS_NAMES[number] for number in file.read()[8:]]
  matrix = np.zeros((10, 10), int)
  for label, line in zip(true, found):
    matrix[fashion_mnist_sample.CLASS_NAMES.index(label),
           fashion_mnist_sample.CLASS_NAMES.index(line['label'])] += 1
  assert matrix.tolist() == evaluated['confusion_matrix'] and 0.3 < evaluated['accuracy'] < 1
  losses = [-np.log(each['probability']) for line, label in zip(found, true)
            for each in line['top'] if each['label'] == label]
  assert len(losses) > 900 and np.mean(losses) < evaluated['average_loss']  # Without the worst.
  assert files_of(model_dir) == before  # Nothing is written there.


def test_nothing_but_the_folder_of_the_run(run_program, image_folders, tmp_path):
  folder = tmp_path / 'model'
  done = run_program('--dataset=image_folder', '--model=own_models:two_layers',
                     '--train_pattern={}/train/*/*.jpeg'.format(image_folders),
                     '--eval_pattern={}/test/*/*.jpeg'.format(image_folders), '--image_size=24,24',
                     '--batch_size=4', '--train_steps=20', '--preprocess=caffe',
                     '--model_dir={}'.format(folder))
  assert done.code == 0, done.err
  shutil.rmtree(str(image_folders / 'train'))
  moved = tmp_path / 'elsewhere'
  image_folders.rename(moved)
  (moved / 'test' / 'A' / '2 half.jpeg').write_bytes(
      (moved / 'test' / 'A' / '2.jpeg').read_bytes()[:99])
  output = tmp_path / 'out.csv'
  output.write_text('of another run')
  there = predict(run_program, folder, '--input={}/test/**/*.jpeg'.format(moved),
                  '--output={}'.format(output))
  assert there.code == 2 and there.result['predicted'] == 10 and there.result['bad'] == 1
  half = moved / 'test' / 'A' / '2 half.jpeg'
  assert there.err.splitlines()[-1].startswith(
      "error: some files could not be predicted: 1 bad file(s), the first is '{}' (Invalid JPEG"
      .format(half))
  assert "cannot predict '{}' (Invalid JPEG".format(half) in there.err
  with open(str(output), newline='') as file:
    rows = list(csv.DictReader(file))
  assert [row['file'] for row in rows] == sorted(
      str(path) for path in (moved / 'test').glob('*/*.jpeg'))
  assert [row['error'] != '' for row in rows] == [row['file'] == str(half) for row in rows]
  right = [row['label'] == os.path.basename(os.path.dirname(row['file'])) for row in rows
           if not row['error']]
  assert np.mean(right) == done.result['accuracy']


def test_awkward_images(run_program, trained, awkward_images):
  folder = awkward_images
  done = predict(run_program, trained, '--input={}/*.jpeg'.format(folder))
  assert done.code == 2 and done.result['predicted'] == 5
  bad = ['broken_png_renamed', 'jpeg_12bit', 'text_renamed', 'truncated_half', 'zero_bytes']
  *found, last = lines(done.out)
  assert [line['file'] for line in found] == sorted(str(path) for path in folder.glob('*.jpeg'))
  assert [os.path.basename(line['file'])[:-5] for line in found if 'error' in line] == bad
  for name in bad:
    assert "cannot predict '{}/{}.jpeg' (".format(folder, name) in done.err
  assert 'error: some files could not be predicted: 5 bad file(s)' in done.err.splitlines()[-1]


def test_an_idx_file_that_breaks_off(run_program, trained, tmp_path):
  with open(IMAGES, 'rb') as file:
    (tmp_path / 'some.idx').write_bytes(file.read(20000))
  done = predict(run_program, trained, '--input={}/some.idx'.format(tmp_path))
  *found, bad, last = lines(done.out)
  assert done.code == 2 and last['predicted'] == len(found) > 10
  assert bad['file'] == '{}/some.idx'.format(tmp_path)
  assert bad['error'].endswith('after {} of 1000 images'.format(len(found)))


def test_idx_files_of_another_size(run_program, trained, write_idx):
  path, _ = write_idx(np.zeros((2, 30, 28)), [0, 1])
  done = predict(run_program, trained, '--input=' + path)
  assert done.code == 2 and done.result['predicted'] == 0
  assert '(the images are 30x28, but the model requires 28x28)' in done.err.splitlines()[-1]


@pytest.mark.parametrize('arguments, message', [
    (['--input=none/*.png'], '--input matches no file: --input=none/*.png (there is no none): '),
    (['--input=' + IMAGES, '--output=none/out'],
     '--output cannot be written: none/out (the folder'),
    (['--input=' + IMAGES, '--model=mnist_dense'],
     'was trained with --model=own_models:two_layers, not --model=mnist_dense'),
    (['--input=' + IMAGES, '--preprocess=tf'],
     'was trained with --preprocess=unit, not --preprocess=tf'),
    (['--input=' + IMAGES, '--dataset=mnist'],
     'the model of --model_dir was trained with other class names'),
    (['--input=' + IMAGES, '--image_size=30,30'], '--image_size is only for --dataset='),
    (['--input=' + IMAGES, '--dataset=synthetic', '--image_size=30,30',
      '--labels=' + ','.join(fashion_mnist_sample.CLASS_NAMES)],
     'created with other flags: no --image_size before and --image_size=30,30 now: give another'),
    (['--input=' + IMAGES, '--model_dir=none'], 'there is no checkpoint in --model_dir: '),
])
def test_wrong(run_program, trained, arguments, message, monkeypatch):
  monkeypatch.setattr(unlabelled, 'read_batches', None)  # Before any work.
  assert fails(predict(run_program, trained, *arguments), message)


def test_unknown_classes(run_program, model_dir):
  os.remove(os.path.join(model_dir, 'labels.txt'))
  assert fails(predict(run_program, model_dir, '--input=' + IMAGES, '--dataset=image_folder'),
               'the classes are unknown: no labels.txt in --model_dir=')


@pytest.mark.parametrize('signum, code', [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_stopped(run_program, trained, tmp_path, monkeypatch, signum, code):
  stack, batches = unlabelled.stack_images, []

  def stop_at_the_third(images):
    batches.append(len(images))
    if len(batches) == 3:
      os.kill(os.getpid(), signum)
    return stack(images)

  monkeypatch.setattr(unlabelled, 'stack_images', stop_at_the_third)
  folder = tmp_path / 'out'
  folder.mkdir()
  done = predict(run_program, trained, '--input=' + IMAGES,
                 '--output={}/out.jsonl'.format(folder))
  assert done.code == code and done.out == '' and 'Traceback' not in done.err
  assert batches == [25] * 3  # One replica's share.
  assert os.listdir(str(folder)) == []


def test_a_reader_that_has_enough(trained):
  started = subprocess.Popen(
      [sys.executable, '-m', 'estimator_train', '--flagfile={}/flags.txt'.format(trained),
       '--mode=predict', '--input=' + IMAGES], cwd=str(ROOT), stdout=subprocess.PIPE,
      stderr=subprocess.PIPE, env=dict(os.environ, PYTHONPATH=str(ROOT / 'tests')))
  try:
    assert json.loads(started.stdout.readline().decode())['file'] == IMAGES + ':0'
    started.stdout.close()
    said = started.stderr.read().decode()
    assert started.wait(120) == 141
    # On a busy machine, the import takes so long that its time is logged.
    first, second = [line for line in said.splitlines() if 'so far' not in line]
    assert first == 'importing TensorFlow' and ' of step 20 on /cpu:0' in second
  finally:
    started.kill()
    started.wait()
    started.stderr.close()


def test_predictions_of_the_library(run_program, model_dir, tmp_path):
  (tmp_path / 'images').mkdir()
  (tmp_path / 'images' / 'b.png').write_text('no image')
  shutil.copy(IMAGES, str(tmp_path / 'images' / 'a.idx'))
  pattern = str(tmp_path / 'images' / '*')
  printed = lines(predict(run_program, model_dir, '--input=' + pattern).out)[:-1]
  settings = estimator_train.Settings(
      dataset='fashion_mnist_sample', model='own_models:two_layers', model_dir=model_dir,
      input=pattern, batch_size=50)
  with tf.Graph().as_default() as graph, tf.Session() as session:
    tf.keras.backend.set_session(session)
    predictions = estimator_train.predict(settings)
    assert iter(predictions) is predictions
    first = next(predictions)
    assert tf.get_default_graph() is graph  # Code between the predictions has its own graph.
    assert tf.keras.backend.get_session() is session
    found = [first, *predictions]
    tf.keras.backend.set_session(None)
  assert [line['file'] for line in found] == [line['file'] for line in printed]
  assert [line.get('label') for line in found] == [line.get('label') for line in printed]
  assert 'error' in found[-1] and len(found) == 1001
  with pytest.raises(estimator_train.UserError, match='^input matches no file: input=/nothing'):
    estimator_train.predict(settings.evolve(input='/nothing/*'))


def test_predictions_that_are_not_read_to_the_end(model_dir):
  predictions = estimator_train.predict(estimator_train.Settings(
      dataset='fashion_mnist_sample', model='own_models:two_layers', model_dir=model_dir,
      input=IMAGES, batch_size=50))
  next(predictions)
  threads = threading.active_count()
  predictions.close()
  assert threading.active_count() <= threads


def test_export_of_the_library(model_dir, tmp_path):
  settings = estimator_train.Settings(
      dataset='fashion_mnist_sample', model='own_models:two_layers', model_dir=model_dir,
      export_dir=str(tmp_path / 'exported'))
  result = estimator_train.export(settings)
  assert result['mode'] == 'export' and len(os.listdir(str(tmp_path / 'exported'))) == 1
  with pytest.raises(estimator_train.UserError, match='^mode=export requires export_dir'):
    estimator_train.export(settings.evolve(export_dir=None))
