"""Rows of CSV and JSON Lines files: each value keeps its value, or is the error of its row."""

import csv
import gzip
import itertools
import json
import os

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import estimator_train
from estimator_train.exporting import restored_model
from estimator_train.modes import predict as predict_mode
from estimator_train.modes.predict import images, row_inputs, rows
from estimator_train.modes.predict.row_inputs import RowInput

ONE, VECTOR, ANY = (1,), (2,), (None,)


def read(path, **kinds):
  """Returns a list, or the reason, for each row of a file, and for the file if it has one."""
  with tf.Graph().as_default():
    row_inputs = {name: RowInput(tf.placeholder(dtype), tf.TensorShape(shape))
                  for name, (dtype, shape) in kinds.items()}
    entries = list(rows.read_rows(os.fsencode(str(path)), row_inputs))
  return [entry.arrays_or_error if isinstance(entry.arrays_or_error, str)
          else [value.tolist() for value in entry.arrays_or_error] for entry in entries]


VALUES = [
    # dtype, shape, text of JSON (the cell of a CSV file is the same text, or the text in quotes),
    # the value or a part of the reason.
    *((tf.bool, (), text, value) for text, value in (
        ('true', True), ('"False"', False), ('"0"', False), ('0', False), ('"no"', False),
        ('"YES"', True), ('1.0', True), ('2', 'neither'), ('"off"', 'not a number'),
        ('NaN', 'neither'), ('""', 'no value'))),
    *((dtype, (), text, value) for dtype, text, value in (
        (tf.uint8, '255', 255), (tf.uint8, '256', 'range of uint8'), (tf.uint8, '-1', 'range of'),
        (tf.uint8, 'true', 1), (tf.uint8, '"no"', 'not a number'),
        (tf.int32, '3000000000', 'range of int32'), (tf.int32, '1.5', 'not an integer'),
        (tf.int32, '7.0', 7), (tf.int32, 'NaN', 'not an integer'), (tf.int32, '1e999', 'not an'),
        (tf.int32, '"1_0"', 'not a number'), (tf.int32, '{"a": 1}', 'not a number'),
        (tf.int64, '9007199254740993', 9007199254740993),
        (tf.int64, '9007199254740993.0', None),
        (tf.int64, '123456789012345678901234567890', 'range of int64'),
        (tf.int64, '9' * 100000, 'not an integer'),
        (tf.uint64, '18446744073709551615', 2 ** 64 - 1),
        (tf.float32, '0.5', .5), (tf.float32, '1e39', 'range of float32'),
        (tf.float32, '1e999', 'range of float32'), (tf.float32, '9' * 350, None),
        (tf.float32, 'Infinity', float('inf')), (tf.float32, '-Infinity', -float('inf')),
        (tf.float16, '70000', 'range of float16'), (tf.float64, '0.1', .1),
        (tf.float32, '"a"', 'not a number'), (tf.float32, '" 1 "', 1.),
        (tf.float32, '""', 'no value'),
        (tf.string, '"[1]"', b'[1]'), (tf.string, '"é\\u0000"', 'é\0'.encode('utf-8')),
        (tf.string, '"\\ud83d"', 'not valid Unicode'), (tf.string, '""', b''))),
    (tf.string, ONE, '"[1]"', [b'[1]']), (tf.string, ONE, '"[\\"a\\"]"', [b'["a"]']),
    (tf.string, VECTOR, '["a", "[b"]', [b'a', b'[b']),
    (tf.string, ANY, '["a"]', [b'a']), (tf.string, ANY, '[]', []),
    (tf.string, VECTOR, '"a"', 'the shape is []'),
    (tf.float32, ONE, '3', [3.]), (tf.float32, ONE, '[3]', [3.]),
    (tf.float32, VECTOR, '[1, "2"]', [1., 2.]), (tf.float32, VECTOR, '[1]', 'the shape is [1]'),
    (tf.int32, VECTOR, '[1, 1e10]', 'range of int32'),
    (tf.int32, VECTOR, '[1, [2]]', 'not a number'),
    (tf.int32, (2, 2), '[[1, 2], [3]]', 'lengths'), (tf.int32, (2, 1), '[[1], [3]]', [[1], [3]]),
    (tf.int32, VECTOR, '[1, null]', 'not a number'),
    (tf.int32, ANY, '[' * 50 + ']' * 50, 'different lengths'),
    (tf.float32, None, '[[1, 2]]', [[1., 2.]]),
]


@pytest.mark.parametrize('dtype, shape, text, expected', VALUES, ids=lambda value: str(value)[:20])
def test_values(tmp_path, dtype, shape, text, expected):
  """A CSV file and JSON Lines have the same value, between two rows that are not affected."""
  valid = {tf.bool: True, tf.string: 'x'}.get(dtype, 1)
  for length in reversed(shape or ()):
    valid = [valid] * (length or 1)
  cell = str(json.loads(text)) if text.startswith('"') else text
  (tmp_path / 'a.jsonl').write_text('\n'.join('{"v": %s}' % value for value in (
      json.dumps(valid), text, json.dumps(valid))))
  with open(str(tmp_path / 'a.csv'), 'w', encoding='utf-8', errors='surrogatepass',
            newline='') as file:
    csv.writer(file).writerows([['v'], [json.dumps(valid).strip('"')], [cell, ''],
                                [json.dumps(valid).strip('"')]])
  for name in ('a.jsonl', 'a.csv'):
    first, found, last = read(tmp_path / name, v=(dtype, shape))
    assert first == last and not isinstance(first, str)
    if isinstance(expected, str):
      assert expected in found and found.startswith('v: '), name
    elif expected is None:  # It would change.
      assert isinstance(found, str), name
    else:
      assert found == [expected], name


def test_csv_files(tmp_path):
  """Long cells, NUL, quotes, line breaks, other numbers of cells, and bytes that are no UTF-8."""
  path, limit = tmp_path / 'a.csv', csv.field_size_limit()
  long_text = b'y' * (1 << 18)
  path.write_bytes(b'\xef\xbb\xbfn,other,t\r\n1,,"a\r\n""b"""\r\n\r\n2,,' + long_text
                   + b'\r\n3,,\0z\r\n4,\xff,x\r\n5,,\xff\r\n6,,a,b\r\n7,,"a"b\r\n8,,x,\r\n9\r\n'
                   b'10,,"never\r\n11,,x\r\n')
  assert read(path, n=(tf.int32, ()), t=(tf.string, ())) == [
      [1, b'a\r\n"b"'], [2, long_text], [3, b'\0z'], [4, b'x'], r"t: '\udcff' is not valid Unicode",
      'line 9: 4 cells, but 3 columns', "line 10: ',' expected after '\"'", [8, b'x'],
      't: no value', 'line 13: unexpected end of data']
  assert csv.field_size_limit() == limit


@pytest.mark.parametrize('content, reason', [
    ('a,t\n1,2\n', 'no column for n (columns: a, t)'),
    ('n,t,n\n1,2,3\n', 'several columns for n (columns: n, t, n)'), ('', 'no header'),
    ('n' * (1 << 18) + '\n', 'no column for n')])
def test_headers(tmp_path, content, reason):
  (tmp_path / 'a.csv').write_text(content)
  (found,) = read(tmp_path / 'a.csv', n=(tf.int32, ()))
  assert reason in found


def test_json_lines(tmp_path):
  """Keys that occur twice, nested and long lines, and what is no object."""
  path = tmp_path / 'a.jsonl'
  path.write_bytes(b'\xef\xbb\xbf{"n": 1, "t": "\xff"}\r\n\r\n[1]\n{"n": 1, "n": 2}\n'
                   b'{"n": 3, "t": 1, "t": 2}\n' + b'[' * 10 ** 6 + b'\n{"n": null}\n{}\n{"n":\n'
                   b'{"n": 4, "t": "' + b'y' * 10 ** 6 + b'"}')
  assert read(path, n=(tf.int32, ())) == [
      [1], 'a line must be a JSON object', 'n: several values', [3], 'JSON is nested too deeply',
      'n: no value', 'n: no value', 'Expecting value: line 2 column 1 (char 6)', [4]]


def test_files(tmp_path):
  """Compressed, truncated and other files: the rows before the damage are read."""
  content = b'n\n' + b''.join(b'%d\n' % number for number in range(20000))
  (tmp_path / 'a.csv.gz').write_bytes(gzip.compress(content))
  (tmp_path / 'b.CSV').write_bytes(gzip.compress(content)[:-5000])
  (tmp_path / 'c.jsonl.gz').write_bytes(gzip.compress(b'{"n": 5}'))
  (tmp_path / 'd.txt').write_text('n\n1\n')
  os.mkfifo(str(tmp_path / 'e.csv'))
  number = tf.int32, ()
  assert read(tmp_path / 'a.csv.gz', n=number) == [[number] for number in range(20000)]
  *found, reason = read(tmp_path / 'b.CSV', n=number)
  assert found and found == [[number] for number in range(len(found))]
  assert 'ended before' in reason
  assert read(tmp_path / 'c.jsonl.gz', n=number) == [[5]]
  assert 'must end with .csv, .jsonl' in read(tmp_path / 'd.txt', n=number)[0]
  assert read(tmp_path / 'e.csv', n=number) == ['not a regular file']
  assert [os.path.basename(path) for path in rows.find_row_files([str(tmp_path)])] == [
      b'a.csv.gz', b'b.CSV', b'c.jsonl.gz', b'e.csv']
  assert len(rows.find_row_files(['{}/*'.format(tmp_path)])) == 5
  assert rows.find_row_files([str(tmp_path / 'd.txt')]) == []


@pytest.mark.parametrize('fault, reason', [('index', 'indices[0] = 13'), ('size', 'output x must')])
def test_rows_that_the_model_cannot_process(fault, reason):
  """Such rows have errors; those of the same batch are predicted."""
  batch = [images.ExampleOrError(b'f:%d' % index, [np.array(index)]) for index in range(7)]
  with tf.Graph().as_default(), tf.Session() as session:
    index = tf.placeholder(tf.int64, [None])
    is_bad = tf.equal(index % 5, 3)
    output = (tf.gather(tf.range(10.), tf.where(is_bad, index + 10, index)) if fault == 'index'
              else tf.boolean_mask(tf.cast(index, tf.float32), ~is_bad))
    predict = session.make_callable(
        restored_model.add_size_checks({'x': output}, {'index': index}), [index])
    found = predict_mode.predict_batch(batch, predict, ())
    scalar = session.make_callable(
        restored_model.add_size_checks({'x': tf.reduce_sum(index)}, index), [index])
    assert all('error' in each for each in predict_mode.predict_batch(batch, scalar, ()))
  assert [each.get('x') for each in found] == [0., 1., 2., None, 4., 5., 6.]
  assert 'the model cannot process it: ' in found[3]['error'] and reason in found[3]['error']


NESTED = [
    # kind, shape of the input, dtype, values of rows, indices and dense shape or the nested lists
    # that are fed; of a row that does not fit, the reason.
    ('sparse', (None,), tf.int64, [[0, 3], [5, 0]], ([[0, 0], [0, 1], [1, 0], [1, 1]], [2, 2])),
    ('sparse', (None,), tf.string, [['']], ([[0, 0]], [1, 1])),
    ('sparse', (None,), tf.int64, [[], []], ([], [2, 0])),
    ('sparse', (None, None), tf.int64, [[[0], [1, 2]]],
     ([[0, 0, 0], [0, 1, 0], [0, 1, 1]], [1, 2, 2])),
    ('sparse', (None, 2), tf.int64, [[]], ([], [1, 0, 2])),
    ('sparse', (3,), tf.int64, [[0, 4, 0], [0, 0, 0]], ([[0, 1]], [2, 3])),
    ('sparse', (2,), tf.string, [['', 'a']], ([[0, 1]], [1, 2])),
    ('ragged', (None,), tf.int64, [[0, 2], [3, 4]], [[0, 2], [3, 4]]),
    ('ragged', (None, None), tf.int64, [[[1, 2], [3]], [[0], [4, 5]], []],
     [[[1, 2], [3]], [[0], [4, 5]], []]),
    ('ragged', (None, 2), tf.int64, [[[1, 2]], [[3, 0]]], [[[1, 2]], [[3, 0]]]),
    ('ragged', (None, 2), tf.int64, [[]], [[]]),
    ('ragged', (None, 2), tf.int64, [[[1, 2], [3]]], 'v: a list has 1 items, but the input has'),
    ('ragged', (None, None), tf.int64, [[1, 2]], 'v: the lists have 1 level(s), but the input'),
    ('ragged', (None,), tf.int64, [3], 'v: the lists have 0 level(s), but the input has [None]'),
    ('ragged', (None,), tf.int64, [[[3]]], 'v: the lists have 2 level(s), but the input has'),
    ('sparse', (3,), tf.int64, [[1]], 'v: the shape is [1], but the input has [3]')]


@pytest.mark.parametrize('kind, shape, dtype, values, expected', NESTED,
                         ids=lambda value: str(value)[:20])
def test_sparse_and_ragged_inputs(tmp_path, kind, shape, dtype, values, expected):
  """No value is lost, also 0 and '', and lists may have different lengths."""
  (tmp_path / 'a.jsonl').write_text('\n'.join(json.dumps({'v': value}) for value in values))
  with tf.Graph().as_default(), tf.Session() as session:
    tensor = tf.keras.Input(shape, dtype=dtype, **{kind: True})
    row_input = RowInput(tensor, tf.TensorShape(shape))
    entries = list(rows.read_rows(os.fsencode(str(tmp_path / 'a.jsonl')), {'v': row_input}))
    if isinstance(expected, str):
      assert expected in entries[0].arrays_or_error
      return
    fed = [session.run(tensor, dict(zip(row_input.placeholders(), row_inputs.make_feed_values(
        [row_input], list(map(np.stack, zip(*group)))))))
           for _, group in itertools.groupby((entry.arrays_or_error for entry in entries),
                                             lambda parts: [part.shape for part in parts])]
  if kind == 'ragged':
    assert [row for batch in fed for row in batch.to_list()] == expected
    return
  (batch,) = fed
  assert (batch.indices.tolist(), batch.dense_shape.tolist()) == expected
  flat = np.array(values, object if dtype == tf.string else None)
  if None not in shape:
    flat = flat[flat != ('' if dtype == tf.string else 0)]
  assert batch.values.tolist() == [
      value.encode() if dtype == tf.string else value
      for value in (flat.ravel() if shape != (None, None) else [0, 1, 2])]


def integers():
  """Returns examples that a model with the input [B, 1] of floating point takes, too."""
  def make():
    return tf.data.Dataset.from_tensor_slices((tf.constant([1, 2, 3], tf.int64), [2., 3., 4.]))

  split = estimator_train.ExampleSplit(make)
  return estimator_train.DataSet('integers', (), None, split, split)


def one_number():
  number = tf.keras.Input((1,), name='number')
  model = tf.keras.Model(number, tf.keras.layers.Dense(1, name='value')(number))
  model.compile('sgd', 'mse')
  return model


def sum_of_batch():
  number = tf.keras.Input((1,), name='number')
  model = tf.keras.Model(number, [tf.keras.layers.Dense(1, name='value')(number),
                                  tf.keras.layers.Lambda(tf.reduce_sum, name='sum')(number)])
  model.compile('sgd', {'value': 'mse'})
  return model


def test_examples_without_an_output_each(tmp_path):
  """They are not shifted or left out: the model is refused."""
  settings = estimator_train.Settings(dataset=integers, model=sum_of_batch, batch_size=3,
                                      train_steps=1, model_dir=str(tmp_path / 'run'))
  estimator_train.train(settings)
  with pytest.raises(estimator_train.UserError, match='process an example: .*output sum must have'):
    list(estimator_train.predict(settings))


def test_examples_are_cast_as_in_training(tmp_path):
  """Also those in memory, where an array is that of the only input."""
  settings = estimator_train.Settings(dataset=integers, model=one_number, batch_size=3,
                                      train_steps=1, model_dir=str(tmp_path / 'run'))
  estimator_train.train(settings)
  (tmp_path / 'a.csv').write_text('number\n1\n2\n3\n')
  examples, found = (
      [each['value'] for each in estimator_train.predict(settings.evolve(input=name))]
      for name in ('', str(tmp_path / 'a.csv')))
  assert len(examples) == 3 and examples == found
  for values in (np.array([1, 2, 3]), np.array([[1.], [2.], [3.]]), [1, 2, 3],
                 {'number': [1, 2, 3]}, [{'number': number} for number in (1, 2, 3)],
                 [tmp_path / 'a.csv']):
    predictions = list(estimator_train.predict(settings, values))
    assert [each.value for each in predictions] == examples
    assert [each.get('example') for each in predictions] == (
        [None] * 3 if len(values) == 1 and isinstance(values, list) else [0, 1, 2])
