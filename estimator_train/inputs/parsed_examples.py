"""Reads examples that functions of the user parse: records, and elements of a tf.data.Dataset."""

import json
import logging
import os
from typing import Any, Callable, Dict, List, Optional, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.datasets import fingerprint
from estimator_train.datasets.description import DataSet, ExampleSplit, ParsedRecordSplit
from estimator_train.datasets.record_index import describe_record
from estimator_train.errors import UserError
from estimator_train.files import atomic
from estimator_train.inputs import cached_examples, order
from estimator_train.inputs.batching import Batching
from estimator_train.inputs.record_reader import RecordReader
from estimator_train.inputs.source import FilePath, InputFn, Source
from estimator_train.settings import user_code

_LOG = logging.getLogger('estimator_train')
_COUNTS_FILE = 'example_counts.json'
_CHUNK_SIZE = 64  # The number of records that one call of a Python function reads.
_PARALLEL_READS = 2
# Also the base class of the datasets of tf.compat.v2.
_DATASET_BASE_CLASS = tf.data.Dataset.__mro__[1]


class ParsedRecordSource(Source):
  """The source of a ParsedRecordSplit. A worker reads only the records of its shard."""
  format_name = 'records'

  def __init__(self, dataset: DataSet, split: ParsedRecordSplit) -> None:
    super().__init__(dataset, split)
    self._reader = RecordReader(split.records)

  def check_and_count(self) -> Optional[int]:
    self.split.records.check()
    return self.split.records.num_records

  def make_train_input_fn(self, batching: Batching, cache: str) -> InputFn:
    count, function = self.split.records.num_records, self._function
    if cache == 'memory':
      return _make_cached_input_fn(self, count, self._read_in_order, function, batching)
    return lambda: _encode_batches(self._parse_batches(lambda chunk_size: self.training_chunks(
        count, batching, chunk_size), batching), function, batching)

  def make_eval_input_fn(self, batching: Batching) -> InputFn:
    return lambda: _encode_batches(self._read_in_order(batching), self._function, batching)

  def cache_key(self) -> str:
    return fingerprint.of_files(self.split.records.files)

  def digest_of_examples(self) -> str:
    return fingerprint.of_arrays([self.split.records.lengths])

  def files(self) -> List[FilePath]:
    return list(self.split.records.files)

  def input_fns_before_last_stage(self, batching: Batching) -> Dict[str, InputFn]:
    return {'read': lambda: batching.use_private_threadpool(self._read(self.training_chunks(
        self.split.records.num_records, batching, batching.examples_per_batch)))}

  def explain_failure(self) -> Optional[UserError]:
    parse_one = self.split.parse or (lambda record: self.split.parse_batch([record]))
    with tf.Graph().as_default(), tf.Session(
        config=tf.ConfigProto(device_count={'GPU': 0})) as session:
      record = tf.placeholder(tf.string, [])
      run_parse = session.make_callable(tf.nest.flatten(parse_one(record)), [record])
      for index in range(self.split.records.num_records):
        try:
          run_parse(self._reader.read(np.array([index]))[0])
        except tf.errors.OpError as error:
          frames = error.op.traceback if error.op is not None else []
          return UserError('a function of a split failed', '{} for {} ({}{})'.format(
              _function_name(self._function),
              describe_record(*self.split.records.locate(index)),
              user_code.find_location((frame[0], frame[1]) for frame in frames),
              error.message.splitlines()[0]), 'fix this function, or the record')
    return None

  @property
  def _function(self) -> Callable[[Any], Any]:
    """The function of the user."""
    function: Callable[[Any], Any] = self.split.parse or self.split.parse_batch
    return function

  def _read_in_order(self, batching: Batching) -> tf.data.Dataset:
    """Returns a dataset of batches of all examples, as the function of the user returns them."""
    return self._parse_batches(lambda chunk_size: order.evaluation_chunks(
        self.split.records.num_records, chunk_size), batching)

  def _parse_batches(self, make_chunks: Callable[[int], tf.data.Dataset],
                     batching: Batching) -> tf.data.Dataset:
    """Returns a dataset of batches, as the function of the user returns them.

    Args:
      make_chunks: takes a chunk size, and returns a dataset of the indices of the records.
      batching: how the examples are combined into batches.
    """
    with _naming(self._function):
      if self.split.parse_batch is not None:
        return self._read(make_chunks(batching.examples_per_batch)).map(
            self._function, batching.num_parallel_calls)
      records = self._read(make_chunks(_CHUNK_SIZE)).apply(tf.data.experimental.unbatch())
      return records.apply(tf.data.experimental.map_and_batch(
          self._function, batching.examples_per_batch,
          num_parallel_calls=batching.num_parallel_calls))

  def _read(self, chunks: tf.data.Dataset) -> tf.data.Dataset:
    """Returns a dataset of records, string [n], for a dataset of indices, int64 [n]."""
    def read_records(indices: np.ndarray) -> np.ndarray:
      return np.array(self._reader.read(indices), object)

    # Without this decorator, AutoGraph would take time, although it converts nothing.
    @tf.autograph.experimental.do_not_convert
    def read(indices: tf.Tensor) -> tf.Tensor:
      records = tf.numpy_function(read_records, [indices], tf.string)
      records.set_shape(indices.shape)
      return records

    return chunks.map(read, _PARALLEL_READS)


class ExampleSource(Source):
  """The source of an ExampleSplit, whose examples are read one after the other.

  With several workers, each worker reads all examples, and keeps those of its shard.
  """
  format_name = 'examples'
  last_stage = None

  def with_count(self, model_dir: str) -> ExampleSplit:
    if self.split.num_examples is not None:
      return self.split
    return self.split._replace(num_examples=_count_once(self.split.make_dataset, model_dir))

  def check_and_count(self) -> Optional[int]:
    if not self.split.num_examples:
      raise UserError('a split of the data set has no examples', '--dataset=' + self.dataset.name,
                      'return a dataset with examples from make_dataset')
    return int(self.split.num_examples)

  def make_train_input_fn(self, batching: Batching, cache: str) -> InputFn:
    make_dataset, count = self.split.make_dataset, self.split.num_examples
    if cache == 'memory':
      return _make_cached_input_fn(self, count, self._read_in_order, make_dataset, batching)
    return lambda: _encode_batches(
        batching.shuffle_and_shard(_make_user_dataset(make_dataset), count).batch(
            batching.examples_per_batch), make_dataset, batching)

  def make_eval_input_fn(self, batching: Batching) -> InputFn:
    return lambda: _encode_batches(self._read_in_order(batching), self.split.make_dataset,
                                   batching)

  def training_chunks(self, num_examples: int, batching: Batching,
                      chunk_size: int) -> tf.data.Dataset:
    return batching.shuffle_and_shard(tf.data.Dataset.range(num_examples),
                                      num_examples).batch(chunk_size)

  def explain_failure(self) -> Optional[UserError]:
    with tf.Graph().as_default(), tf.Session(
        config=tf.ConfigProto(device_count={'GPU': 0})) as session:
      dataset = _make_user_dataset(self.split.make_dataset)
      next_example = tf.data.make_one_shot_iterator(dataset).get_next()
      run = session.make_callable(tf.group(*tf.nest.flatten(next_example)))
      for index in range(self.split.num_examples):
        try:
          run()
        except tf.errors.OpError as error:
          return UserError('make_dataset of a split failed', '{}, example {} ({})'.format(
              _function_name(self.split.make_dataset), index, error.message.splitlines()[0]),
              'fix this function, or the example')
    return None

  def _read_in_order(self, batching: Batching) -> tf.data.Dataset:
    """Returns a dataset of batches of all examples, as the user's dataset yields them."""
    return _make_user_dataset(self.split.make_dataset).batch(batching.examples_per_batch)


def _make_cached_input_fn(source: Source, num_examples: int,
                          read_in_order: Callable[[Batching], tf.data.Dataset], function: Any,
                          batching: Batching) -> InputFn:
  """Reads all examples into memory, and makes the `input_fn` of training.

  Args:
    source: the source of the examples, which determines their order.
    num_examples: the number of examples.
    read_in_order: returns a dataset of batches of all examples.
    function: the function of the user that makes the examples.
    batching: how the examples are combined into batches.
  """
  with tf.Graph().as_default():
    examples = cached_examples.read_all(read_in_order(batching))

  def input_fn() -> tf.data.Dataset:
    chunks = source.training_chunks(num_examples, batching, batching.examples_per_batch)
    return _encode_batches(cached_examples.gather_batches(chunks, examples), function, batching)

  return input_fn


def _encode_batches(batches: tf.data.Dataset, function: Any,
                    batching: Batching) -> tf.data.Dataset:
  """Returns a dataset of batches (features, labels), prefetched.

  If there are weights, the features are `{'features': ..., 'sample_weights': ...}`.

  Args:
    batches: (features, labels) or (features, labels, weights).
    function: the function of the user that makes the examples.
    batching: how labels are encoded.
  """
  structure = tf.data.get_output_types(batches)
  if not isinstance(structure, tuple) or len(structure) not in (2, 3):
    raise UserError('an example must be (features, label) or (features, label, weight)',
                    '{} returns {}'.format(_function_name(function), structure),
                    'return a tuple of two or three')

  @tf.autograph.experimental.do_not_convert
  def encode(features: Any, labels: Any, weights: Any = None) -> Tuple[Any, Any]:
    if batching.num_classes:
      labels = batching.encode_labels(tf.cast(labels, tf.int64))
    if weights is not None:
      features = {'features': features, 'sample_weights': weights}
    return features, labels

  return batching.prefetch_batches(batches.map(encode))


def _function_name(function: Any) -> str:
  return '{}.{}'.format(getattr(function, '__module__', ''),
                        getattr(function, '__qualname__', repr(function)))


def _naming(function: Any) -> Any:
  """Returns a context manager that translates the exceptions of a user's function."""
  return user_code.translate_errors('a function of a split failed', _function_name(function))


def _make_user_dataset(make_dataset: Callable[[], Any]) -> tf.data.Dataset:
  """Returns the dataset of the user; raises a UserError if the function fails."""
  with _naming(make_dataset):
    dataset = make_dataset()
  if not isinstance(dataset, _DATASET_BASE_CLASS):
    raise UserError('make_dataset must return a tf.data.Dataset', '{} returns {}'.format(
        _function_name(make_dataset), type(dataset).__name__),
        'return a dataset of single examples')
  return dataset


def _count_once(make_dataset: Callable[[], Any], model_dir: str) -> int:
  """Returns the number of examples. It is stored in `model_dir` for later runs."""
  name, path = _function_name(make_dataset), os.path.join(model_dir, _COUNTS_FILE)
  try:
    with open(path, encoding='utf-8') as file:
      counts = dict(json.load(file))
  except (OSError, ValueError, TypeError):
    counts = {}
  if not isinstance(counts.get(name), int):
    counts[name] = _count(make_dataset)
    atomic.write_json(path, counts)
  return int(counts[name])


def _count(make_dataset: Callable[[], Any]) -> int:
  """Reads all elements of a dataset, and returns their number.

  Raises:
    UserError: the dataset is infinite, or cannot be read.
  """
  name = _function_name(make_dataset)
  _LOG.info('counting the examples of %s', name)
  with tf.Graph().as_default(), tf.Session(
      config=tf.ConfigProto(device_count={'GPU': 0})) as session:
    dataset = _make_user_dataset(make_dataset)
    if session.run(tf.data.experimental.cardinality(dataset)) == (
        tf.data.experimental.INFINITE_CARDINALITY):
      raise UserError('a dataset of examples must be finite', name,
                      'omit `repeat`; the program repeats the examples')
    try:
      return int(session.run(dataset.reduce(np.int64(0), lambda count, *_: count + 1)))
    except tf.errors.OpError as error:
      raise UserError('make_dataset of a split failed', '{} ({})'.format(
          name, error.message.splitlines()[0]), 'fix this function') from error
