"""Examples that functions of the user make: counts, weights, and errors that name the function."""

import json

import pytest
import tensorflow.compat.v1 as tf
from conftest import batches, record_of
from tensorflow.compat import v2
from test_source_contract import COUNT, PLAN, SHAPE, parse, parse_batch, write_in_files

from estimator_train import DataSet, ExampleSplit, RecordSplit
from estimator_train.data import datasets, opening, user_examples
from estimator_train.data.source import translate_errors
from estimator_train.errors import UserError
from estimator_train.run_dir import RunDir
from estimator_train.settings import Settings


@pytest.fixture
def pattern(tmp_path):
  write_in_files(tmp_path, [record_of(bytes([10 * number] * 6), number % 3)
                            for number in range(COUNT)], 7)
  return str(tmp_path / 'train-*')


@pytest.fixture
def source_of(monkeypatch, tmp_path):
  """Makes the source of a split that a user's function returns."""
  def source_of(split):
    dataset = DataSet('any', ('a', 'b', 'c'), SHAPE, split)
    monkeypatch.setattr(datasets.user_code, 'call_function', lambda *unused: dataset)
    settings = Settings(dataset='own:data', mode='train', train_steps=1, model_dir=str(tmp_path))
    return opening.open_data(settings, RunDir(str(tmp_path)), RunDir(str(tmp_path)), False).train

  return source_of


def make_dataset():
  return tf.data.Dataset.range(COUNT).map(
      lambda number: (tf.fill(SHAPE, tf.cast(number, tf.uint8)), number % 3))


def test_weights_and_dicts(source_of):
  source = source_of(ExampleSplit(lambda: v2.data.Dataset.range(8).map(  # Of TensorFlow 2.
      lambda number: ({'a': tf.fill(SHAPE, number)}, number % 3, 0.5))))
  for input_fn in (source.make_eval_input_fn(*PLAN.evaluation),
                   source.make_train_input_fn(*PLAN, 'memory')):
    ((features, _),), _ = batches(input_fn, 1)
    assert set(features) == {'features', 'sample_weights'} and set(features['features']) == {'a'}
    assert features['features']['a'].shape == (4,) + SHAPE
    assert features['sample_weights'].tolist() == [0.5] * 4


def test_a_cache_that_does_not_fit(source_of, pattern, monkeypatch):
  monkeypatch.setattr(user_examples.machine, 'available_bytes', lambda: 300)
  with pytest.raises(UserError, match='the cache does not fit into memory'):
    source_of(RecordSplit(pattern, parse)).make_train_input_fn(*PLAN, 'memory')


def test_examples_are_counted_once(source_of, caplog, tmp_path):
  caplog.set_level('INFO')
  # Lambdas have one name, and are counted each.
  sources = [source_of(ExampleSplit(lambda size=size: make_dataset().take(size)))
             for size in (5, 7)]
  assert [source.check_and_count_examples() for source in sources] == [5, 7]
  assert not (tmp_path / 'example_counts.json').exists()
  for _ in range(2):
    assert source_of(ExampleSplit(make_dataset)).check_and_count_examples() == COUNT
  assert source_of(ExampleSplit(make_dataset, 5)).check_and_count_examples() == 5
  assert caplog.text.count('counting the examples') == 3


@pytest.mark.parametrize('count', [COUNT - 1, COUNT + 1, 3 * COUNT])
def test_counts_of_other_data_are_noticed(source_of, tmp_path, count):
  (tmp_path / 'example_counts.json').write_text(json.dumps(
      {user_examples.qualified_name(make_dataset): count}))
  source, given = source_of(ExampleSplit(make_dataset)), source_of(
      ExampleSplit(make_dataset, count))
  worker = PLAN.given(shard=PLAN.order.shard._replace(
      rank=1, num_workers=2, worker_batch_size=4))
  place = 'in {}: remove this file'.format(tmp_path / 'example_counts.json')
  for make_input_fn, by in (
      (lambda: given.make_eval_input_fn(*PLAN.evaluation),
       'of num_examples: correct num_examples'),
      (lambda: source.make_eval_input_fn(*PLAN.evaluation), place),
      (lambda: source.make_train_input_fn(*PLAN, 'none'), place),
      (lambda: source.make_train_input_fn(*worker, 'none'), place),
      (lambda: source.make_train_input_fn(*PLAN, 'memory'), place)):
    with pytest.raises(UserError, match='the number of examples has changed: .*make_dataset makes '
                       '{} than the {} {}'.format(
                           'more' if count < COUNT else 'fewer', count, by)), \
        translate_errors(source):
      batches(make_input_fn(), 2 * COUNT)
  right = source_of(ExampleSplit(make_dataset, COUNT)).make_train_input_fn(*PLAN, 'none')
  assert len(batches(right, 2 * COUNT)[0]) == 2 * COUNT


def make_sparse_and_ragged():
  return tf.data.Dataset.range(3).map(lambda number: ({
      'sparse': tf.sparse.from_dense([number, 2]),
      'ragged': tf.ragged.constant([[1, 2], [3]])}, number))


def test_counted_examples_can_be_sparse_and_ragged(source_of):
  """ParsedRecordSource and ExampleSource pass on composite tensors as they are."""
  source = source_of(ExampleSplit(make_sparse_and_ragged, 3))
  dataset = source.make_eval_input_fn(*PLAN.evaluation)()
  features, _ = dataset.element_spec
  assert type(features['sparse']) is tf.SparseTensorSpec
  assert type(features['ragged']) is tf.RaggedTensorSpec


def failing_later():
  return tf.data.Dataset.range(9).map(lambda number: (tf.reshape(
      tf.range(6), tf.stack([2, tf.where(number < 5, 3, 4)])), number % 3))


def of_another_size(record):
  pixels, label = parse(record)
  return tf.reshape(pixels, tf.stack([2, tf.where(label < 2, 3, 5)])), label


HERE = r'test_parsed_examples.py:\d+'


@pytest.mark.parametrize('split, message', [
    (ExampleSplit(lambda: make_dataset().repeat()),
     'a dataset of examples must be finite: .*lambda>: omit `repeat`'),
    (ExampleSplit(lambda: make_dataset().take(0)), 'a split of the data set has no examples'),
    (ExampleSplit(lambda: [1, 2]), 'make_dataset must return a tf.data.Dataset: .*> returns list'),
    (ExampleSplit(failing_later), r'make_dataset of a split failed: .*failing_later \(.*requested'),
    (RecordSplit('any', parse, parse_batch), 'a RecordSplit has parse or parse_batch, not both'),
    (RecordSplit('/none/*', parse), 'a pattern matches no file: .*train has pattern=/none')])
def test_splits_that_cannot_be(source_of, split, message):
  with pytest.raises(UserError, match=message):
    source_of(split).check_and_count_examples()


@pytest.mark.parametrize('make, message', [
    (lambda: make_dataset().map(lambda pixels, label: (pixels, tf.where(label < 2, label, 3))),
     r'lambda>, example 2 \(the label is 3, but classes are from 0 to 2'),
    (lambda record: (parse(record)[0], parse(record)[1] - 1),
     r'lambda> for .*: record 0 \(the label is -1'),
    (of_another_size, r'of_another_size for .*train-00: record 2 \(.*' + HERE +
     ': Input to reshape is a tensor with 6 values, but the requested shape has 10'),
    (lambda record: parse(record)[0], r'must be \(features, label\) or \(features, label, weight')])
def test_an_example_that_fails_is_named(source_of, pattern, make, message):
  source = source_of(RecordSplit(pattern, make) if make.__code__.co_argcount
                     else ExampleSplit(make, 9))
  for one_hot in (True, False):
    with pytest.raises(UserError, match=message), translate_errors(source):
      batches(source.make_train_input_fn(*PLAN.given(one_hot=one_hot), 'none'), 7)


@pytest.mark.parametrize('convert, message', [
    (lambda pixels, label: (pixels, tf.constant('cat')),
     'labels must be integers, indices into the class names: .* returns string: convert them'),
    (lambda pixels, label: (pixels, label, tf.constant('heavy')),
     'weights must be numbers: .* returns string: convert')])
def test_dtypes_of_labels_and_weights(source_of, pattern, convert, message):
  source = source_of(RecordSplit(pattern, lambda record: convert(*parse(record))))
  for use in (source.read_class_indices, source.make_train_input_fn(*PLAN, 'none'),
              source.make_eval_input_fn(*PLAN.evaluation)):
    with tf.Graph().as_default(), pytest.raises(UserError, match=message):
      use()
