"""Reads records of TFRecord files in any order, and interprets those of images.

The standard schema of images is that of TensorFlow's own scripts; flags name other keys.
"""

import collections
import logging
import resource
import struct
import threading
from typing import Any, Counter, Dict, List, Optional, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf
from google.protobuf import message

from estimator_train.data.description import ImageRecordSplit
from estimator_train.data.record_index import (
  FOOTER_BYTES,
  PositionedFile,
  RecordIndex,
  describe_record,
  masked_checksum,
)
from estimator_train.data.source import BadExample
from estimator_train.errors import UserError, join_items, printable

_LOG = logging.getLogger('estimator_train')
TEXT_KEY = 'image/class/text'  # Of the class name, in files of TensorFlow's own scripts.
IMAGE_MAGICS = (b'\xff\xd8', b'\x89PNG', b'GIF8')
ClassAndText = Tuple[int, Optional[str]]  # The class index of a label, and the class name.
# The part of the open files that the operating system allows to a process, and the most files that
# a reader keeps open.
_OPEN_FILES_FRACTION, _MAX_OPEN_FILES = 0.5, 16384
_unpack_checksum = struct.Struct('<I').unpack_from


class RecordReader:
  """Reads the records of an index. Several threads can share a reader.

  Args:
    index: the positions of the records.
  """

  def __init__(self, index: RecordIndex) -> None:
    self._index, self._offsets = index, index.offsets()
    self._files: Dict[int, PositionedFile] = collections.OrderedDict()
    self._lock = threading.Lock()
    soft_limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    self._max_open_files = _MAX_OPEN_FILES if soft_limit == resource.RLIM_INFINITY else max(
        1, min(_MAX_OPEN_FILES, int(soft_limit * _OPEN_FILES_FRACTION)))

  def read(self, records: np.ndarray) -> List[bytes]:
    """Returns the data of records.

    Args:
      records: the indices of the records, int64 [n].

    Raises:
      OSError: a file cannot be read.
      BadExample: a record is damaged.
    """
    file_indices = np.searchsorted(self._index.first_records, records, 'right') - 1
    places = list(zip(map(self._open_file, file_indices.tolist()),
                      self._offsets[records].tolist(),
                      (self._index.lengths[records] + FOOTER_BYTES).tolist()))
    # The kernel reads all records in parallel while this function waits for the first one.
    for file, offset, count in places:
      file.request_readahead(offset, count)
    contents = [file.read(offset, count) for file, offset, count in places]
    return [self._check(record, content, count)
            for record, content, (_, _, count) in zip(records, contents, places)]

  def _check(self, record: int, content: bytes, count: int) -> bytes:
    """Returns the data of a record whose data and checksum have been read."""
    data = content[:-FOOTER_BYTES]
    if len(content) < count:
      reason = 'truncated'
    elif masked_checksum(data) != _unpack_checksum(content, len(data))[0]:
      reason = 'wrong checksum'
    else:
      return data
    raise BadExample(describe_record(*self._index.locate(record)), reason)

  def _open_file(self, file_index: int) -> PositionedFile:
    """Returns an open file. The files that were used least recently are closed."""
    with self._lock:
      file = self._files.pop(file_index, None)
      if file is None:
        if len(self._files) >= self._max_open_files:
          del self._files[next(iter(self._files))]
        file = PositionedFile(self._index.files[file_index])
      self._files[file_index] = file
    return file


def parse_features(record: bytes) -> Any:
  """Returns the features of a tf.train.Example, by key; raises a ValueError if it is damaged."""
  try:
    return tf.train.Example.FromString(record).features.feature
  except message.DecodeError as error:
    raise ValueError('not a tf.train.Example') from error


def image_content(features: Any, image_key: str) -> bytes:
  """Returns the encoded image of an example; raises a ValueError if there is none."""
  return bytes(value(features, image_key, 'bytes_list'))


def value(features: Any, key: str, kind: str) -> Any:
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


def _keys_of(features: Any, kind: str, prefixes: Tuple[bytes, ...] = ()) -> List[str]:
  """Returns the keys of the features with one value of a kind, which starts with a prefix."""
  values = {key: getattr(feature, kind).value for key, feature in features.items()
            if feature.WhichOneof('kind') == kind}
  return [key for key, value in sorted(values.items())
          if len(value) == 1 and (not prefixes or value[0].startswith(prefixes))]


def find_remedy(features: Any, split: ImageRecordSplit, class_names: Sequence[str]) -> str:
  """Returns the values of flags that would fit the features of an example."""
  images = _keys_of(features, 'bytes_list', IMAGE_MAGICS)
  labels = _keys_of(features, 'int64_list')
  flags = []
  if split.image_key not in (images or _keys_of(features, 'bytes_list')):
    flags.append('--image_key=' + ('|'.join(images) or 'KEY'))
  if split.label_key not in labels:
    likely = [key for key in labels if 'label' in key or 'class' in key]
    flags.append('--label_key=' + ('|'.join(likely or labels) or 'KEY'))
  elif not flags:
    flags.append(_find_label_flag(features, split, class_names))
  return 'give {}, or a data set with RecordSplit(parse=FUNCTION)'.format(' '.join(flags))


def _find_label_flag(features: Any, split: ImageRecordSplit, class_names: Sequence[str]) -> str:
  """Returns the flag that makes the label of an example the index of a class."""
  label, text = features[split.label_key].int64_list.value[0], class_text(features)
  if 0 <= label + split.label_offset < len(class_names):
    return '--image_key=KEY'
  if text in class_names:
    return '--label_offset={}'.format(class_names.index(text) - label)
  if label + split.label_offset == len(class_names):
    return '--label_offset={} if the first label is {}'.format(
        split.label_offset - 1, 1 - split.label_offset)
  return '--labels, --label_offset or --label_key that fit'


def class_text(features: Any) -> Optional[str]:
  """Returns the class name that an example contains; None if there is none."""
  values = features[TEXT_KEY].bytes_list.value if TEXT_KEY in features else ()
  return values[0].decode('utf-8', 'backslashreplace') if len(values) == 1 else None


def check_texts(checked: Counter[ClassAndText], class_names: Sequence[str],
                label_offset: int) -> None:
  """Compares the class names in the records with the class names of the labels.

  Raises:
    UserError: most records of a class have the name of another class.
  """
  index_of = {name: index for index, name in enumerate(class_names)}
  other = [(class_index, text, count) for (class_index, text), count in checked.items()
           if text is not None and index_of.get(text) != class_index]
  for class_index, text, count in other:
    if text in index_of and count > checked[class_index, class_names[class_index]]:
      offsets = {index_of.get(name, index) - index for index, name, _ in other}
      raise UserError(
          'the labels of the records are in another order than the class names',
          'label {} is the class {}, but {} of {} record(s) is {}'.format(
              class_index - label_offset, class_names[class_index], TEXT_KEY, count, text),
          'give --label_offset={}'.format(label_offset + offsets.pop()) if len(offsets) == 1
          else 'give --labels in the order of the labels')
  if other:
    class_index, text, _ = other[0]
    _LOG.warning('%s of %d records is not the class of their label, such as %s for %s', TEXT_KEY,
                 sum(count for _, _, count in other), printable(str(text)),
                 printable(class_names[class_index]))


def warn_about_empty_classes(checked: Counter[ClassAndText], class_names: Sequence[str],
                             label_offset: int) -> None:
  """Logs a warning if a class has no records; a class for the background may be meant so."""
  found = {class_index for class_index, _ in checked}
  empty = [name for index, name in enumerate(class_names) if index not in found]
  if empty:
    _LOG.warning('%d class(es) have no training records: %s%s', len(empty), join_items(empty),
                 '' if 0 in found else '; if the first label is {}, give --label_offset={}'.format(
                     1 - label_offset, label_offset - 1))
