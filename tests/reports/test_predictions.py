"""Predictions as lines: what they say, and that odd names come back out of them."""

import csv
import json
import math
import os
import sys
import types

import numpy as np
import pytest

from estimator_train.errors import UserError
from estimator_train.modes import predict as predictions
from estimator_train.reports.evaluation import (
  as_probabilities,
  per_class_metrics,
  write_samples,
)

LABELS = ['a', 'b,"c"', 'd', 'é', 'f', 'g']
OUTPUTS = np.array([0.05, 0.5, 0.1, 0.25, 0.03, 0.07], np.float32)
NAMES = [b'x.png', b'a b.png', b'q"\'.png', b'x,y\r\nz.png', b'\xff\xfe.png', 'é.png'.encode(),
         b'-']


def open_writer(path, columns=None):
  return predictions.open_prediction_writer(
      str(path), columns or predictions.class_columns('file', LABELS))


def predict(name, outputs=OUTPUTS, labels=LABELS):
  return predictions.make_prediction(predictions.file_source(name), np.asarray(outputs), labels)


def lines(path):
  return [json.loads(line) for line in path.read_text(encoding='ascii').splitlines()]


def rows(path):
  with open(str(path), encoding='utf-8', errors='surrogateescape', newline='') as file:
    return list(csv.DictReader(file))


def test_names_come_back(tmp_path, capsys):
  for path in (tmp_path / 'out.jsonl', tmp_path / 'out.csv', '-'):
    with open_writer(path) as writer:
      for name in NAMES:
        writer.write(predict(name))
    assert (writer.num_predicted, writer.num_errors, writer.first_error) == (7, 0, None)
  for found in (lines(tmp_path / 'out.jsonl'), rows(tmp_path / 'out.csv'),
                list(map(json.loads, capsys.readouterr().out.splitlines()))):
    assert [each['file'].encode('utf-8', 'surrogateescape') for each in found] == NAMES
  line = lines(tmp_path / 'out.jsonl')[0]
  assert list(line) == ['file', 'label', 'probability', 'top']
  assert (line['label'], line['probability']) == ('b,"c"', 0.5)
  assert line['top'][0] == {'label': 'b,"c"', 'probability': 0.5}
  assert [each['label'] for each in line['top']] == ['b,"c"', 'é', 'd', 'g', 'a']
  row = rows(tmp_path / 'out.csv')[0]
  assert row['label'] == row['top1_label'] == 'b,"c"' and row['top2_label'] == 'é'
  assert float(row['probability']) == 0.5 and row['error'] == ''
  assert list(row)[-3:] == ['top5_label', 'top5_probability', 'error']
  # Fewer classes, logits, and ties, of which argmax takes the first, too.
  top = predict(b'x', np.array([-1, 2, 2], np.float32), ['a', 'b', 'c'])['top']
  assert [each['label'] for each in top] == ['b', 'c', 'a']
  assert top[0]['probability'] == pytest.approx(0.4879, abs=1e-4)


def test_csv_has_no_formulas(tmp_path):
  with open_writer(tmp_path / 'out.csv') as writer:
    writer.write(predict(b'+a.png', [.5, .3, .2], ['=1+1', '-1', '@x']))
    writer.write(dict(predictions.file_source(b'b'), error='-x'))
  row, error = rows(tmp_path / 'out.csv')
  assert [row[key] for key in ('file', 'label', 'top2_label', 'top3_label', 'probability')] == [
      "'+a.png", "'=1+1", '-1', "'@x", '0.5']
  assert error['error'] == "'-x"


def test_outputs_of_any_shape_and_with_the_names_of_other_keys(tmp_path):
  names = ['file', 'example', 'error', 'price', '=x']
  outputs = {name: np.array([index - 2.]) for index, name in enumerate(names)}
  outputs.update(many=np.array([1., 2.]), table=np.array([[1.], [2.]]))
  for source in ('file', 'example'):
    prediction = predictions.make_output_prediction({source: 'a'}, outputs)
    assert prediction == {source: 'a', 'output_file': -2., 'output_example': -1.,
                          'output_error': 0., 'price': 1., '=x': 2., 'many': [1., 2.],
                          'table': [[1.], [2.]]}
    columns = predictions.output_columns(
        source, {name: values.shape for name, values in outputs.items()})
    with open_writer(tmp_path / 'out.csv', columns) as writer:
      writer.write(prediction)
    assert (writer.num_predicted, writer.num_errors) == (1, 0)
    assert rows(tmp_path / 'out.csv') == [{
        source: 'a', 'output_file': '-2.0', 'output_example': '-1.0', 'output_error': '0.0',
        'price': '1.0', "'=x": '2.0', 'many_0': '1.0', 'many_1': '2.0', 'table': '[[1.0], [2.0]]',
        'error': ''}]
  assert predictions.make_output_prediction({'file': 'a'}, {'x': np.array([np.inf])}) == {
      'file': 'a', 'error': "the model's outputs are not finite"}


def test_bad_files(tmp_path, caplog):
  for name in ('out.jsonl', 'out.CSV'):
    caplog.clear()
    with open_writer(tmp_path / name) as writer:
      writer.write(dict(predictions.file_source(b'half\n.png'), error='ends early'))
      writer.write(predict(b'nan.png', OUTPUTS * np.nan))
    assert writer.num_errors == 2 and writer.num_predicted == 0
    assert writer.first_error == ('half\n.png', 'ends early')
    assert caplog.messages == ["cannot predict 'half\\n.png' (ends early)",
                               "cannot predict 'nan.png' (the model's outputs are not finite)"]
  assert lines(tmp_path / 'out.jsonl')[0] == {'file': 'half\n.png', 'error': 'ends early'}
  row, _ = rows(tmp_path / 'out.CSV')
  assert row['error'] == 'ends early' and row['label'] == row['top5_label'] == ''


def test_only_whole_files_have_the_name(tmp_path):
  (tmp_path / 'out').write_text('of another run')
  with pytest.raises(KeyboardInterrupt), open_writer(tmp_path / 'out') as writer:
    writer.write(predict(b'x'))
    writer.flush()
    assert (tmp_path / 'out').read_text() == 'of another run'
    raise KeyboardInterrupt
  assert os.listdir(str(tmp_path)) == ['out']
  (tmp_path / 'link').symlink_to(tmp_path / 'out')
  with open_writer(tmp_path / 'link') as writer:
    writer.write(predict(b'x'))
  assert len(lines(tmp_path / 'out')) == 1 and (tmp_path / 'link').is_symlink()
  with pytest.raises(UserError, match='--output cannot be written: .* .No space left'), \
      open_writer(tmp_path / 'out'):
    raise OSError(28, 'No space left on device')
  assert len(lines(tmp_path / 'out')) == 1


def test_no_such_output(tmp_path):
  for output, why in ((tmp_path / 'none' / 'out.csv', '/none does not exist): give a file'),
                      ('.', '(not a regular file)'), ('/dev/null', '(not a regular file)')):
    with pytest.raises(UserError) as caught:
      predictions._check_output_path(str(output))
    assert '--output cannot be written: {} ('.format(output) in str(caught.value)
    assert why in str(caught.value)
  for output in ('-', 'new.csv'):
    predictions._check_output_path(output)


def test_outputs_become_probabilities():
  for outputs, expected in (
      ([.2, .8], [.2, .8]), ([0., 0.], [.5, .5]), ([1., 1.], [.5, .5]),
      ([1000., 1000 + math.log(3)], [.25, .75]),
      ([-.5, 1.5], [1 / (1 + math.exp(2)), 1 / (1 + math.exp(-2))])):
    assert as_probabilities(np.array(outputs, np.float64)) == pytest.approx(expected)


def test_samples_have_pictures_and_predictions(tmp_path, monkeypatch):
  image_module = pytest.importorskip('PIL.Image', reason='Pillow is not installed')
  grey, colour = np.full((4, 3, 1), 77, np.uint8), np.zeros((2, 2, 3), np.uint8)
  colour[0, 1] = 10, 20, 30
  some = [types.SimpleNamespace(image=image, class_index=index, outputs=np.array(outputs))
          for image, index, outputs in ((grey, 2, [.25, .5, .25]),
                                        (colour, 0, [0, math.log(2), -100.]))]
  with monkeypatch.context() as patch:
    patch.setitem(sys.modules, 'PIL', None)
    write_samples(str(tmp_path), ['a', 'b', 'c'], some)
  write_samples(str(tmp_path), ['a', 'b', 'c'], [])
  assert not list(tmp_path.iterdir())
  write_samples(str(tmp_path), ['a', 'b', 'c'], some)
  folder = tmp_path / 'report'
  assert json.loads((folder / 'samples.json').read_text())['samples'] == [
      {'label': 'c', 'predicted': 'b', 'probability': .5, 'image': 'sample-00.png'},
      {'label': 'a', 'predicted': 'b', 'probability': pytest.approx(2 / 3),
       'image': 'sample-01.png'}]
  with image_module.open(folder / 'sample-00.png') as picture:
    assert picture.mode == 'L' and picture.size == (3, 4) and picture.getpixel((1, 2)) == 77
  with image_module.open(folder / 'sample-01.png') as picture:
    assert picture.getpixel((1, 0)) == (10, 20, 30)
  assert len(list(folder.iterdir())) == 3


def test_figures_of_classes():
  figures = per_class_metrics(('a', 'b', 'c'), [[3, 1, 0], [2, 4, 0], [0, 0, 0]])
  assert figures['a'] == pytest.approx({'precision': 3 / 5, 'recall': 3 / 4, 'support': 4})
  assert figures['b'] == pytest.approx({'precision': 4 / 5, 'recall': 4 / 6, 'support': 6})
  assert figures['c'] == {'precision': None, 'recall': None, 'support': 0}
