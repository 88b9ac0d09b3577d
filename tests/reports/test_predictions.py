"""Predictions as lines: what they say, and that odd names come back out of them."""

import csv
import json
import os

import numpy as np
import pytest

from estimator_train.errors import UserError
from estimator_train.reports import predictions

LABELS = ['a', 'b,"c"', 'd', 'é', 'f', 'g']
OUTPUTS = np.array([0.05, 0.5, 0.1, 0.25, 0.03, 0.07], np.float32)
NAMES = [b'x.png', b'a b.png', b'q"\'.png', b'x,y\r\nz.png', b'\xff\xfe.png', 'é.png'.encode(),
         b'-']


def write(path, *outputs, labels=LABELS):
  with predictions.open_prediction_writer(
      str(path), predictions.class_columns('file', labels)) as writer:
    for name, some in zip(NAMES, outputs):
      writer.write(predictions.make_prediction(predictions.file_source(name), some, labels))
  return writer


def lines(path):
  return [json.loads(line) for line in path.read_text(encoding='ascii').splitlines()]


def test_json_lines(tmp_path):
  writer = write(tmp_path / 'out', OUTPUTS)
  line, = lines(tmp_path / 'out')
  assert list(line) == ['file', 'label', 'probability', 'top']
  assert (line['label'], line['probability']) == ('b,"c"', 0.5)
  assert line['top'][0] == {'label': 'b,"c"', 'probability': 0.5}
  assert [each['label'] for each in line['top']] == ['b,"c"', 'é', 'd', 'g', 'a']
  assert (writer.num_predicted, writer.num_errors, writer.first_error) == (1, 0, None)


def test_names_come_back(tmp_path):
  write(tmp_path / 'out.jsonl', *[OUTPUTS] * 7)
  write(tmp_path / 'out.csv', *[OUTPUTS] * 7)
  names = [line['file'] for line in lines(tmp_path / 'out.jsonl')]
  assert [name.encode('utf-8', 'surrogateescape') for name in names] == NAMES
  with open(str(tmp_path / 'out.csv'), encoding='utf-8', errors='surrogateescape',
            newline='') as file:
    rows = list(csv.DictReader(file))
  assert [row['file'].encode('utf-8', 'surrogateescape') for row in rows] == NAMES
  assert rows[0]['label'] == rows[0]['top1_label'] == 'b,"c"' and rows[0]['top2_label'] == 'é'
  assert float(rows[0]['probability']) == 0.5 and rows[0]['error'] == ''
  assert list(rows[0])[-3:] == ['top5_label', 'top5_probability', 'error']


def test_csv_has_no_formulas(tmp_path):
  labels = ['=1+1', '-1', '@x']
  with predictions.open_prediction_writer(
      str(tmp_path / 'out.csv'), predictions.class_columns('file', labels)) as writer:
    writer.write(predictions.make_prediction(
        predictions.file_source(b'+a.png'), np.array([.5, .3, .2]), labels))
    writer.write(predictions.make_error(predictions.file_source(b'b'), '-x'))
  row, error = csv.DictReader((tmp_path / 'out.csv').open())
  assert [row[key] for key in ('file', 'label', 'top2_label', 'top3_label', 'probability')] == [
      "'+a.png", "'=1+1", '-1', "'@x", '0.5']
  assert error['error'] == "'-x"


@pytest.mark.parametrize('source', ['file', 'example'])
def test_outputs_with_the_names_of_other_keys(tmp_path, source):
  names = ['file', 'example', 'error', 'price', '=x']
  prediction = predictions.make_output_prediction({source: 'a'}, {
      name: np.array([index - 2.]) for index, name in enumerate(names)})
  assert prediction == {source: 'a', 'output_file': -2., 'output_example': -1., 'output_error': 0.,
                        'price': 1., '=x': 2.}
  columns = predictions.output_columns(source, {name: [1] for name in names})
  with predictions.open_prediction_writer(str(tmp_path / 'out.csv'), columns) as writer:
    writer.write(prediction)
  assert (writer.num_predicted, writer.num_errors) == (1, 0)
  (row,) = csv.DictReader((tmp_path / 'out.csv').open())
  assert row == {source: 'a', 'output_file': '-2.0', 'output_example': '-1.0',
                 'output_error': '0.0', 'price': '1.0', "'=x": '2.0', 'error': ''}


@pytest.mark.parametrize('name', ['out.jsonl', 'out.CSV'])
def test_bad_files(tmp_path, caplog, name):
  with predictions.open_prediction_writer(
      str(tmp_path / name), predictions.class_columns('file', LABELS)) as writer:
    writer.write(predictions.make_error(predictions.file_source(b'half\n.png'), 'it ends early'))
    writer.write(predictions.make_prediction(predictions.file_source(b'nan.png'), OUTPUTS * np.nan,
                                             LABELS))
  assert writer.num_errors == 2 and writer.num_predicted == 0
  assert writer.first_error == ('half\n.png', 'it ends early')
  assert caplog.messages == ["cannot predict 'half\\n.png' (it ends early)",
                             "cannot predict 'nan.png' (the model's outputs are not finite)"]
  if name == 'out.jsonl':
    assert lines(tmp_path / name)[0] == {'file': 'half\n.png', 'error': 'it ends early'}
  else:
    with open(str(tmp_path / name), newline='') as file:
      row, _ = csv.DictReader(file)
    assert row['error'] == 'it ends early' and row['label'] == row['top5_label'] == ''


def test_fewer_classes_and_logits_and_ties(tmp_path):
  write(tmp_path / 'out', np.array([-1, 2, 2], np.float32), labels=['a', 'b', 'c'])
  line, = lines(tmp_path / 'out')
  assert [each['label'] for each in line['top']] == ['b', 'c', 'a']  # argmax takes the first, too.
  total = sum(each['probability'] for each in line['top'])
  assert total == pytest.approx(1) and line['probability'] == pytest.approx(0.4879, abs=1e-4)


def test_only_whole_files_have_the_name(tmp_path):
  (tmp_path / 'out').write_text('of another run')
  with pytest.raises(KeyboardInterrupt), \
      predictions.open_prediction_writer(str(tmp_path / 'out'), LABELS) as writer:
    writer.write(predictions.make_prediction(predictions.file_source(b'x'), OUTPUTS, LABELS))
    writer.flush()
    assert (tmp_path / 'out').read_text() == 'of another run'
    raise KeyboardInterrupt
  assert os.listdir(str(tmp_path)) == ['out']
  write(tmp_path / 'out', OUTPUTS)
  assert len(lines(tmp_path / 'out')) == 1 and os.listdir(str(tmp_path)) == ['out']


def test_through_a_link(tmp_path):
  (tmp_path / 'link').symlink_to(tmp_path / 'file')
  write(tmp_path / 'link', OUTPUTS)
  assert (tmp_path / 'link').is_symlink() and len(lines(tmp_path / 'file')) == 1


def test_standard_output(capsys):
  write('-', OUTPUTS)
  assert json.loads(capsys.readouterr().out)['file'] == 'x.png'


def test_no_room(tmp_path):
  with pytest.raises(UserError, match='--output cannot be written: .* .No space left'), \
      predictions.open_prediction_writer(str(tmp_path / 'out'), LABELS):
    raise OSError(28, 'No space left on device')


@pytest.mark.parametrize('output, why', [
    ('none/out.csv', 'the folder {}/none does not exist'), ('.', 'not a regular file'),
    ('/dev/null', 'not a regular file')])
def test_no_such_output(tmp_path, monkeypatch, output, why):
  monkeypatch.chdir(str(tmp_path))
  with pytest.raises(UserError) as caught:
    predictions.check_output_path(output)
  assert str(caught.value).startswith('--output cannot be written: {} ({}): give a file'.format(
      output, why.format(tmp_path)))
