"""Describes data sets of images in TFRecord files."""

import os
import re
from typing import Sequence, Tuple

from estimator_train.datasets import record_files
from estimator_train.datasets.description import DataSet, ImageRecordSplit
from estimator_train.datasets.image_folder import DEFAULT_IMAGE_SIZE
from estimator_train.datasets.transfer import DownloadResult
from estimator_train.errors import UserError, printable
from estimator_train.run_dir.run_files import LABELS_FILE, RunDir
from estimator_train.settings import Settings, choices
from estimator_train.settings.groups import are_distinct


def describe(settings: Settings) -> DataSet:
  """Describes the records of `--train_pattern` and `--eval_pattern` that the mode reads.

  Raises:
    UserError: a pattern is not given or matches no file, a file is damaged, or the class names are
      unknown.
  """
  reads_train = settings.mode != 'evaluate'
  reads_eval = settings.evaluates or (
      settings.mode in choices.MODES_OF_ALL_SPLITS and bool(settings.eval_pattern))
  # labels.txt is next to the files, so a wrong pattern is reported first.
  train = _make_split('train_pattern', settings) if reads_train else None
  test = _make_split('eval_pattern', settings) if reads_eval else None
  return describe_classes(settings)._replace(train=train, test=test)


def get(unused_settings: Settings) -> Sequence[DownloadResult]:
  """Fetches nothing, because the user provides the files."""
  return []


def describe_classes(settings: Settings) -> DataSet:
  """Describes the data set without reading records.

  Raises:
    UserError: the class names are unknown.
  """
  class_names = settings.labels or _read_labels_file(settings) or (
      RunDir(settings.model_dir).class_names() if settings.model_dir else ())
  if len(class_names) < 2:
    raise UserError('the names of at least two classes are required',
                    '--dataset=tfrecord without --labels and without a {} next to the files'.format(
                        LABELS_FILE), 'give --labels=A,B, or write {}'.format(LABELS_FILE))
  height, width, channels = (*(settings.image_size or DEFAULT_IMAGE_SIZE), 3)[:3]
  return DataSet(settings.dataset, class_names, (height, width, channels))


def _make_split(pattern_flag: str, settings: Settings) -> ImageRecordSplit:
  pattern = getattr(settings, pattern_flag)
  if not pattern:
    raise UserError('--{} is required for this data set and mode'.format(pattern_flag),
                    'no --' + pattern_flag,
                    'give a pattern such as ' + (
                        '--train_pattern=\'DATA/train-*-of-*\'' if pattern_flag == 'train_pattern'
                        else '--eval_pattern=\'DATA/validation-*-of-*\', or --mode=train'))
  index = record_files.load_index(pattern, '--{}={}'.format(pattern_flag, pattern),
                                  settings.compression, settings)
  return ImageRecordSplit(index, settings.image_key, settings.label_key, settings.label_offset)


def _read_labels_file(settings: Settings) -> Tuple[str, ...]:
  """Returns the class names in `labels.txt` next to the files; () if there is no such file.

  A line is a class name or, in all lines, a label and a class name, such as `0:daisy`.

  Raises:
    UserError: the file is invalid.
  """
  for pattern in (settings.train_pattern, settings.eval_pattern):
    path = os.path.join(os.path.dirname(pattern or ''), LABELS_FILE)
    if pattern and os.path.isfile(path):
      try:
        with open(path, encoding='utf-8-sig') as file:  # With or without a byte order mark.
          lines = [line.strip() for line in file.read().rstrip().splitlines()]
      except (OSError, UnicodeError) as error:
        raise UserError('{} cannot be read'.format(LABELS_FILE), '{} ({})'.format(
            printable(path), error), 'write it again as UTF-8 text, or give --labels') from error
      return _parse_labels(lines, settings.label_offset, path)
  return ()


def _parse_labels(lines: Sequence[str], label_offset: int, path: str) -> Tuple[str, ...]:
  """Returns the class names in the lines of a file.

  Raises:
    UserError: a name is missing or not unique, or the labels are not those of all classes.
  """
  matches = [re.fullmatch(r'([0-9]+)\s*:\s*(.*)', line) for line in lines]
  class_names = list(lines)
  if lines and all(matches):
    pairs = sorted((int(match.group(1)), match.group(2)) for match in matches if match)
    class_names = [name for _, name in pairs]
    first = pairs[0][0]
    if [label for label, _ in pairs] != list(range(-label_offset, len(lines) - label_offset)):
      raise UserError(
          'the labels in {} must be those of all classes'.format(LABELS_FILE),
          '{} has {} lines with labels from {} to {}{}'.format(
              printable(path), len(lines), first, pairs[-1][0],
              ' with --label_offset={}'.format(label_offset) if label_offset else ''),
          'give --label_offset={}'.format(-first) if pairs[-1][0] - first == len(lines) - 1
          else 'write a line for each label')
  if not all(class_names) or not are_distinct(class_names):
    raise UserError('{} must have a different name in each line'.format(LABELS_FILE),
                    printable(path), 'name each class once, in the order of the class indices')
  return tuple(class_names)
