"""Reads images from TFRecord files: from tf.train.Examples with an encoded image and a label."""

import hashlib
from typing import Any, List, Optional, Tuple

import numpy as np
import tensorflow.compat.v1 as tf
from google.protobuf import message

from estimator_train.datasets import fingerprint
from estimator_train.datasets.description import DataSet, ImageRecordSplit
from estimator_train.datasets.record_index import describe_record
from estimator_train.errors import printable
from estimator_train.inputs import file_errors, image_source, published
from estimator_train.inputs.batching import Batching
from estimator_train.inputs.record_reader import RecordReader
from estimator_train.inputs.source import BadExample, FilePath, InputFn

_PARALLEL_READS = 2  # One chunk of records is read while another one is waiting for the disk.
_RECORDS_PER_LABEL_READ = 1024


class ImageRecordSource(image_source.ImageSource):
  """The source of an ImageRecordSplit. A worker reads only the records of its shard."""
  format_name = 'image_records'

  def __init__(self, dataset: DataSet, split: ImageRecordSplit) -> None:
    super().__init__(dataset, split)
    self._reader = RecordReader(split.records)

  def __len__(self) -> int:
    return self.split.records.num_records if self.split.kept is None else len(self.split.kept)

  def check_and_count(self) -> Optional[int]:
    self.split.records.check()
    return len(self)

  def look_up(self, chunks: tf.data.Dataset) -> tf.data.Dataset:
    # tf.io.parse_example crashes for examples that cannot be parsed, because its error contains
    # bytes that are not valid UTF-8.
    def look_up_records(indices: np.ndarray) -> Tuple[List[bytes], np.ndarray]:
      examples = [self._parse(index, record) for index, record in zip(
          indices, self._reader.read(self._to_records(indices)))]
      contents, class_indices = zip(*examples)
      return list(contents), np.array(class_indices, np.int64)

    return image_source.look_up_in_python(chunks, look_up_records, _PARALLEL_READS)

  @staticmethod
  def read(reference: tf.Tensor) -> tf.Tensor:
    return reference  # The content itself.

  def read_content(self, index: int) -> bytes:
    (record,) = self._reader.read(self._to_records(np.array([index])))
    return self._parse(index, record)[0]

  def name_of(self, index: int) -> str:
    path, record = self.split.records.locate(int(self._to_records(np.array([index]))[0]))
    return describe_record(path, record)

  def without(self, indices: List[int]) -> ImageRecordSplit:
    kept = np.arange(len(self)) if self.split.kept is None else self.split.kept
    return self.split._replace(kept=np.delete(kept, indices) if indices else self.split.kept,
                               records=self.split.records._replace(damages=()))

  def make_published_input_fn(self, batching: Batching) -> InputFn:
    return lambda: published.make_record_batches(self.split, batching)

  def class_indices(self) -> np.ndarray:
    parts = np.array_split(np.arange(len(self)), len(self) // _RECORDS_PER_LABEL_READ + 1)
    with file_errors.translate_errors():
      return np.concatenate([self._read_class_indices(part) for part in parts])

  def cache_key(self) -> str:
    split = self.split
    key = '{} {} {} {}'.format(fingerprint.of_files(split.records.files), split.image_key,
                               split.label_key, split.label_offset)
    if split.kept is not None:
      key += fingerprint.of_arrays([split.kept])
    return hashlib.md5(key.encode()).hexdigest()

  def digest_of_examples(self) -> str:
    return fingerprint.of_arrays([self.split.records.lengths])

  def files(self) -> List[FilePath]:
    return list(self.split.records.files)

  def audited_class_indices(self) -> np.ndarray:
    return np.array([self._class_index_or_unknown(index) for index in range(len(self))], np.int64)

  def unreadable_parts(self) -> List[Tuple[str, str]]:
    return list(map(self.split.records.describe_damage, self.split.records.damages))

  def _to_records(self, indices: np.ndarray) -> np.ndarray:
    """Returns the indices of the records of examples. Bad records are not among the examples."""
    return indices if self.split.kept is None else self.split.kept[indices]

  def _read_class_indices(self, indices: np.ndarray) -> np.ndarray:
    """Returns the class indices of examples, int64 [n]."""
    return np.array([self._parse(index, record)[1] for index, record in zip(
        indices, self._reader.read(self._to_records(indices)))], np.int64)

  def _parse(self, index: int, record: bytes) -> Tuple[bytes, int]:
    """Returns the encoded image and the class index of an example.

    Raises:
      BadExample: the record is not an example, or a feature is invalid.
    """
    try:
      features = parse_features(record)
      return image_content(features, self.split.image_key), self._class_index(features)
    except ValueError as error:
      raise BadExample(printable(self.name_of(index)), str(error)) from error

  def _class_index(self, features: Any) -> int:
    """Returns the class index of an example; raises a ValueError if its label is invalid."""
    label = _value(features, self.split.label_key, 'int64_list')
    class_index = int(label) + self.split.label_offset
    if not 0 <= class_index < len(self.dataset.labels):
      raise ValueError('label {}{} for {} classes'.format(
          label, ' with --label_offset={}'.format(self.split.label_offset)
          if self.split.label_offset else '', len(self.dataset.labels)))
    return class_index

  def _class_index_or_unknown(self, index: int) -> int:
    """Returns the class index of an example; -1 if it cannot be read."""
    try:
      return int(self._read_class_indices(np.array([index]))[0])
    except (OSError, BadExample):
      return -1


def parse_features(record: bytes) -> Any:
  """Returns the features of a tf.train.Example, by key; raises a ValueError if it is damaged."""
  try:
    return tf.train.Example.FromString(record).features.feature
  except message.DecodeError as error:
    raise ValueError('not a tf.train.Example') from error


def image_content(features: Any, image_key: str) -> bytes:
  """Returns the encoded image of an example; raises a ValueError if there is none."""
  return bytes(_value(features, image_key, 'bytes_list'))


def _value(features: Any, key: str, kind: str) -> Any:
  """Returns the only value of a feature; raises a ValueError if there is no such value.

  Args:
    features: the features of a tf.train.Example, by key.
    key: the key of the feature.
    kind: the expected kind of values: `bytes_list` or `int64_list`.
  """
  if key not in features:
    raise ValueError('no {}; the keys are {}'.format(key, ', '.join(sorted(features)) or 'missing'))
  found_kind = features[key].WhichOneof('kind')
  if found_kind != kind:
    raise ValueError('{} is of the kind {}, not {}'.format(key, found_kind, kind))
  values = getattr(features[key], kind).value
  if len(values) != 1:
    raise ValueError('{} has {} values, not one'.format(key, len(values)))
  return values[0]
