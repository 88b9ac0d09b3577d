"""Reads images from TFRecord files: from tf.train.Examples with an encoded image and a label.

The standard schema is that of TensorFlow's own scripts; flags name other keys.
"""

import collections
import hashlib
import logging
from typing import Any, Counter, Dict, Iterable, List, Optional, Set, Tuple

import numpy as np
import tensorflow.compat.v1 as tf
from google.protobuf import message

from estimator_train.data import (
  DataSet,
  ImageRecordSplit,
  decoding,
  identity,
  image_source,
  labels_file,
)
from estimator_train.data.batching import Batching, without_autograph
from estimator_train.data.order import evenly_spaced
from estimator_train.data.records import RecordReader, describe_record
from estimator_train.data.source import FilePath, InputFn, translate_errors
from estimator_train.errors import BadExample, UserError, WrongSchema, join_items, printable
from estimator_train.run_dir import LABELS_FILE
from estimator_train.system import storage

_LOG = logging.getLogger('estimator_train')
_TEXT_KEY = 'image/class/text'  # Of the class name, in files of TensorFlow's own scripts.
_IMAGE_MAGICS = (b'\xff\xd8', b'\x89PNG', b'GIF8')
_RECORDS_PER_LABEL_READ = 1024
_MAX_PUBLISHED_READERS = 16  # TFRecord files that --input_pipeline=published reads alternately.
# All records are checked before training if that takes less than a second, else a sample of them.
_MAX_CHECKED_RECORDS, _MAX_CHECKED_BYTES, _SAMPLE_SIZE = 1 << 15, 1 << 28, 256
# The number of records of each (class index of the label, class name in the record or None).
_Counts = Counter[Tuple[int, Optional[str]]]


class ImageRecordSource(image_source.ImageSource):
  """The source of an ImageRecordSplit. A worker reads only the records of its shard."""
  format_name = 'image_records'
  read = staticmethod(lambda reference: reference)  # The content itself.
  _parallel_lookups = 2  # One chunk of records is read while another one is waiting for the disk.

  def __init__(self, dataset: DataSet, split: ImageRecordSplit) -> None:
    super().__init__(dataset, split)
    self._reader = RecordReader(split.records)
    self._label_names = split.label_names or dataset.labels
    # The class index of each label, from the label -label_offset on; -1: no class of the data set.
    self._class_indices = labels_file.indices_of(self._label_names, dataset.labels)
    self._is_translated = self._class_indices != tuple(range(len(dataset.labels)))

  def __len__(self) -> int:
    return self.split.records.num_records if self.split.kept is None else len(self.split.kept)

  def check_and_count(self) -> Optional[int]:
    self.split.records.check()
    counts = self._check_schema()
    if self.split is self.dataset.train and sum(counts.values()) == len(self):
      self._warn_about_empty_classes(counts)
    return len(self)

  def look_up(self, indices: np.ndarray) -> Tuple[List[bytes], np.ndarray]:
    # tf.io.parse_example crashes for examples that cannot be parsed, because its error contains
    # bytes that are not valid UTF-8.
    contents, class_indices, _ = zip(*self._read(indices))
    return list(contents), np.array(class_indices)

  def name_of(self, index: int) -> str:
    record = index if self.split.kept is None else int(self.split.kept[index])
    return describe_record(*self.split.records.locate(record))

  def without(self, indices: List[int]) -> ImageRecordSplit:
    kept = np.arange(len(self)) if self.split.kept is None else self.split.kept
    return self.split._replace(kept=np.delete(kept, indices) if indices else self.split.kept,
                               records=self.split.records._replace(damages=()))

  def make_published_input_fn(self, batching: Batching) -> InputFn:
    files, split = self.split.records.files, self.split

    @without_autograph
    def read_file(path: tf.Tensor) -> tf.data.Dataset:
      return tf.data.TFRecordDataset(path)

    def parse(record: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
      features = tf.io.parse_single_example(record, {
          split.image_key: tf.io.FixedLenFeature([], tf.string),
          split.label_key: tf.io.FixedLenFeature([], tf.int64)})
      index = features[split.label_key] + split.label_offset
      return features[split.image_key], (tf.gather(np.array(self._class_indices, np.int64), index)
                                         if self._is_translated else index)

    return lambda: decoding.make_published_batches(
        decoding.shuffle_files(files, batching).apply(tf.data.experimental.parallel_interleave(
            read_file, min(_MAX_PUBLISHED_READERS, len(files)))), parse, batching)

  def class_indices(self) -> np.ndarray:
    parts = np.array_split(np.arange(len(self)), len(self) // _RECORDS_PER_LABEL_READ + 1)
    with translate_errors():
      return np.array([class_index for part in parts
                       for _, class_index, _ in self._read(part)], np.int64)

  def cache_key(self) -> str:
    split = self.split
    key = '{} {}'.format(storage.fingerprint_files(split.records.files), self._describe_features())
    if split.kept is not None:
      key += storage.fingerprint_arrays([split.kept])
    return hashlib.md5(key.encode()).hexdigest()

  def digest_of_examples(self) -> str:
    translation = [np.array(self._class_indices)] if self._is_translated else []
    return storage.fingerprint_arrays([self.split.records.lengths, *translation])

  def identity(self) -> str:
    return '{} {}'.format(self._describe_features(),
                          identity.of_records(self.split.records, self.split.kept))

  def _describe_features(self) -> str:
    """Returns the keys of an image and its label, and what the labels mean."""
    split = self.split
    text = '{} {} {}'.format(split.image_key, split.label_key, split.label_offset)
    return '{} {}'.format(text, self._class_indices) if self._is_translated else text

  def files(self) -> List[FilePath]:
    return list(self.split.records.files)

  def class_indices_or_minus_one(self) -> np.ndarray:
    def find_class_index(index: int) -> int:
      try:
        ((_, class_index, _),) = self._read(np.array([index]))
        return class_index
      except (OSError, BadExample):
        return -1

    return np.array(list(map(find_class_index, range(len(self)))), np.int64)

  def unreadable_parts(self) -> List[Tuple[str, str]]:
    return list(map(self.split.records.describe_damage, self.split.records.damages))

  def _read(self, indices: np.ndarray) -> Iterable[Tuple[bytes, int, Any]]:
    """Yields (encoded image, class index, features by key) of the examples at `indices`.

    Raises:
      OSError: a file cannot be read.
      BadExample: a record is damaged, or is not an example.
      WrongSchema: a feature is missing or has another kind, or the label is not that of a class.
    """
    kept = self.split.kept  # Bad records are not among the examples.
    for index, record in zip(indices, self._reader.read(
        indices if kept is None else kept[indices])):
      try:
        features = parse_features(record)
      except ValueError as error:
        raise BadExample(printable(self.name_of(index)), str(error)) from error
      try:
        content = image_content(features, self.split.image_key)
        class_index = self._class_index(features)
      except ValueError as error:
        raise self._wrong_schema(index, features, str(error)) from error
      yield content, class_index, features

  def _class_index(self, features: Any) -> int:
    """Returns the class index of an example; raises a ValueError if its label is invalid."""
    label = int(_value(features, self.split.label_key, 'int64_list'))
    position = label + self.split.label_offset
    if not 0 <= position < len(self._label_names):
      raise ValueError('label {}{} for {} classes'.format(
          label, ' with --label_offset={}'.format(self.split.label_offset)
          if self.split.label_offset else '', len(self._label_names)))
    if self._class_indices[position] < 0:
      raise ValueError('label {} is {} in {}, which is not one of the {} class names'.format(
          label, printable(self._label_names[position]), LABELS_FILE, len(self.dataset.labels)))
    return self._class_indices[position]

  def _wrong_schema(self, index: int, features: Any, reason: str) -> WrongSchema:
    return WrongSchema(printable(self.name_of(index)), reason, self._find_remedy(features))

  def _check_schema(self) -> _Counts:
    """Checks the features of all records or, in a large data set, of a sample.

    Raises:
      UserError: the records do not fit the flags.
    """
    is_small = (len(self) <= _MAX_CHECKED_RECORDS
                and self.split.records.lengths.sum() <= _MAX_CHECKED_BYTES)
    indices = evenly_spaced(len(self), len(self) if is_small else _SAMPLE_SIZE)
    counts: _Counts = collections.Counter()
    has_images = False
    with translate_errors():
      for part in np.array_split(indices, len(indices) // image_source.CHUNK_SIZE + 1):
        try:
          for content, class_index, features in self._read(part):
            counts[class_index, _class_text(features)] += 1
            has_images = has_images or content.startswith(_IMAGE_MAGICS)
        except WrongSchema:
          raise
        except (OSError, BadExample):
          pass  # The training reports damaged records, unless they are skipped.
      if counts and not has_images:
        raise self._wrong_schema(indices[-1], features, '{} is not a JPEG, PNG or GIF file, as in '
                                 'all other records'.format(self.split.image_key))
    self._check_texts(counts)
    return counts

  def _find_remedy(self, features: Any) -> str:
    """Returns the values of flags that would fit the features of an example."""
    flags = _find_keys(features, self.split)
    if not flags:
      label = _value(features, self.split.label_key, 'int64_list')
      flags.append(self._find_label_flag(label, _class_text(features)))
    return 'give {}, or a data set with RecordSplit(parse=FUNCTION)'.format(' '.join(flags))

  def _find_label_flag(self, label: int, text: Optional[str]) -> str:
    """Returns the flag that makes a label the index of a class; `text` is its name, if any."""
    names, offset = self.dataset.labels, self.split.label_offset
    position = label + offset
    if 0 <= position < len(self._label_names):
      return ('--image_key=KEY' if self._class_indices[position] >= 0
              else '--labels with all classes, or files without this class')
    if self.split.label_names:
      return 'a {} with all labels'.format(LABELS_FILE)
    if not self._may_have_other_offset():
      return 'a {} next to these files, with the names of their labels'.format(LABELS_FILE)
    shift = names.index(text) - position if text in names else -1
    if text in names or position == len(names):
      return '--label_offset={} if the first label is {}'.format(offset + shift, -offset - shift)
    return '--labels, --label_offset or --label_key that fit'

  def _may_have_other_offset(self) -> bool:
    """Whether another `--label_offset`, which is that of both splits, may fit the records."""
    return not self.split.label_names and (
        self.split is self.dataset.train or self.dataset.train is None)

  def _check_texts(self, counts: _Counts) -> None:
    """Compares the class names in the records with the class names of the labels.

    Raises:
      UserError: most records of a class have the name of another class.
    """
    names, offset = self.dataset.labels, self.split.label_offset
    index_of = {name: index for index, name in enumerate(names)}
    other = [(class_index, text, count) for (class_index, text), count in counts.items()
             if text is not None and index_of.get(text) != class_index]
    for class_index, text, count in other:
      if text in index_of and count > counts[class_index, names[class_index]]:
        shifts = _find_shifts(counts, index_of)
        remedy = 'write {} with the names of their labels next to them'.format(LABELS_FILE)
        if self.split.label_names:
          remedy = 'correct {} next to them'.format(LABELS_FILE)
        elif len(shifts) == 1 and self._may_have_other_offset():
          remedy = 'give --label_offset={}'.format(offset + shifts.pop())
        elif self.split is self.dataset.train:
          remedy = 'give --labels in the order of the labels, or correct ' + LABELS_FILE
        raise UserError(
            'the labels of the records are in another order than the class names',
            'label {} is the class {}, but {} of {} record(s) is {}'.format(
                self._class_indices.index(class_index) - offset, names[class_index], _TEXT_KEY,
                count, text), remedy)
    if other:
      class_index, text, _ = other[0]
      _LOG.warning('%s of %d records is not the class of their label, such as %s for %s', _TEXT_KEY,
                   sum(count for _, _, count in other), printable(str(text)),
                   printable(names[class_index]))

  def _warn_about_empty_classes(self, counts: _Counts) -> None:
    """Logs a warning if a class has no records; a class for the background may be meant so."""
    found = {class_index for class_index, _ in counts}
    empty = [name for index, name in enumerate(self.dataset.labels) if index not in found]
    offset = self.split.label_offset
    if empty:
      _LOG.warning(
          '%d class(es) have no training records: %s%s', len(empty), join_items(empty),
          '' if 0 in found or self._is_translated else
          '; if the first label is {}, give --label_offset={}'.format(1 - offset, offset - 1))


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


def _class_text(features: Any) -> Optional[str]:
  """Returns the class name that an example contains; None if there is none."""
  values = features[_TEXT_KEY].bytes_list.value if _TEXT_KEY in features else ()
  return values[0].decode('utf-8', 'backslashreplace') if len(values) == 1 else None


def _find_shifts(counts: _Counts, index_of: Dict[str, int]) -> Set[int]:
  """Returns the differences of the index of the most frequent name of each class and its index."""
  most_frequent: Dict[int, Tuple[int, str]] = {}
  for (class_index, text), count in counts.items():
    if text in index_of:
      most_frequent[class_index] = max((count, str(text)), most_frequent.get(class_index, (0, '')))
  return {index_of[text] - class_index for class_index, (_, text) in most_frequent.items()}


def _find_keys(features: Any, split: ImageRecordSplit) -> List[str]:
  """Returns the flags of the keys of an image and a label; [] if the keys of the split fit."""
  values = {key: getattr(feature, feature.WhichOneof('kind') or 'bytes_list').value
            for key, feature in sorted(features.items())}
  single = {key: value[0] for key, value in values.items() if len(value) == 1}
  texts = [key for key, value in single.items() if isinstance(value, bytes)]
  image_keys = [key for key in texts if single[key].startswith(_IMAGE_MAGICS)]
  labels = [key for key, value in single.items() if isinstance(value, int)]
  flags = []
  if split.image_key not in (image_keys or texts):
    flags.append('--image_key=' + ('|'.join(image_keys) or 'KEY'))
  if split.label_key not in labels:
    likely = [key for key in labels if 'label' in key or 'class' in key]
    flags.append('--label_key=' + ('|'.join(likely or labels) or 'KEY'))
  return flags
