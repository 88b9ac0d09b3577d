"""Describes data sets of images in TFRecord files, and finds the files of any TFRecord data set."""

import contextlib
import logging
import os
from typing import Dict, List, Tuple

import numpy as np

from estimator_train.data import (
  DataSet,
  DataSpec,
  ImageRecordSplit,
  compressed_records,
  file_pattern,
  image_folder,
  record_index,
)
from estimator_train.data.labels_file import LabelFiles
from estimator_train.data.record_index import PositionedFile, RecordIndex, is_remote
from estimator_train.errors import UserError, first_line, printable
from estimator_train.run_dir import LABELS_FILE
from estimator_train.settings import Settings
from estimator_train.settings.flags import DataFlags
from estimator_train.system import record_framing

_LOG = logging.getLogger('estimator_train')


def describe_data_set(settings: Settings, recorded_names: Tuple[str, ...] = ()) -> DataSet:
  """Describes the records of `--train_pattern` and `--eval_pattern` that the mode reads.

  Raises:
    UserError: a pattern is missing or matches no file, a file cannot be read, or the class names
      are unknown.
  """
  data, fraction = settings.data, settings.data.validation_fraction
  reads_train, reads_eval = image_folder.splits_to_read(settings, data.eval_pattern or fraction)
  # The class names are in labels.txt next to the files. If a pattern is wrong, the error is about
  # the pattern, and not about missing class names, because the files are found first.
  train = _make_split('train_pattern', settings) if reads_train or fraction else None
  test = _make_split('eval_pattern', settings) if reads_eval and not fraction else None
  label_files = LabelFiles(data.label_offset, names_are_given=bool(data.labels))
  spec = _make_spec(settings, recorded_names, label_files)
  train, test = (
      split and label_files.add_class_names_to(split, pattern, spec.labels, data.train_pattern)
      for split, pattern in ((train, data.train_pattern), (test, data.eval_pattern)))
  if train is not None and data.label_offset not in (0, train.label_offset):
    raise UserError('--label_offset contradicts {}'.format(LABELS_FILE),
                    '--label_offset={}; the first label next to --train_pattern={} is {}'.format(
                        data.label_offset, data.train_pattern, -train.label_offset),
                    'omit --label_offset, or correct ' + LABELS_FILE)
  return DataSet(*spec, train=train, test=test)


def describe_spec(settings: Settings, recorded_names: Tuple[str, ...] = ()) -> DataSpec:
  """Describes the data set without reading records.

  Raises:
    UserError: the class names are unknown.
  """
  return _make_spec(settings, recorded_names, LabelFiles(
      settings.data.label_offset, names_are_given=bool(settings.data.labels)))


def _make_spec(settings: Settings, recorded_names: Tuple[str, ...],
               label_files: LabelFiles) -> DataSpec:
  data = settings.data
  # In evaluation, the recorded class names take precedence over those of the test files, whose
  # labels are mapped to these classes.
  class_names = (image_folder.find_known_class_names(settings, recorded_names)
                 or label_files.read_labels(data.train_pattern).names
                 or label_files.read_labels(data.eval_pattern).names or recorded_names)
  if len(class_names) < 2:
    raise UserError('the names of at least two classes are required',
                    '--dataset={} without --labels and without a {} next to the files'.format(
                        data.dataset, LABELS_FILE),
                    'give --labels=A,B, or write {}'.format(LABELS_FILE))
  height, width, channels = (*(data.image_size or image_folder.DEFAULT_IMAGE_SIZE), 3)[:3]
  return DataSpec(data.dataset, class_names, (height, width, channels))


def find_records(pattern: str, location: str, compression: str,
                 settings: Settings) -> RecordIndex:
  """Finds the files that match a pattern, and the positions of their records.

  Args:
    pattern: the pattern of files, or of URLs such as `gs://bucket/train-*`.
    location: the origin of the pattern, for messages, such as `--train_pattern=DATA/*`.
    settings: the settings of the run. Decompressed files are written to the folder of `--cache`, or
      to `--model_dir`.

  Raises:
    UserError: no file matches, a file cannot be read or is not a TFRecord file, or there is no
      space for the decompressed files.
  """
  files = _find_files(pattern, location)
  try:
    compressed = [path for path in files if _is_compressed(path, compression)]
    copies = compressed_records.decompress_files(compressed, settings) if compressed else {}
    index = record_index.load_or_scan_index(tuple(copies.get(path, path) for path in files))
  except OSError as error:
    raise UserError('a TFRecord file cannot be read',
                    '{} ({})'.format(location, error), 'correct the pattern or the file') from error
  index = index._replace(original_paths=tuple(files))
  damaged = {damage.file_index for damage in index.damages}
  for file_index, (name, count) in enumerate(zip(files, np.diff(index.first_records))):
    if not count and file_index not in damaged:
      _LOG.warning('%s has no records', printable(os.fsdecode(name)))
  return index


def _make_split(pattern_flag: str, settings: Settings) -> ImageRecordSplit:
  example = 'DATA/{}-*-of-*'.format('train' if pattern_flag == 'train_pattern' else 'validation')
  pattern = image_folder.require_pattern(pattern_flag, getattr(settings.data, pattern_flag),
                                         example)
  return make_image_split(find_records(pattern, '--{}={}'.format(pattern_flag, pattern),
                                  settings.data.compression, settings), settings.data)


def make_image_split(records: RecordIndex, flags: DataFlags) -> ImageRecordSplit:
  """Returns a split of images in records, with the keys and the label offset of the flags."""
  return ImageRecordSplit(records, flags.image_key, flags.label_key, flags.label_offset)


def _find_files(patterns: str, location: str) -> List[bytes]:
  """Returns the files that match patterns; raises a UserError if a pattern matches no file."""
  files: Dict[bytes, None] = {}  # The keys are unique, as a file can match several patterns.
  for pattern in file_pattern.split_patterns(patterns):
    found = (_find_remote_files(pattern) if is_remote(os.fsencode(pattern)) else
             list(file_pattern.iter_files(pattern, is_wanted=file_pattern.may_be_records)))
    if not found:
      raise file_pattern.make_no_match_error('a pattern matches no file', location, pattern,
                                             'DATA/train-*-of-*')
    file_pattern.check_no_archives(location, found)
    files.update(dict.fromkeys(found))
  file_pattern.check_shards(location, list(files))
  return list(files)


def _find_remote_files(pattern: str) -> List[bytes]:
  import tensorflow.compat.v1 as tf
  try:
    return sorted(os.fsencode(path) for path in tf.gfile.Glob(pattern))
  except tf.errors.OpError as error:
    raise UserError('the files cannot be listed', '{} ({})'.format(
        pattern, first_line(error)), 'correct the pattern') from error


def _is_compressed(path: bytes, compression: str) -> bool:
  """Returns whether a file is compressed. With `--compression=auto`, its first bytes decide.

  Raises:
    UserError: the file is not a TFRecord file.
  """
  with contextlib.closing(PositionedFile(path)) as file:
    header = file.read(0, record_framing.HEADER_BYTES)
  if compression != 'auto':
    return compression != 'none'
  if not header or record_framing.is_header(header):
    return False
  if compressed_records.is_compressed_header(header):
    return True
  raise UserError('a file does not start with a TFRecord', printable(os.fsdecode(path)),
                  'exclude this file from the pattern, or write it again')
