"""Examples that functions of the user make: counts, weights, and errors that name the function."""

import pytest
import tensorflow.compat.v1 as tf
from conftest import batches, write_records
from test_source_contract import SHAPE, parse, parse_batch, raw_record

from estimator_train.datasets import own
from estimator_train.datasets.description import DataSet, ExampleSplit, RecordSplit
from estimator_train.errors import UserError
from estimator_train.inputs import cached_examples, factory, user_datasets
from estimator_train.inputs.batching import Batching
from estimator_train.inputs.file_errors import translate_errors
from estimator_train.settings import Settings

COUNT = 21
BATCHING = Batching(SHAPE, 3, one_hot=False, examples_per_batch=4, num_parallel_calls=2)


@pytest.fixture
def pattern(tmp_path):
  for shard in range(3):
    write_records(tmp_path / 'train-{}'.format(shard), [
        raw_record(number, number % 3) for number in range(7 * shard, 7 * shard + 7)])
  return str(tmp_path / 'train-*')


@pytest.fixture
def source_of(monkeypatch, tmp_path):
  """Makes the source of a split that a user's function returns."""
  def source_of(split):
    dataset = DataSet('any', ('a', 'b', 'c'), SHAPE, split)
    monkeypatch.setattr(own.user_code, 'call_function', lambda *unused: dataset)
    settings = Settings(dataset='own:data', mode='train', train_steps=1, model_dir=str(tmp_path))
    described = factory.count_examples(own.describe(settings), settings)
    return factory.make_source(described, described.train)

  return source_of


def train(source, num_batches, **given):
  with translate_errors(source):
    return batches(source.make_train_input_fn(BATCHING._replace(**given), 'none'), num_batches)[0]


def make_dataset():
  return tf.data.Dataset.range(COUNT).map(
      lambda number: (tf.fill(SHAPE, tf.cast(number, tf.uint8)), number % 3))


def test_weights_and_dicts(source_of):
  source = source_of(ExampleSplit(
      lambda: make_dataset().map(lambda pixels, label: ({'a': pixels}, label, 0.5))))
  for input_fn in (source.make_eval_input_fn(BATCHING),
                   source.make_train_input_fn(BATCHING, 'memory')):
    ((features, _),), _ = batches(input_fn, 1)
    assert set(features) == {'features', 'sample_weights'} and set(features['features']) == {'a'}
    assert features['features']['a'].shape == (4,) + SHAPE
    assert features['sample_weights'].tolist() == [0.5] * 4


def test_a_cache_that_does_not_fit(source_of, pattern, monkeypatch):
  monkeypatch.setattr(cached_examples.memory, 'available_bytes', lambda: 300)
  for split in (RecordSplit(pattern, parse), ExampleSplit(make_dataset)):
    with pytest.raises(UserError, match='the cache does not fit into memory'):
      source_of(split).make_train_input_fn(BATCHING, 'memory')


def test_examples_are_counted_once(source_of, monkeypatch, tmp_path):
  calls = []
  count = user_datasets._count
  monkeypatch.setattr(user_datasets, '_count', lambda *given: calls.append(1) or count(*given))
  # Lambdas have one name, and are counted each.
  assert [source_of(ExampleSplit(lambda size=size: make_dataset().take(size))).check_and_count()
          for size in (5, 7)] == [5, 7]
  assert not (tmp_path / 'example_counts.json').exists()
  for _ in range(2):
    assert source_of(ExampleSplit(make_dataset)).check_and_count() == COUNT
  assert len(calls) == 3
  (tmp_path / 'example_counts.json').write_text('[]')
  assert source_of(ExampleSplit(make_dataset)).check_and_count() == COUNT and len(calls) == 4
  assert source_of(ExampleSplit(make_dataset, 5)).check_and_count() == 5 and len(calls) == 4


def test_a_dataset_of_tensorflow_2(source_of):
  from tensorflow.compat import v2

  def make():
    return v2.data.Dataset.range(5).map(lambda number: (tf.fill(SHAPE, tf.cast(number, tf.uint8)),
                                                        number % 3))

  found, _ = batches(source_of(ExampleSplit(make)).make_eval_input_fn(BATCHING))
  assert [number for pixels, _ in found for number in pixels[:, 0, 0, 0]] == list(range(5))


def infinite():
  return make_dataset().repeat()


def empty():
  return make_dataset().take(0)


def not_a_dataset():
  return [1, 2]


def failing():
  raise KeyError('x')


def failing_later():
  return tf.data.Dataset.range(9).map(lambda number: (tf.reshape(
      tf.range(6), tf.stack([2, tf.where(number < 5, 3, 4)])), number % 3))


def of_a_fourth_class():
  return make_dataset().map(lambda pixels, label: (pixels, tf.where(label < 2, label, 3)))


@pytest.mark.parametrize('split, message', [
    (ExampleSplit(infinite), 'a dataset of examples must be finite: .*infinite: omit `repeat`'),
    (ExampleSplit(empty), 'a split of the data set has no examples'),
    (ExampleSplit(not_a_dataset),
     r'make_dataset must return a tf.data.Dataset: .*not_a_dataset returns list'),
    (ExampleSplit(failing),
     r"a function of a split failed: .*failing \(.*test_parsed_examples.py:\d+: KeyError"),
    (ExampleSplit(failing_later),
     r'make_dataset of a split failed: .*failing_later \(.*requested shape'),
    (RecordSplit('any', parse, parse_batch), 'a RecordSplit has parse or parse_batch, not both'),
    (RecordSplit('/none/*', parse), 'a pattern matches no file: .*train has pattern=/none')])
def test_splits_that_cannot_be(source_of, split, message):
  with pytest.raises(UserError, match=message):
    source_of(split).check_and_count()


def of_another_class(record):
  pixels, label = parse(record)
  return pixels, label - 1


def of_another_size(record):
  pixels, label = parse(record)
  return tf.reshape(pixels, tf.stack([2, tf.where(label < 2, 3, 5)])), label


def without_label(record):
  return parse(record)[0]


def wrong_code(record):
  return parse(record)['pixels']


@pytest.mark.parametrize('make, message', [
    (failing_later, r'failing_later, example 5 \(.*requested shape has 8'),
    (of_a_fourth_class, r'of_a_fourth_class, example 2 \(the label is 3, but classes are from 0 to '
     '2'),
    (of_another_class, r"of_another_class for .*: record 0 \(the label is -1"),
    (of_another_size, r'of_another_size for .*train-0: record 2 \(.*test_parsed_examples.py:\d+: '
     'Input to reshape is a tensor with 6 values, but the requested shape has 10'),
    (without_label, r'must be \(features, label\) or \(features, label, weight\): .*without_label'),
    (wrong_code, r'a function of a split failed: .*wrong_code \(.*test_parsed_examples.py:\d+'),
])
def test_an_example_that_fails_is_named(source_of, pattern, make, message):
  split = (ExampleSplit(make, 9) if make in (failing_later, of_a_fourth_class)
           else RecordSplit(pattern, make))
  source = source_of(split)
  for one_hot in (True, False):
    with pytest.raises(UserError, match=message):
      train(source, 7, one_hot=one_hot)


@pytest.mark.parametrize('convert, message', [
    (lambda pixels, label: (pixels, tf.constant('cat')),
     'labels must be integers, indices into the class names: .* returns string: convert them'),
    (lambda pixels, label: (pixels, tf.constant(0.5)),
     'labels must be integers, .* returns float32: give tf.cast'),
    (lambda pixels, label: (pixels, label, tf.constant('heavy')),
     'weights must be numbers: .* returns string: convert')])
def test_dtypes_of_labels_and_weights(source_of, pattern, convert, message):
  for split in (RecordSplit(pattern, lambda record: convert(*parse(record))),
                ExampleSplit(lambda: make_dataset().map(convert), 7)):
    source = source_of(split)
    for use in (source.class_indices, source.make_train_input_fn(BATCHING, 'none'),
                source.make_eval_input_fn(BATCHING)):
      with tf.Graph().as_default(), pytest.raises(UserError, match=message):
        use()
