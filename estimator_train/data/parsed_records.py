"""Reads the examples that a function of the user makes of records."""

import os
from typing import Any, Callable, Dict, List, Optional

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.data import DataSet, ParsedRecordSplit, identity
from estimator_train.data.batching import Batching, evaluation_index_chunks, without_autograph
from estimator_train.data.records import RecordReader, describe_record
from estimator_train.data.source import FilePath, InputFn, carry_errors
from estimator_train.data.user_examples import CHUNK_SIZE, FAILED, UserExampleSource
from estimator_train.errors import UserError, first_line
from estimator_train.settings import user_code
from estimator_train.settings.user_code import qualified_name
from estimator_train.system import storage

_PARALLEL_READS = 2  # The number of calls that read records at once.


class ParsedRecordSource(UserExampleSource):
  """The source of a ParsedRecordSplit. A worker reads only the records of its shard."""
  format_name = 'records'

  def __init__(self, dataset: DataSet, split: ParsedRecordSplit) -> None:
    super().__init__(dataset, split)
    self.function = split.parse or split.parse_batch
    self._reader = RecordReader(split.records)

  def check_and_count(self) -> Optional[int]:
    self.split.records.check()
    return self.split.records.num_records

  def read_in_order(self, batching: Batching) -> tf.data.Dataset:
    return self._parse_batches(lambda chunk_size: evaluation_index_chunks(
        self.split.records.num_records, chunk_size), batching)

  def read_shuffled(self, batching: Batching) -> tf.data.Dataset:
    return self._parse_batches(lambda chunk_size: self.training_index_chunks(
        self.split.records.num_records, batching, chunk_size), batching)

  def digest_of_examples(self) -> str:
    return storage.fingerprint_arrays([self.split.records.lengths])

  def identity(self) -> str:
    return super().identity() + identity.of_records(self.split.records)

  def identify_example(self, index: int) -> Dict[str, Any]:
    path, record = self.split.records.locate(index)
    return {'file': '{}:{}'.format(os.fsdecode(path), record)}

  def files(self) -> List[FilePath]:
    return list(self.split.records.files)

  def input_fns_before_last_stage(self, batching: Batching) -> Dict[str, InputFn]:
    return {'read': lambda: batching.use_private_threadpool(self._read(self.training_index_chunks(
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
          reason = self.find_invalid_class(label)
        except tf.errors.OpError as error:
          frames = error.op.traceback if error.op is not None else []
          reason = user_code.find_location(
              (frame[0], frame[1]) for frame in frames) + first_line(error)
        if reason is not None:
          return UserError(FAILED, '{} for {} ({})'.format(
              qualified_name(self.function), describe_record(*self.split.records.locate(index)),
              reason), 'fix this function, or the record')
    return None

  def _parse_batches(self, make_chunks: Callable[[int], tf.data.Dataset],
                     batching: Batching) -> tf.data.Dataset:
    """Returns a dataset of batches, as the function of the user returns them.

    Args:
      make_chunks: takes a chunk size, and returns a dataset of the indices of the records.
      batching: how the examples are combined into batches.
    """
    with user_code.translate_errors(FAILED, qualified_name(self.function)):
      if self.split.parse_batch is not None:
        return self._read(make_chunks(batching.examples_per_batch)).map(
            self.function, batching.num_parallel_calls)
      records = self._read(make_chunks(CHUNK_SIZE)).apply(tf.data.experimental.unbatch())
      return records.apply(tf.data.experimental.map_and_batch(
          self.function, batching.examples_per_batch,
          num_parallel_calls=batching.num_parallel_calls))

  def _read(self, chunks: tf.data.Dataset) -> tf.data.Dataset:
    """Returns a dataset of records, string [n], for a dataset of indices, int64 [n]."""
    @carry_errors
    def read_records(indices: np.ndarray) -> np.ndarray:
      return np.array(self._reader.read(indices), object)

    @without_autograph
    def read(indices: tf.Tensor) -> tf.Tensor:
      records = tf.numpy_function(read_records, [indices], tf.string)
      records.set_shape(indices.shape)
      return records

    return chunks.map(read, _PARALLEL_READS)
