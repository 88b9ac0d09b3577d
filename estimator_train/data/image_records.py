"""Reads images from TFRecord files whose records are tf.train.Examples.

Each Example has an encoded image and a label. By default, their keys are those that TensorFlow's
own scripts write. Flags can name different keys.
"""

import collections
import hashlib
from typing import Any, Iterable, List, Optional, Tuple

import numpy as np
import tensorflow.compat.v1 as tf
from google.protobuf import message

from estimator_train.data import DataSpec, ImageRecordSplit, Role, decoding, identity, image_source
from estimator_train.data.batching import (
  BatchSettings,
  OrderSettings,
  PixelSettings,
  without_autograph,
)
from estimator_train.data.labels_file import LabelMap, NameCounts
from estimator_train.data.order import evenly_spaced_indices
from estimator_train.data.record_index import RecordReader, describe_record
from estimator_train.data.source import FilePath, InputFn, translate_errors
from estimator_train.errors import BadExample, WrongSchema, printable
from estimator_train.system import storage

_TEXT_KEY = 'image/class/text'  # The key of the class name in files of TensorFlow's own scripts.
_IMAGE_MAGICS = (b'\xff\xd8', b'\x89PNG', b'GIF8')
_RECORDS_PER_LABEL_READ = 1024
# The maximum number of TFRecord files that --input_pipeline=published reads alternately.
_MAX_PUBLISHED_READERS = 16
# All records of a small data set are checked before training, which takes less than a second. In a
# data set of more records or bytes, only a sample is checked.
_MAX_CHECKED_RECORDS, _MAX_CHECKED_BYTES, _SAMPLE_SIZE = 1 << 15, 1 << 28, 256


class ImageRecordSource(image_source.ImageSource):
  split: ImageRecordSplit
  format_name = 'image_records'
  # The references that look_up_references returns are the contents themselves.
  read_in_graph = staticmethod(lambda reference: reference)
  _parallel_lookups = 2  # While one chunk of records waits for the disk, a second one is read.

  def __init__(self, spec: DataSpec, split: ImageRecordSplit, role: Role = Role.TRAIN) -> None:
    super().__init__(spec, split, role)
    self._reader = RecordReader(split.records)
    self._label_map = LabelMap(split, spec.labels, role)

  def __len__(self) -> int:
    record_indices = self.split.record_indices
    return self.split.records.num_records if record_indices is None else len(record_indices)

  def check_and_count_examples(self) -> Optional[int]:
    self.split.records.check_intact()
    counts = self._check_schema()
    if self.role is Role.TRAIN and sum(counts.values()) == len(self):
      self._label_map.warn_about_empty_classes(counts)
    return len(self)

  def look_up_references(self, indices: np.ndarray) -> Tuple[List[bytes], np.ndarray]:
    # Python parses the examples, because tf.io.parse_example crashes if an example cannot be
    # parsed: its error contains bytes that are not valid UTF-8.
    contents, class_indices, _ = zip(*self._read_examples(indices))
    return list(contents), np.array(class_indices)

  def image_name(self, index: int) -> str:
    record_indices = self.split.record_indices
    record = index if record_indices is None else int(record_indices[index])
    return describe_record(*self.split.records.locate_record(record))

  def split_without_images(self, indices: List[int]) -> ImageRecordSplit:
    split = super().split_without_images(indices) if indices else self.split
    return split._replace(records=split.records._replace(damages=()))

  def make_published_input_fn(self, order: OrderSettings, pixels: PixelSettings,
                              batch: BatchSettings) -> InputFn:
    files, split, label_map = self.split.records.files, self.split, self._label_map

    @without_autograph
    def read_records(path: tf.Tensor) -> tf.data.Dataset:
      return tf.data.TFRecordDataset(path)

    def parse(record: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
      features = tf.io.parse_single_example(record, {
          split.image_key: tf.io.FixedLenFeature([], tf.string),
          split.label_key: tf.io.FixedLenFeature([], tf.int64)})
      position = features[split.label_key] + label_map.offset
      return features[split.image_key], (position if label_map.is_identity else tf.gather(
          np.array(label_map.class_indices, np.int64), position))

    return lambda: decoding.make_published_batches(
        decoding.shuffle_files(files, order).apply(tf.data.experimental.parallel_interleave(
            read_records, min(_MAX_PUBLISHED_READERS, len(files)))), parse, order, pixels, batch)

  def read_class_indices(self) -> np.ndarray:
    chunks = np.array_split(np.arange(len(self)), len(self) // _RECORDS_PER_LABEL_READ + 1)
    with translate_errors():
      return np.array([class_index for chunk in chunks
                       for _, class_index, _ in self._read_examples(chunk)], np.int64)

  def files_fingerprint(self) -> str:
    split = self.split
    text = '{} {}'.format(storage.fingerprint_files(split.records.files), self._describe_features())
    if split.record_indices is not None:
      text += storage.fingerprint_arrays([split.record_indices])
    return hashlib.md5(text.encode()).hexdigest()

  def digest_for_workers(self) -> str:
    arrays = [self.split.records.lengths]
    if not self._label_map.is_identity:
      arrays.append(np.array(self._label_map.class_indices))
    return storage.fingerprint_arrays(arrays)

  def describe_content(self) -> str:
    return '{} {}'.format(self._describe_features(),
                          identity.digest_records(self.split.records, self.split.record_indices))

  def _describe_features(self) -> str:
    """Returns the keys of the image and the label, and the class indices of the labels, as text."""
    split = self.split
    text = '{} {} {}'.format(split.image_key, split.label_key, split.label_offset)
    return text if self._label_map.is_identity else '{} {}'.format(
        text, self._label_map.class_indices)

  def list_files(self) -> List[FilePath]:
    return list(self.split.records.files)

  def read_class_indices_or_minus_one(self) -> np.ndarray:
    def find_class_index(index: int) -> int:
      try:
        ((_, class_index, _),) = self._read_examples(np.array([index]))
        return class_index
      except (OSError, BadExample):
        return -1

    return np.array(list(map(find_class_index, range(len(self)))), np.int64)

  def unreadable_file_parts(self) -> List[Tuple[str, str]]:
    return list(map(self.split.records.describe_damage, self.split.records.damages))

  def _read_examples(self, indices: np.ndarray) -> Iterable[Tuple[bytes, int, Any]]:
    """Yields (encoded image, class index, features by key) for each of the examples at `indices`.

    Raises:
      OSError: a file cannot be read.
      BadExample: a record is damaged, or is not an example.
      WrongSchema: a feature is missing or has the wrong kind, or the label is not that of a class.
    """
    # Without its bad records, a split has fewer examples than the files have records.
    record_indices = self.split.record_indices
    for index, record in zip(indices, self._reader.read(
        indices if record_indices is None else record_indices[indices])):
      try:
        features = parse_features(record)
      except ValueError as error:
        raise BadExample(printable(self.image_name(index)), str(error)) from error
      try:
        content = extract_image(features, self.split.image_key)
        class_index = self._label_map.class_index(
            int(_require_single_value(features, self.split.label_key, 'int64_list')))
      except ValueError as error:
        raise self._make_wrong_schema_error(index, features, str(error)) from error
      yield content, class_index, features

  def _make_wrong_schema_error(self, index: int, features: Any, reason: str) -> WrongSchema:
    """Returns the error about an example. It proposes values of flags that fit the example."""
    flags = _suggest_key_flags(features, self.split) or [self._label_map.propose_remedy(
        _require_single_value(features, self.split.label_key, 'int64_list'),
        _find_class_name(features))]
    return WrongSchema(printable(self.image_name(index)), reason,
                       'give {}, or a data set with RecordSplit(parse=FUNCTION)'.format(
                           ' '.join(flags)))

  def _check_schema(self) -> NameCounts:
    """Checks the features of all records or, in a large data set, of a sample.

    Returns:
      The number of checked records of each class index and class name.

    Raises:
      UserError: the records do not fit the flags.
    """
    is_small = (len(self) <= _MAX_CHECKED_RECORDS
                and self.split.records.lengths.sum() <= _MAX_CHECKED_BYTES)
    indices = evenly_spaced_indices(len(self), len(self) if is_small else _SAMPLE_SIZE)
    counts: NameCounts = collections.Counter()
    has_images = False
    with translate_errors():
      for chunk in np.array_split(indices, len(indices) // image_source.CHUNK_SIZE + 1):
        try:
          for content, class_index, features in self._read_examples(chunk):
            counts[class_index, _find_class_name(features)] += 1
            has_images = has_images or content.startswith(_IMAGE_MAGICS)
        except WrongSchema:
          raise
        except (OSError, BadExample):
          pass  # Training reports damaged records, unless --on_bad_image=skip is given.
      if counts and not has_images:
        raise self._make_wrong_schema_error(
            indices[-1], features,
            'no checked record has a JPEG, PNG or GIF file in {}'.format(self.split.image_key))
    self._label_map.check_class_names(counts, _TEXT_KEY)
    return counts


def parse_features(record: bytes) -> Any:
  """Returns the features of a tf.train.Example by key; raises a ValueError if it is damaged."""
  try:
    return tf.train.Example.FromString(record).features.feature
  except message.DecodeError as error:
    raise ValueError('not a tf.train.Example') from error


def extract_image(features: Any, image_key: str) -> bytes:
  """Returns the encoded image of an example; raises a ValueError if there is none."""
  return bytes(_require_single_value(features, image_key, 'bytes_list'))


def _require_single_value(features: Any, key: str, kind: str) -> Any:
  """Returns the value of a feature that must have exactly one value.

  Args:
    features: the features of an example, by key.
    kind: the required kind of the feature, `bytes_list` or `int64_list`.

  Raises:
    ValueError: the feature is missing, is of another kind, or does not have exactly one value.
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


def _find_class_name(features: Any) -> Optional[str]:
  """Returns the class name in an example; None if the example has none."""
  values = features[_TEXT_KEY].bytes_list.value if _TEXT_KEY in features else ()
  return values[0].decode('utf-8', 'backslashreplace') if len(values) == 1 else None


def _suggest_key_flags(features: Any, split: ImageRecordSplit) -> List[str]:
  """Returns values of --image_key and --label_key that fit an example.

  A flag is omitted if its current value, which is stored in the split, already fits.
  """
  values = {key: getattr(feature, feature.WhichOneof('kind') or 'bytes_list').value
            for key, feature in sorted(features.items())}
  single_values = {key: value[0] for key, value in values.items() if len(value) == 1}
  bytes_keys = [key for key, value in single_values.items() if isinstance(value, bytes)]
  image_keys = [key for key in bytes_keys if single_values[key].startswith(_IMAGE_MAGICS)]
  label_keys = [key for key, value in single_values.items() if isinstance(value, int)]
  flags = []
  if split.image_key not in (image_keys or bytes_keys):
    flags.append('--image_key=' + ('|'.join(image_keys) or 'KEY'))
  if split.label_key not in label_keys:
    likely_keys = [key for key in label_keys if 'label' in key or 'class' in key]
    flags.append('--label_key=' + ('|'.join(likely_keys or label_keys) or 'KEY'))
  return flags
