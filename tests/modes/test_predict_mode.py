"""`--mode=predict`: it sees what evaluation does, needs no training data, and keeps odd names."""

import csv
import glob
import gzip
import json
import os
import re
import shutil
import signal
import sys
import types
from itertools import zip_longest
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import terminal
from conftest import ROOT, contents_of, keras_session, run_process
from mode_runs import fails, signal_before

import estimator_train
from estimator_train.data import mnist
from estimator_train.modes import predict as predict_mode
from estimator_train.modes.predict import images, output_file, predictions
from estimator_train.settings import Settings
from estimator_train.system import storage

IMAGES, LABELS = (os.path.join(mnist.SAMPLE_FOLDER, 't10k-{}-ubyte.gz'.format(kind))
                  for kind in ('images-idx3', 'labels-idx1'))
NAMES = mnist.FASHION_MNIST_CLASSES


def lines(text):
  return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def predict(run_program):
  def run(folder, *arguments):
    return run_program('--flagfile={}/flags.txt'.format(folder), '--mode=predict',
                       '--model_dir={}'.format(folder), *arguments)

  return run


def test_idx_like_the_evaluation(predict, copied_run):
  evaluated = json.loads((copied_run / 'evaluation.json').read_text())
  shutil.rmtree(str(copied_run / 'keras'))
  before = contents_of(copied_run)
  done = predict(copied_run, '--input=' + IMAGES)
  assert done.code == 0, done.err
  *found, last = lines(done.out)
  assert last == {'mode': 'predict', 'model_dir': str(copied_run), 'output': '-',
                  'predicted': 1000, 'bad': 0, 'global_step': 20,
                  'checkpoint': '{}/model.ckpt-20'.format(copied_run)}
  assert [line['file'] for line in found] == ['{}:{}'.format(IMAGES, number)
                                              for number in range(1000)]
  with gzip.open(LABELS) as file:
    labels = file.read()[8:]
  matrix = np.zeros((10, 10), int)
  np.add.at(matrix, (list(labels), [NAMES.index(line['label']) for line in found]), 1)
  assert matrix.tolist() == evaluated['confusion_matrix'] and 0.3 < evaluated['accuracy'] < 1
  assert contents_of(copied_run) == before  # Nothing is written there.
  (copied_run / 'labels.txt').unlink()
  assert fails(predict(copied_run, '--input=' + IMAGES, '--dataset=image_folder'),
               'the classes are unknown: no labels.txt in --model_dir=')


def test_nothing_but_the_folder_of_the_run(run_well, predict, write_images, tmp_path, monkeypatch):
  """Whatever the names of the classes and the files are, also in a CSV file."""
  monkeypatch.chdir(str(tmp_path))
  classes = ['-1', '=1+1', '@x', 'b,"c"', 'z', 'é']
  names = [b'a b.png', b'q"\'.png', b'x,y\r\nz.png', b'\xff\xfe.png',
           b'n' * 250 + b'.png', b'\x1b[2Jl.png']
  write_images({Path(split, label, os.fsdecode(name)): np.full((8, 8, 1), 30 * index, np.uint8)
                for split in ('train', 'test') for index, label in enumerate(classes)
                for name in names})
  done = run_well('--dataset=image_folder', '--train_pattern=train', '--eval_pattern=test',
                  '--model=own_models:two_layers', '--image_size=8,8', '--batch_size=4',
                  '--train_steps=20', '--preprocess=caffe', '--model_dir=model')
  shutil.rmtree('train')
  Path('test').rename('elsewhere')
  monkeypatch.chdir('elsewhere')
  Path('z', 'half.png').write_bytes(Path('z', 'a b.png').read_bytes()[:50])
  output, link = tmp_path / 'out.csv', tmp_path / 'link.csv'
  output.write_text('of another run')
  link.symlink_to(output)
  printed, there = (predict(tmp_path / 'model', '--input=*/*.png', *more)
                    for more in ([], ['--output={}'.format(link)]))
  assert there.code == 2 and there.result['predicted'] == 36 and there.result['bad'] == 1
  assert link.is_symlink()
  assert there.err.splitlines()[-1].startswith(
      "error: some inputs could not be predicted: 1 bad input, the first is 'z/half.png' (Invalid "
      'PNG')
  assert "cannot predict 'z/half.png' (Invalid PNG" in there.err
  *found, _ = lines(printed.out)
  assert [line['file'] for line in found] == sorted(glob.glob('*/*.png'))
  assert [line['file'] for line in found if 'error' in line] == ['z/half.png']
  right = [line['label'] == os.path.dirname(line['file']) for line in found if 'label' in line]
  assert np.mean(right) == done.result['accuracy']
  with open(str(output), encoding='utf-8', errors='surrogateescape', newline='') as file:
    rows = list(csv.DictReader(file))
  assert list(rows[0])[-3:] == ['top5_label', 'top5_probability', 'error']
  for row, line in zip_longest(rows, found):
    for rank, entry in enumerate(line.pop('top', ()), 1):
      line.update(('top{}_{}'.format(rank, key), value) for key, value in entry.items())
    # Spreadsheets would compute formulas.
    assert row == {name: str(storage.csv_cell(line.get(name, ''))) for name in row}
    assert set(line) <= set(row)


def test_what_cannot_be(predict, finished_run, monkeypatch):
  monkeypatch.setattr(images, 'read_batches', None)  # Before any work.
  for arguments, message in (
      (['--input=none/*.png'], '--input matches no file: --input=none/*.png (there is no none): '),
      (['--output=none/out'], '--output cannot be written: none/out (the folder'),
      (['--output=.'], '--output cannot be written: . (not a regular file): give a file'),
      (['--output=/dev/null'], '--output cannot be written: /dev/null (not a regular file)'),
      (['--dataset=synthetic', '--image_size=30,30', '--labels=' + ','.join(NAMES)],
       'no --image_size before and --image_size=30,30 now: give another')):
    assert fails(predict(finished_run, '--input=' + IMAGES, *arguments), message)


def test_stopped(predict, finished_run, tmp_path, monkeypatch):
  signal_before(monkeypatch, predict_mode, 'predict_batch', signal.SIGTERM, at=3)
  done = predict(finished_run, '--input=' + IMAGES, '--output={}/out.jsonl'.format(tmp_path),
                 '--log_every_steps=1')
  assert done.code == 143 and done.out == '' and 'Traceback' not in done.err
  assert re.findall(r'(\d+) images, ', done.err) == ['25', '50']  # Batches of one replica.
  assert os.listdir(str(tmp_path)) == []


def test_a_reader_that_has_enough(finished_run):
  done = run_process(
      'bash', '-c', 'set -o pipefail; "$@" | head -n 1', 'bash', sys.executable, '-m',
      'estimator_train', '--flagfile={}/flags.txt'.format(finished_run), '--mode=predict',
      '--model_dir={}'.format(finished_run), '--input=' + IMAGES,
      env={'PYTHONPATH': str(ROOT / 'tests')})
  assert done.returncode == 141 and json.loads(done.stdout)['file'] == IMAGES + ':0'
  assert not re.search('error|Traceback', done.stderr, re.IGNORECASE)


def test_from_python(predict, finished_run, write_images, tmp_path):
  """Every file has its place, whether it can be read or not."""
  write_images({tmp_path / name: np.zeros((28, 28, 1), np.uint8)
                for name in ('[a]?.png', 'ax.png', 'g.png')})
  (tmp_path / 'b.png').write_bytes((tmp_path / 'ax.png').read_bytes()[:50])
  os.mkfifo(str(tmp_path / 'c.jpeg'))
  (tmp_path / 'd.jpeg').symlink_to(tmp_path / 'nowhere')
  with gzip.open(IMAGES) as file:
    (tmp_path / 'e.idx').write_bytes(file.read(16 + 3 * 28 * 28))
  shutil.copy(LABELS, str(tmp_path / 'f.gz'))
  printed = lines(predict(finished_run, '--input={}/*'.format(tmp_path)).out)[:-1]
  assert [os.path.basename(line['file']) for line in printed] == [
      '[a]?.png', 'ax.png', 'b.png', 'c.jpeg', 'd.jpeg', 'e.idx:0', 'e.idx:1', 'e.idx:2', 'e.idx',
      'f.gz', 'g.png']
  errors = [line['error'] for line in printed if 'error' in line]
  assert 'Invalid PNG' in errors[0]
  assert errors[1:] == ['not a regular file', 'No such file or directory',
                        'the file ends early, after 3 images', 'not an idx file of images']
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
    assert [first, *predictions] == printed
  # The name of a file is no pattern.
  assert list(estimator_train.predict(settings.evolve(input='{}/[a]?.png'.format(tmp_path)))) == (
      printed[:1])
  with pytest.raises(estimator_train.UserError, match='^input matches no file: input=/nothing'):
    estimator_train.predict(settings.evolve(input='/nothing/*'))


def test_only_the_largest_of_many_outputs_are_sorted(monkeypatch):
  outputs = np.random.RandomState(0).randint(0, 3000, 10000).astype(np.float32)
  expected = sorted(range(10000), key=lambda index: -outputs[index])[:5]  # A stable sort.
  argsort, sorted_lengths = np.argsort, []
  monkeypatch.setattr(np, 'argsort', lambda values, **options: (
      sorted_lengths.append(len(values)) or argsort(values, **options)))
  prediction = predictions.make_class_prediction({}, outputs, list(map(str, range(10000))))
  assert [each['label'] for each in prediction['top']] == list(map(str, expected))
  assert max(sorted_lengths) < 20


def test_predictions_of_outputs(tmp_path):
  """Logits, ties, numbers that are not finite, any shape, texts, and names of other keys."""
  def predicted(*outputs):
    return predictions.make_class_prediction(
        {'file': 'x'}, np.array(outputs, np.float32), 'abcdefg')

  assert [each['label'] for each in predicted(-1, 2, 2, 9, 1, 0, 0)['top']] == list('dbcef')
  two = {'label': 'b', 'probability': pytest.approx(0.4879, abs=1e-4)}
  assert predicted(-1, 2, 2) == dict(two, file='x', top=[two, dict(two, label='c'), mock.ANY])
  assert predicted(1, np.nan) == {'file': 'x', 'error': "the model's outputs are not finite"}
  assert predictions.make_output_prediction({'file': 'a'}, {'x': np.array([np.inf])}) == {
      'file': 'a', 'error': "the model's outputs are not finite"}
  texts = {'a': 'é'.encode('utf-8'), 'b': np.array([b'x'], object),
           'c': np.array([b'x', b'\xff'], object)}
  assert predictions.make_output_prediction({}, texts) == {
      'a': 'é', 'b': 'x', 'c': ['x', '\udcff']}
  outputs = {name: np.array([index - 2.])
             for index, name in enumerate(['file', 'example', 'error', 'price', '=x'])}
  outputs.update(many=np.array([1., 2.]), table=np.array([[1.], [2.]]))
  prediction = predictions.make_output_prediction({'example': 3}, outputs)
  assert prediction == {'example': 3, 'output_file': -2., 'output_example': -1., 'output_error': 0.,
                        'price': 1., '=x': 2., 'many': [1., 2.], 'table': [[1.], [2.]]}
  path = tmp_path / 'out.csv'
  with output_file.open_writer(str(path), predictions.make_output_columns(
      'example', {name: values.shape for name, values in outputs.items()})) as writer:
    writer.write(prediction)
  assert path.read_text().splitlines() == [
      "example,output_file,output_example,output_error,price,'=x,many_0,many_1,table,error",
      '3,-2.0,-1.0,0.0,1.0,2.0,1.0,2.0,"[[1.0], [2.0]]",']


@pytest.mark.parametrize('shapes, columns', [
    ({'dense': (3,), 'dense_1': (1,)}, ['output_dense_0', 'output_dense_1', 'output_dense_2',
                                        'dense_1']),
    ({'a': (2,), 'a_0': (2, 2), 'output_a_1': (), 'b': (1,)},
     ['output_output_a_0', 'output_output_a_1', 'a_0', 'output_a_1', 'b']),
    ({'a': (11,), 'a_1': (2,), 'a_1_0': ()},
     ['a_{}'.format(index) for index in range(11)]
     + ['output_a_1_0', 'output_a_1_1', 'a_1_0']),
    ({'file': (2,), 'output_file': (1,), 'file_0': (1,)},
     ['output_output_file_0', 'output_output_file_1', 'output_file', 'file_0'])])
def test_columns_of_outputs_are_distinct(tmp_path, shapes, columns):
  """Each number has a column of its own, whatever the names of the outputs are."""
  path, numbers = tmp_path / 'out.csv', iter(range(100))
  outputs = {name: np.reshape([float(next(numbers)) for _ in range(int(np.prod(shape)))], shape)
             for name, shape in shapes.items()}
  prediction = predictions.make_output_prediction({'file': 'x'}, outputs)
  assert len(prediction) == 1 + len(shapes)
  with output_file.open_writer(
      str(path), predictions.make_output_columns('file', shapes)) as writer:
    writer.write(prediction)
    writer.write({'file': 'y', 'error': 'z'})
  header, row, error = csv.reader(path.read_text().splitlines())
  assert header == ['file', *columns, 'error'] and len(set(header)) == len(header)
  cells = dict(zip(header, row))
  assert sorted(np.concatenate([np.ravel(json.loads(cells[name])) for name in columns])) == list(
      range(next(numbers)))
  assert error == ['y', *[''] * len(columns), 'z']


def test_images_of_other_formats(predict, finished_run, write_images, tmp_path):
  """Each image in a folder has its line; the content decides whether it can be predicted."""
  image = np.zeros((28, 28, 1), np.uint8)
  write_images({tmp_path / 'in' / 'b' / 'a.png': image})
  content = (tmp_path / 'in' / 'b' / 'a.png').read_bytes()
  for name, data in (('a.webp', b'RIFF'), ('b.TIF', b'II*\0'), ('c.heic', b'ftypheic'),
                     ('d.bmp', content), ('e.txt', b'no image')):
    (tmp_path / 'in' / name).write_bytes(data)
  done = predict(finished_run, '--input={}'.format(tmp_path / 'in'))
  *found, last = lines(done.out)
  assert [(os.path.basename(line['file']), 'error' in line) for line in found] == [
      ('a.webp', True), ('b.TIF', True), ('c.heic', True), ('d.bmp', False), ('a.png', False)]
  assert done.code == 2 and (last['predicted'], last['bad']) == (2, 3)


@pytest.mark.parametrize('output, is_shown', [('-', False), ('file.csv', True)])
def test_a_bar_does_not_mix_with_predictions_on_a_terminal(monkeypatch, output, is_shown):
  settings = Settings(model_dir='x', output=output)
  with monkeypatch.context() as context, terminal.Terminal(context, 80) as screen:
    context.setattr(sys, 'stdout', types.SimpleNamespace(isatty=lambda: True))
    assert list(predict_mode._with_progress(iter([[{}, {}]]), settings, 'images')) == [[{}, {}]]
  assert ('predicting: 2 images' in screen.written) == is_shown
  assert bool(screen.written) == is_shown
