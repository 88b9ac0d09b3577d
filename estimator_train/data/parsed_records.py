"""Reads records of TFRecord files that a function of the user parses."""

import os
from typing import Any, Callable, Dict, List, Optional

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.data.batching import Batching, evaluation_chunks
from estimator_train.data.description import DataSet, ParsedRecordSplit
from estimator_train.data.parsed_examples import (
  encode_batches,
  find_invalid_class,
  function_name,
  make_cached_input_fn,
  naming,
  read_class_indices,
)
from estimator_train.data.record_index import describe_record
from estimator_train.data.records import RecordReader
from estimator_train.data.source import FilePath, InputFn, Source
from estimator_train.errors import UserError
from estimator_train.settings import user_code
from estimator_train.system import stored

_CHUNK_SIZE = 64  # The number of records that one call of a Python function reads.
_PARALLEL_READS = 2


class ParsedRecordSource(Source):
  """The source of a ParsedRecordSplit. A worker reads only the records of its shard."""
  format_name = 'records'
  is_made_by_user = True

  def __init__(self, dataset: DataSet, split: ParsedRecordSplit) -> None:
    super().__init__(dataset, split)
    self._reader = RecordReader(split.records)

  def check_and_count(self) -> Optional[int]:
    self.split.records.check()
    return self.split.records.num_records

  def make_train_input_fn(self, batching: Batching, cache: str) -> InputFn:
    count, function = self.split.records.num_records, self._function
    if cache == 'memory':
      return make_cached_input_fn(self, count, self._read_in_order, function, batching)
    return lambda: encode_batches(self._parse_batches(lambda chunk_size: self.training_chunks(
        count, batching, chunk_size), batching), function, batching)

  def make_eval_input_fn(self, batching: Batching) -> InputFn:
    return lambda: encode_batches(self._read_in_order(batching), self._function, batching)

  def class_indices(self) -> np.ndarray:
    return read_class_indices(self, self._read_in_order, self._function)

  def cache_key(self) -> str:
    return stored.fingerprint_files(self.split.records.files)

  def digest_of_examples(self) -> str:
    return stored.fingerprint_arrays([self.split.records.lengths])

  def identify_example(self, index: int) -> Dict[str, Any]:
    path, record = self.split.records.locate(index)
    return {'file': '{}:{}'.format(os.fsdecode(path), record)}

  def files(self) -> List[FilePath]:
    return list(self.split.records.files)

  def input_fns_before_last_stage(self, batching: Batching) -> Dict[str, InputFn]:
    return {'read': lambda: batching.use_private_threadpool(self._read(self.training_chunks(
        self.split.records.num_records, batching, batching.examples_per_batch)))}

  def explain_failure(self) -> Optional[UserError]:
    with tf.Graph().as_default(), tf.Session(
        config=tf.ConfigProto(device_count={'GPU': 0})) as session:
      record = tf.placeholder(tf.string, [])
      parts = (self.split.parse(record) if self.split.parse is not None
               else tf.nest.map_structure(tf.squeeze, self.split.parse_batch(record[tf.newaxis])))
      run_parse = session.make_callable((parts[1], tf.nest.flatten(parts)), [record])
      for index in range(self.split.records.num_records):
        try:
          label, _ = run_parse(self._reader.read(np.array([index]))[0])
          reason = find_invalid_class(self, label)
        except tf.errors.OpError as error:
          frames = error.op.traceback if error.op is not None else []
          reason = user_code.find_location(
              (frame[0], frame[1]) for frame in frames) + error.message.splitlines()[0]
        if reason is not None:
          return UserError('a function of a split failed', '{} for {} ({})'.format(
              function_name(self._function), describe_record(*self.split.records.locate(index)),
              reason), 'fix this function, or the record')
    return None

  @property
  def _function(self) -> Callable[[Any], Any]:
    """The function of the user."""
    function: Callable[[Any], Any] = self.split.parse or self.split.parse_batch
    return function

  def _read_in_order(self, batching: Batching) -> tf.data.Dataset:
    """Returns a dataset of batches of all examples, as the function of the user returns them."""
    return self._parse_batches(lambda chunk_size: evaluation_chunks(
        self.split.records.num_records, chunk_size), batching)

  def _parse_batches(self, make_chunks: Callable[[int], tf.data.Dataset],
                     batching: Batching) -> tf.data.Dataset:
    """Returns a dataset of batches, as the function of the user returns them.

    Args:
      make_chunks: takes a chunk size, and returns a dataset of the indices of the records.
      batching: how the examples are combined into batches.
    """
    with naming(self._function):
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
