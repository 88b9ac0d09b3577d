"""Reads images from TFRecord files: from tf.train.Examples with an encoded image and a label."""

import collections
import contextlib
import hashlib
from typing import Any, Counter, Iterator, List, Optional, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.data import image_source, published, records
from estimator_train.data.batching import Batching
from estimator_train.data.description import DataSet, ImageRecordSplit
from estimator_train.data.encoded_images import evenly_spaced
from estimator_train.data.record_index import describe_record
from estimator_train.data.records import RecordReader
from estimator_train.data.source import (
  BadExample,
  BadImage,
  FilePath,
  InputFn,
  WrongSchema,
  translate_errors,
)
from estimator_train.errors import printable
from estimator_train.settings import groups
from estimator_train.system import stored

_PARALLEL_READS = 2  # One chunk of records is read while another one is waiting for the disk.
_RECORDS_PER_LABEL_READ = 1024
# All records are checked before training if that takes less than a second, else a sample of them.
_MAX_CHECKED_RECORDS, _MAX_CHECKED_BYTES, _SAMPLE_SIZE = 1 << 15, 1 << 28, 256


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
    checked = self._check_schema()
    if self.split is self.dataset.train and sum(checked.values()) == len(self):
      records.warn_about_empty_classes(checked, self.dataset.labels, self.split.label_offset)
    return len(self)

  def skip_bad_examples(self, split_name: str, settings: groups.Input,
                        model_dir: str) -> Tuple[ImageRecordSplit, List[BadImage]]:
    self._check_schema()  # Before all images are decoded.
    return super().skip_bad_examples(split_name, settings, model_dir)

  def references(self, chunks: tf.data.Dataset) -> tf.data.Dataset:
    # tf.io.parse_example crashes for examples that cannot be parsed, because its error contains
    # bytes that are not valid UTF-8.
    def look_up_records(indices: np.ndarray) -> Tuple[List[bytes], np.ndarray]:
      examples = [self._parse(index, record) for index, record in zip(
          indices, self._reader.read(self._to_records(indices)))]
      contents, class_indices = zip(*examples)
      return list(contents), np.array(class_indices, np.int64)

    return image_source.references_from_python(chunks, look_up_records, _PARALLEL_READS)

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
    with translate_errors():
      return np.concatenate([self._read_class_indices(part) for part in parts])

  def cache_key(self) -> str:
    split = self.split
    key = '{} {} {} {}'.format(stored.fingerprint_files(split.records.files), split.image_key,
                               split.label_key, split.label_offset)
    if split.kept is not None:
      key += stored.fingerprint_arrays([split.kept])
    return hashlib.md5(key.encode()).hexdigest()

  def digest_of_examples(self) -> str:
    return stored.fingerprint_arrays([self.split.records.lengths])

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
      BadExample: the record is not an example.
      WrongSchema: a feature is missing or has another kind, or the label is not that of a class.
    """
    return self._interpret(index, self._parse_features(index, record))

  def _parse_features(self, index: int, record: bytes) -> Any:
    try:
      return records.parse_features(record)
    except ValueError as error:
      raise BadExample(printable(self.name_of(index)), str(error)) from error

  def _interpret(self, index: int, features: Any) -> Tuple[bytes, int]:
    try:
      content = records.image_content(features, self.split.image_key)
      return content, self._class_index(features)
    except ValueError as error:
      raise self._wrong_schema(index, features, str(error)) from error

  def _wrong_schema(self, index: int, features: Any, reason: str) -> WrongSchema:
    return WrongSchema(printable(self.name_of(index)), reason,
                       records.find_remedy(features, self.split, self.dataset.labels))

  def _class_index(self, features: Any) -> int:
    """Returns the class index of an example; raises a ValueError if its label is invalid."""
    label = records.value(features, self.split.label_key, 'int64_list')
    class_index = int(label) + self.split.label_offset
    if not 0 <= class_index < len(self.dataset.labels):
      raise ValueError('label {}{} for {} classes'.format(
          label, ' with --label_offset={}'.format(self.split.label_offset)
          if self.split.label_offset else '', len(self.dataset.labels)))
    return class_index

  def _check_schema(self) -> Counter[records.ClassAndText]:
    """Checks the features of all records or, in a large data set, of a sample.

    Returns:
      The number of checked records of each class, and of each class name in the records.

    Raises:
      UserError: the records do not fit the flags.
    """
    checked: Counter[records.ClassAndText] = collections.Counter()
    has_images = False
    with translate_errors():
      for index, features in self._iter_records_to_check():
        content, class_index = self._interpret(index, features)
        checked[class_index, records.class_text(features)] += 1
        has_images = has_images or content.startswith(records.IMAGE_MAGICS)
      if checked and not has_images:
        raise self._wrong_schema(index, features, '{} is not a JPEG, PNG or GIF file, as in all '
                                 'other records'.format(self.split.image_key))
    records.check_texts(checked, self.dataset.labels, self.split.label_offset)
    return checked

  def _iter_records_to_check(self) -> Iterator[Tuple[int, Any]]:
    """Yields the index and the features of each record to check, except damaged records."""
    is_small = (len(self) <= _MAX_CHECKED_RECORDS
                and self.split.records.lengths.sum() <= _MAX_CHECKED_BYTES)
    indices = np.array(evenly_spaced(len(self), len(self) if is_small else _SAMPLE_SIZE))
    for part in np.array_split(indices, len(indices) // image_source.CHUNK_SIZE + 1):
      # The error about a damaged record is reported by the training, unless it is skipped.
      with contextlib.suppress(OSError, BadExample):
        for index, record in zip(part, self._reader.read(self._to_records(part))):
          yield int(index), self._parse_features(index, record)

  def _class_index_or_unknown(self, index: int) -> int:
    """Returns the class index of an example; -1 if it cannot be read."""
    try:
      return int(self._read_class_indices(np.array([index]))[0])
    except (OSError, BadExample):
      return -1
