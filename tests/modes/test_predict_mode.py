"""`--mode=predict`: it sees what evaluation does, needs no training data, and keeps odd names."""

import csv
import gzip
import json
import os
import re
import shutil
import signal
import sys

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from conftest import ROOT, keras_session, run_process
from mode_runs import fails, image_flags

import estimator_train
from estimator_train.data import idx
from estimator_train.modes import predict as predict_mode
from estimator_train.modes.predict import inputs, output_file

IMAGES = os.path.join(idx.SAMPLE_FOLDER, 't10k-images-idx3-ubyte.gz')
NAMES = idx.FASHION_MNIST_CLASSES


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
  output, link = tmp_path / 'out.csv', tmp_path / 'link.csv'
  output.write_text('of another run')
  link.symlink_to(output)
  there = predict(folder, '--input={}/test/**/*.jpeg'.format(moved), '--output={}'.format(link))
  assert there.code == 2 and there.result['predicted'] == 10 and there.result['bad'] == 1
  assert link.is_symlink()
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


def test_what_cannot_be(predict, finished_run, monkeypatch):
  monkeypatch.setattr(inputs, 'read_batches', None)  # Before any work.
  for arguments, message in (
      (['--input=none/*.png'], '--input matches no file: --input=none/*.png (there is no none): '),
      (['--output=none/out'], '--output cannot be written: none/out (the folder'),
      (['--output=.'], '--output cannot be written: . (not a regular file): give a file'),
      (['--output=/dev/null'], '--output cannot be written: /dev/null (not a regular file)'),
      (['--dataset=synthetic', '--image_size=30,30', '--labels=' + ','.join(NAMES)],
       'no --image_size before and --image_size=30,30 now: give another'),
      (['--preprocess=tf'], 'was trained with --preprocess=unit, not --preprocess=tf')):
    assert fails(predict(finished_run, '--input=' + IMAGES, *arguments), message)


def test_stopped(predict, finished_run, tmp_path, monkeypatch):
  predict_batch, batches = predict_mode.predict_batch, []

  def stop_at_the_third(batch, *arguments):
    batches.append(len(batch))
    if len(batches) == 3:
      os.kill(os.getpid(), signal.SIGTERM)
    return predict_batch(batch, *arguments)

  monkeypatch.setattr(predict_mode, 'predict_batch', stop_at_the_third)
  done = predict(finished_run, '--input=' + IMAGES, '--output={}/out.jsonl'.format(tmp_path))
  assert done.code == 143 and done.out == '' and 'Traceback' not in done.err
  assert batches == [25] * 3  # One replica's share.
  assert os.listdir(str(tmp_path)) == []


def test_a_reader_that_has_enough(finished_run):
  done = run_process(
      'bash', '-c', 'set -o pipefail; "$@" | head -n 1', 'bash', sys.executable, '-m',
      'estimator_train', '--flagfile={}/flags.txt'.format(finished_run), '--mode=predict',
      '--model_dir={}'.format(finished_run), '--input=' + IMAGES,
      env={'PYTHONPATH': str(ROOT / 'tests')})
  assert done.returncode == 141 and json.loads(done.stdout)['file'] == IMAGES + ':0'
  assert not re.search('error|Traceback', done.stderr, re.IGNORECASE)


def test_from_python(predict, finished_run, tmp_path):
  (tmp_path / 'b.png').write_text('no image')
  shutil.copy(IMAGES, str(tmp_path / 'a.idx'))
  printed = lines(predict(finished_run, '--input={}/*'.format(tmp_path)).out)[:-1]
  settings = estimator_train.Settings(
      dataset='fashion_mnist_sample', model='own_models:two_layers', batch_size=50,
      model_dir=str(finished_run), input='{}/*'.format(tmp_path))
  with keras_session() as session:
    predictions = estimator_train.predict(settings)
    assert iter(predictions) is predictions
    first = next(predictions)
    # Code between the predictions has its own graph.
    assert tf.get_default_graph() is session.graph
    assert tf.keras.backend.get_session() is session
    found = [first, *predictions]
  assert [(line['file'], line.get('label')) for line in found] == [
      (line['file'], line.get('label')) for line in printed]
  assert 'error' in found[-1] and len(found) == 1001
  with pytest.raises(estimator_train.UserError, match='^input matches no file: input=/nothing'):
    estimator_train.predict(settings.evolve(input='/nothing/*'))


LABELS = ['a', 'b,"c"', 'd', 'é', 'f', 'g']
OUTPUTS = [0.05, 0.5, 0.1, 0.25, 0.03, 0.07]


def written(path, predictions, columns=None):
  """Writes predictions, and returns what a reader finds in the file."""
  with output_file.open_writer(
      str(path), columns or predict_mode.class_columns('file', LABELS)) as writer:
    for prediction in predictions:
      writer.write(prediction)
  assert writer.num_predicted + writer.num_errors == len(predictions)
  if path.suffix != '.csv':
    return lines(path.read_text(encoding='ascii'))
  with open(str(path), encoding='utf-8', errors='surrogateescape', newline='') as file:
    return list(csv.DictReader(file))


def prediction_of(name, outputs=OUTPUTS, labels=LABELS):
  return predict_mode.make_prediction(
      predict_mode.file_source(name), np.array(outputs, np.float32), labels)


def test_names_come_back(tmp_path):
  names = [b'x.png', b'a b.png', b'q"\'.png', b'x,y\r\nz.png', b'\xff\xfe.png', 'é.png'.encode(),
           b'-']
  for suffix in ('.jsonl', '.csv'):
    found = written(tmp_path / ('out' + suffix), [prediction_of(name) for name in names])
    assert [each['file'].encode('utf-8', 'surrogateescape') for each in found] == names
  assert list(found[0])[-3:] == ['top5_label', 'top5_probability', 'error']
  assert found[0]['label'] == found[0]['top1_label'] == 'b,"c"' and found[0]['top2_label'] == 'é'
  prediction = prediction_of(b'x')
  assert list(prediction) == ['file', 'label', 'probability', 'top']
  assert prediction['top'][0] == {'label': 'b,"c"', 'probability': 0.5}
  assert [each['label'] for each in prediction['top']] == ['b,"c"', 'é', 'd', 'g', 'a']
  # Fewer classes, logits, and ties, of which argmax takes the first, too.
  top = prediction_of(b'x', [-1, 2, 2], ['a', 'b', 'c'])['top']
  assert [each['label'] for each in top] == ['b', 'c', 'a']
  assert top[0]['probability'] == pytest.approx(0.4879, abs=1e-4)
  assert prediction_of(b'x', [np.nan] * 6) == {
      'file': 'x', 'error': "the model's outputs are not finite"}
  # Spreadsheets would compute formulas.
  row, error = written(tmp_path / 'out.csv', [
      prediction_of(b'+a.png', [.5, .3, .2], ['=1+1', '-1', '@x']), {'file': 'b', 'error': '-x'}])
  assert [row[key] for key in ('file', 'label', 'top2_label', 'top3_label', 'probability')] == [
      "'+a.png", "'=1+1", '-1', "'@x", '0.5']
  assert error['error'] == "'-x" and error['label'] == error['top5_label'] == ''


def test_outputs_of_any_shape_and_with_the_names_of_other_keys(tmp_path):
  names = ['file', 'example', 'error', 'price', '=x']
  outputs = {name: np.array([index - 2.]) for index, name in enumerate(names)}
  outputs.update(many=np.array([1., 2.]), table=np.array([[1.], [2.]]))
  columns = predict_mode.output_columns(
      'example', {name: values.shape for name, values in outputs.items()})
  prediction = predict_mode.make_output_prediction({'example': 3}, outputs)
  assert prediction == {'example': 3, 'output_file': -2., 'output_example': -1., 'output_error': 0.,
                        'price': 1., '=x': 2., 'many': [1., 2.], 'table': [[1.], [2.]]}
  assert written(tmp_path / 'out.csv', [prediction], columns) == [{
      'example': '3', 'output_file': '-2.0', 'output_example': '-1.0', 'output_error': '0.0',
      'price': '1.0', "'=x": '2.0', 'many_0': '1.0', 'many_1': '2.0', 'table': '[[1.0], [2.0]]',
      'error': ''}]
  assert predict_mode.make_output_prediction({'file': 'a'}, {'x': np.array([np.inf])}) == {
      'file': 'a', 'error': "the model's outputs are not finite"}
