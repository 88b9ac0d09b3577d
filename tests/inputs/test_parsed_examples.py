"""Examples that functions of the user parse: batches, order, shards, counts, weights and errors."""

from collections import Counter

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from conftest import batches, write_records

from estimator_train.datasets import own
from estimator_train.datasets.description import DataSet, ExampleSplit, RecordSplit
from estimator_train.errors import UserError
from estimator_train.inputs import cached_examples, factory, parsed_records, user_datasets
from estimator_train.inputs.batching import Batching, Shard
from estimator_train.inputs.file_errors import translate_errors
from estimator_train.settings import Settings

SHAPE = (2, 3, 1)
COUNT = 21
FEATURES = {'pixels': tf.io.FixedLenFeature([], tf.string),
            'label': tf.io.FixedLenFeature([], tf.int64)}


def batching(**given):
  return Batching(SHAPE, 3, one_hot=False, **dict(
      {'examples_per_batch': 4, 'shuffle_buffer': 5, 'num_parallel_calls': 2}, **given))


def parse(record):
  values = tf.io.parse_single_example(record, FEATURES)
  return tf.reshape(tf.decode_raw(values['pixels'], tf.uint8), SHAPE), values['label']


def parse_batch(records):
  values = tf.io.parse_example(records, FEATURES)
  return tf.reshape(tf.decode_raw(values['pixels'], tf.uint8), (-1,) + SHAPE), values['label']


def make_dataset():
  numbers = tf.data.Dataset.range(COUNT)
  return numbers.map(lambda number: (tf.fill(SHAPE, tf.cast(number, tf.uint8)), number % 3))


def with_weights():
  return make_dataset().map(lambda pixels, label: ({'a': pixels}, label, 0.5))


@pytest.fixture
def records(tmp_path):
  def record(number):
    return tf.train.Example(features=tf.train.Features(feature={
        'pixels': tf.train.Feature(bytes_list=tf.train.BytesList(value=[bytes([number]) * 6])),
        'label': tf.train.Feature(int64_list=tf.train.Int64List(value=[number % 3])),
    })).SerializeToString()

  for shard in range(3):
    write_records(tmp_path / 'train-{}'.format(shard),
                  map(record, range(7 * shard, 7 * shard + 7)))
  return str(tmp_path / 'train-*')


def source_of(split, monkeypatch, tmp_path):
  dataset = DataSet('any', ('a', 'b', 'c'), SHAPE, split)
  monkeypatch.setattr(own.user_code, 'call_function', lambda *unused: dataset)
  settings = Settings(dataset='own:data', mode='train', train_steps=1, model_dir=str(tmp_path))
  described = factory.count_examples(own.describe(settings), settings)
  return factory.make_source(described, described.train)


@pytest.fixture(params=['parse', 'parse_batch', 'examples'])
def source(request, records, monkeypatch, tmp_path):
  split = {'parse': RecordSplit(records, parse),
           'parse_batch': RecordSplit(records, parse_batch=parse_batch),
           'examples': ExampleSplit(make_dataset)}[request.param]
  return source_of(split, monkeypatch, tmp_path)


def numbers_of(input_fn, count=None):
  found, _ = batches(input_fn, count)
  for pixels, labels in found:
    assert pixels.dtype == np.uint8 and pixels.shape[1:] == SHAPE
    assert (pixels[:, 0, 0, 0] % 3 == labels).all()
  return [pixels[:, 0, 0, 0].tolist() for pixels, _ in found]


def flat(lists):
  return [number for part in lists for number in part]


def test_evaluation_reads_each_example_once_in_order(source):
  assert source.check_and_count() == COUNT
  read = numbers_of(source.make_eval_input_fn(batching()))
  assert flat(read) == list(range(COUNT)) and [len(batch) for batch in read] == 5 * [4] + [1]


def test_training_shuffles_each_epoch(source):
  read = flat(numbers_of(source.make_train_input_fn(batching(), 'none'), 21))
  epochs = [read[start:start + COUNT] for start in range(0, 63, COUNT)]
  assert all(Counter(epoch) == Counter(range(COUNT)) for epoch in epochs)
  assert len(set(map(tuple, epochs))) == 3
  again = flat(numbers_of(source.make_train_input_fn(batching(seed=2), 'none'), 21))
  assert again != read


def test_a_resumed_run_continues_with_the_next(source):
  straight = numbers_of(source.make_train_input_fn(batching(), 'none'), 12)
  shard = Shard(first_example=28)
  assert numbers_of(source.make_train_input_fn(batching(shard=shard), 'none'), 5) == straight[7:]


def test_workers_read_what_one_process_would(source):
  of_one = numbers_of(source.make_train_input_fn(batching(), 'none'), 12)
  for rank in (0, 1, 2):
    own_batches = numbers_of(source.make_train_input_fn(
        batching(shard=Shard(0, 3, rank, 4)), 'none'), 4)
    assert own_batches == of_one[rank::3]


def test_cached_examples_have_the_same_order(source, monkeypatch):
  shard = Shard(8, 2, 1, 4)
  read = numbers_of(source.make_train_input_fn(batching(shard=shard), 'none'), 9)
  cached = source.make_train_input_fn(batching(shard=shard), 'memory')
  monkeypatch.setattr(parsed_records.RecordReader, 'read', None)
  monkeypatch.setattr(user_datasets, '_make_user_dataset', None)
  assert numbers_of(cached, 9) == read


def test_a_cache_that_does_not_fit(source, monkeypatch):
  monkeypatch.setattr(cached_examples.memory, 'available_bytes', lambda: 300)
  with pytest.raises(UserError, match='the cache does not fit into memory'):
    source.make_train_input_fn(batching(), 'memory')


def test_one_hot_labels(source):
  ((_, labels), *_), _ = batches(source.make_eval_input_fn(batching()._replace(one_hot=True)), 1)
  np.testing.assert_array_equal(labels, np.eye(3)[[0, 1, 2, 0]])


def test_weights_and_dicts(monkeypatch, tmp_path):
  source = source_of(ExampleSplit(with_weights), monkeypatch, tmp_path)
  ((features, _), *_), _ = batches(source.make_eval_input_fn(batching()), 1)
  assert set(features) == {'features', 'sample_weights'} and set(features['features']) == {'a'}
  assert features['sample_weights'].tolist() == [0.5] * 4
  ((cached, _),), _ = batches(source.make_train_input_fn(batching(), 'memory'), 1)
  assert cached['features']['a'].shape == (4,) + SHAPE
  assert cached['sample_weights'].tolist() == [0.5] * 4


def test_examples_are_counted_once(monkeypatch, tmp_path):
  calls = []
  count = user_datasets._count
  monkeypatch.setattr(user_datasets, '_count', lambda *given: calls.append(1) or count(*given))
  for _ in range(2):
    assert source_of(ExampleSplit(make_dataset), monkeypatch, tmp_path).check_and_count() == COUNT
  assert len(calls) == 1
  (tmp_path / 'example_counts.json').write_text('[]')
  assert source_of(ExampleSplit(make_dataset), monkeypatch, tmp_path).check_and_count() == COUNT
  assert len(calls) == 2
  assert source_of(ExampleSplit(make_dataset, 5), monkeypatch, tmp_path).check_and_count() == 5


def infinite():
  return make_dataset().repeat()


def empty():
  return make_dataset().take(0)


def not_a_dataset():
  return [1, 2]


def failing():
  raise KeyError('x')


def test_lambdas_of_one_name_are_counted_separately(monkeypatch, tmp_path):
  sizes = [source_of(ExampleSplit(lambda size=size: make_dataset().take(size)), monkeypatch,
                     tmp_path).check_and_count() for size in (5, 7)]
  assert sizes == [5, 7] and not (tmp_path / 'example_counts.json').exists()


def failing_later():
  return tf.data.Dataset.range(9).map(lambda number: (tf.reshape(
      tf.range(6), tf.stack([2, tf.where(number < 5, 3, 4)])), number % 3))


@pytest.mark.parametrize('function, message', [
    (infinite, 'a dataset of examples must be finite: .*infinite: omit `repeat`'),
    (empty, 'a split of the data set has no examples'),
    (not_a_dataset, r'make_dataset must return a tf.data.Dataset: .*not_a_dataset returns list'),
    (failing, r"a function of a split failed: .*failing \(.*test_parsed_examples.py:\d+: KeyError"),
    (failing_later, r'make_dataset of a split failed: .*failing_later \(.*requested shape'),
])
def test_datasets_that_cannot_be(monkeypatch, tmp_path, function, message):
  with pytest.raises(UserError, match=message):
    source_of(ExampleSplit(function), monkeypatch, tmp_path).check_and_count()


def test_an_example_that_fails_is_named(monkeypatch, tmp_path):
  source = source_of(ExampleSplit(failing_later, 9), monkeypatch, tmp_path)
  with pytest.raises(UserError, match=r'failing_later, example 5 \(.*requested shape has 8'), (
      translate_errors(source)):
    batches(source.make_train_input_fn(batching(), 'none'), 3)


def of_a_fourth_class():
  return make_dataset().map(lambda pixels, label: (pixels, tf.where(label < 2, label, 3)))


@pytest.mark.parametrize('one_hot', [True, False])
def test_a_class_that_is_out_of_range_is_named(monkeypatch, tmp_path, one_hot):
  source = source_of(ExampleSplit(of_a_fourth_class, COUNT), monkeypatch, tmp_path)
  with pytest.raises(UserError, match=r'of_a_fourth_class, example 2 \(the label is 3, but classes '
                     'are from 0 to 2'), translate_errors(source):
    batches(source.make_train_input_fn(batching()._replace(one_hot=one_hot), 'none'), 5)


def of_another_class(record):
  pixels, label = parse(record)
  return pixels, label - 1


def test_a_record_whose_class_is_out_of_range_is_named(records, monkeypatch, tmp_path):
  source = source_of(RecordSplit(records, of_another_class), monkeypatch, tmp_path)
  with pytest.raises(UserError, match=r"of_another_class for .*: record 0 \(the label is -1"), (
      translate_errors(source)):
    batches(source.make_train_input_fn(batching(), 'none'), 6)


def of_another_size(record):
  pixels, label = parse(record)
  return tf.reshape(pixels, tf.stack([2, tf.where(label < 2, 3, 5)])), label


def without_label(record):
  return parse(record)[0]


def name_as_label(record):
  return parse(record)[0], tf.constant('cat')


def fraction_as_label(record):
  return parse(record)[0], tf.constant(0.5)


def name_as_weight(record):
  return (*parse(record), tf.constant('heavy'))


def wrong_code(record):
  return parse(record)['pixels']


@pytest.mark.parametrize('function, message', [
    (of_another_size, r'of_another_size for .*train-0: record 2 \(.*test_parsed_examples.py:\d+: '
     r'Input to reshape is a tensor with 6 values, but the requested shape has 10'),
    (without_label, r'must be \(features, label\) or \(features, label, weight\): .*without_label'),
    (wrong_code, r'a function of a split failed: .*wrong_code \(.*test_parsed_examples.py:\d+'),
])
def test_functions_that_fail(monkeypatch, tmp_path, records, function, message):
  source = source_of(RecordSplit(records, function), monkeypatch, tmp_path)
  with pytest.raises(UserError, match=message), translate_errors(source):
    batches(source.make_train_input_fn(batching(), 'none'), 7)


@pytest.mark.parametrize('function, message', [
    (name_as_label, 'labels must be integers, indices into the class names: .*name_as_label '
     'returns string: convert them'),
    (fraction_as_label, 'labels must be integers, .* returns float32: give tf.cast'),
    (name_as_weight, 'weights must be numbers: .*name_as_weight returns string: convert'),
])
def test_dtypes_of_labels_and_weights(monkeypatch, tmp_path, records, function, message):
  def make_examples():
    return tf.data.TFRecordDataset([records.replace('*', '0')]).map(function)

  make_examples.__qualname__ = function.__qualname__  # Which the message contains.
  for split in (RecordSplit(records, function), ExampleSplit(make_examples, 7)):
    source = source_of(split, monkeypatch, tmp_path)
    for use in (source.class_indices, source.make_train_input_fn(batching(), 'none'),
                source.make_eval_input_fn(batching())):
      with tf.Graph().as_default(), pytest.raises(UserError, match=message):
        use()


def test_two_functions(monkeypatch, tmp_path, records):
  with pytest.raises(UserError, match='a RecordSplit has parse or parse_batch, not both'):
    source_of(RecordSplit(records, parse, parse_batch), monkeypatch, tmp_path)


def test_no_files(monkeypatch, tmp_path):
  with pytest.raises(UserError, match='a pattern matches no file: .*train has pattern=/none'):
    source_of(RecordSplit('/none/*', parse), monkeypatch, tmp_path)


def test_a_dataset_of_tensorflow_2(monkeypatch, tmp_path):
  from tensorflow.compat import v2

  def make():
    return v2.data.Dataset.range(5).map(lambda number: (tf.fill(SHAPE, tf.cast(number, tf.uint8)),
                                                        number % 3))

  source = source_of(ExampleSplit(make), monkeypatch, tmp_path)
  assert flat(numbers_of(source.make_eval_input_fn(batching()))) == list(range(5))
