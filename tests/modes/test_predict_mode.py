"""`--mode=predict`, end to end: it sees what evaluation does, and needs no training data."""

import csv
import gzip
import json
import os
import shutil
import signal

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from mode_runs import fails, image_flags

import estimator_train
from estimator_train.datasets import fashion_mnist_sample
from estimator_train.inputs import unlabelled

IMAGES = os.path.join(fashion_mnist_sample.SAMPLE_FOLDER, 't10k-images-idx3-ubyte.gz')
NAMES = fashion_mnist_sample.CLASS_NAMES


def lines(text):
  return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def predict(run_program):
  def run(folder, *arguments):
    return run_program('--flagfile={}/flags.txt'.format(folder), '--mode=predict',
                       '--model_dir={}'.format(folder), *arguments)

  return run


def files_of(folder):
  return {path: path.stat().st_mtime_ns for path in folder.rglob('*')}


def test_idx_like_the_evaluation(predict, copied_run):
  evaluated = json.loads((copied_run / 'evaluation.json').read_text())
  shutil.rmtree(str(copied_run / 'keras'))
  before = files_of(copied_run)
  done = predict(copied_run, '--input=' + IMAGES)
  assert done.code == 0, done.err
  *found, last = lines(done.out)
  assert last == {'mode': 'predict', 'model_dir': str(copied_run), 'output': '-',
                  'predicted': 1000, 'bad': 0, 'global_step': 20,
                  'checkpoint': '{}/model.ckpt-20'.format(copied_run)}
  assert [line['file'] for line in found] == ['{}:{}'.format(IMAGES, number)
                                              for number in range(1000)]
  matrix = np.zeros((10, 10), int)
  with gzip.open(IMAGES.replace('images-idx3', 'labels-idx1')) as file:
    labels = file.read()[8:]
  for true, line in zip(labels, found):
    assert line['top'][0] == {'label': line['label'], 'probability': line['probability']}
    matrix[true, NAMES.index(line['label'])] += 1
  assert matrix.tolist() == evaluated['confusion_matrix'] and 0.3 < evaluated['accuracy'] < 1
  assert files_of(copied_run) == before  # Nothing is written there.
  (copied_run / 'labels.txt').unlink()
  assert fails(predict(copied_run, '--input=' + IMAGES, '--dataset=image_folder'),
               'the classes are unknown: no labels.txt in --model_dir=')


def test_nothing_but_the_folder_of_the_run(run_well, predict, image_folders, tmp_path):
  folder = tmp_path / 'model'
  done = run_well('--model=own_models:two_layers', *image_flags(image_folders),
                  '--image_size=24,24', '--batch_size=4', '--train_steps=20',
                  '--preprocess=caffe', '--model_dir={}'.format(folder))
  shutil.rmtree(str(image_folders / 'train'))
  moved = tmp_path / 'elsewhere'
  image_folders.rename(moved)
  half = moved / 'test' / 'A' / '2 half.jpeg'
  half.write_bytes((moved / 'test' / 'A' / '2.jpeg').read_bytes()[:99])
  output = tmp_path / 'out.csv'
  output.write_text('of another run')
  there = predict(folder, '--input={}/test/**/*.jpeg'.format(moved), '--output={}'.format(output))
  assert there.code == 2 and there.result['predicted'] == 10 and there.result['bad'] == 1
  assert there.err.splitlines()[-1].startswith(
      "error: some files could not be predicted: 1 bad file(s), the first is '{}' (Invalid JPEG"
      .format(half))
  assert "cannot predict '{}' (Invalid JPEG".format(half) in there.err
  with open(str(output), newline='') as file:
    rows = list(csv.DictReader(file))
  assert [row['file'] for row in rows] == sorted(
      str(path) for path in (moved / 'test').glob('*/*.jpeg'))
  assert [row['error'] != '' for row in rows] == [row['file'] == str(half) for row in rows]
  right = [row['label'] == row['file'].split('/')[-2] for row in rows if not row['error']]
  assert np.mean(right) == done.result['accuracy']


def test_bad_files(predict, finished_run, awkward_images, write_idx):
  done = predict(finished_run, '--input={}/*.jpeg'.format(awkward_images))
  assert done.code == 2 and done.result['predicted'] == 5
  *found, _ = lines(done.out)
  assert [line['file'] for line in found] == sorted(map(str, awkward_images.glob('*.jpeg')))
  bad = [line['file'] for line in found if 'error' in line]
  assert [os.path.basename(path)[:-len('.jpeg')] for path in bad] == [
      'broken_png_renamed', 'jpeg_12bit', 'text_renamed', 'truncated_half', 'zero_bytes']
  assert all("cannot predict '{}' (".format(path) in done.err for path in bad)
  assert 'error: some files could not be predicted: 5 bad file(s)' in done.err.splitlines()[-1]
  done = predict(finished_run, '--input=' + write_idx(np.zeros((2, 30, 28)), [0, 1])[0])
  assert done.code == 2 and done.result['predicted'] == 0
  assert '(the images are 30x28, but the model requires 28x28)' in done.err.splitlines()[-1]


def test_what_cannot_be(predict, finished_run, monkeypatch):
  monkeypatch.setattr(unlabelled, 'read_batches', None)  # Before any work.
  for arguments, message in (
      (['--input=none/*.png'], '--input matches no file: --input=none/*.png (there is no none): '),
      (['--output=none/out'], '--output cannot be written: none/out (the folder'),
      (['--dataset=synthetic', '--image_size=30,30', '--labels=' + ','.join(NAMES)],
       'created with other flags: no --image_size before and --image_size=30,30 now: give another'),
      (['--preprocess=tf'], 'was trained with --preprocess=unit, not --preprocess=tf')):
    assert fails(predict(finished_run, '--input=' + IMAGES, *arguments), message)


def test_stopped(predict, finished_run, tmp_path, monkeypatch):
  stack, batches = unlabelled.stack_images, []

  def stop_at_the_third(images):
    batches.append(len(images))
    if len(batches) == 3:
      os.kill(os.getpid(), signal.SIGTERM)
    return stack(images)

  monkeypatch.setattr(unlabelled, 'stack_images', stop_at_the_third)
  done = predict(finished_run, '--input=' + IMAGES, '--output={}/out.jsonl'.format(tmp_path))
  assert done.code == 143 and done.out == '' and 'Traceback' not in done.err
  assert batches == [25] * 3  # One replica's share.
  assert os.listdir(str(tmp_path)) == []


def test_from_python(predict, finished_run, tmp_path):
  (tmp_path / 'b.png').write_text('no image')
  shutil.copy(IMAGES, str(tmp_path / 'a.idx'))
  printed = lines(predict(finished_run, '--input={}/*'.format(tmp_path)).out)[:-1]
  settings = estimator_train.Settings(
      dataset='fashion_mnist_sample', model='own_models:two_layers', batch_size=50,
      model_dir=str(finished_run), input='{}/*'.format(tmp_path))
  with tf.Graph().as_default() as graph, tf.Session() as session:
    tf.keras.backend.set_session(session)
    predictions = estimator_train.predict(settings)
    assert iter(predictions) is predictions
    first = next(predictions)
    assert tf.get_default_graph() is graph  # Code between the predictions has its own graph.
    assert tf.keras.backend.get_session() is session
    found = [first, *predictions]
    tf.keras.backend.set_session(None)
  assert [(line['file'], line.get('label')) for line in found] == [
      (line['file'], line.get('label')) for line in printed]
  assert 'error' in found[-1] and len(found) == 1001
  with pytest.raises(estimator_train.UserError, match='^input matches no file: input=/nothing'):
    estimator_train.predict(settings.evolve(input='/nothing/*'))
