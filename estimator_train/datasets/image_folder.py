"""Data sets of image files, one folder per class, selected by file patterns."""

import os
import stat
from typing import Dict, List, Optional, Sequence, Tuple, Union

import numpy as np

from estimator_train.datasets import file_pattern
from estimator_train.datasets.description import ArraySplit, DataSet, ImageSplit
from estimator_train.datasets.transfer import FetchedFile
from estimator_train.errors import UserError, printable
from estimator_train.run_dir.run_files import LABELS_FILE, RunDir
from estimator_train.settings import Settings, groups

DEFAULT_IMAGE_SIZE = (224, 224)


def describe(settings: Settings) -> DataSet:
  """Describes the files of `--train_pattern` and `--eval_pattern` that the mode reads.

  Raises:
    UserError: a pattern is not given or matches no file, the folder of a file is not a class, or a
      class has no training file.
  """
  return describe_patterns(settings, settings.train_pattern, settings.eval_pattern, settings.labels)


def describe_patterns(settings: Settings, train_pattern: Optional[str],
                      eval_pattern: Optional[str], labels: Tuple[str, ...]) -> DataSet:
  """Like `describe`, with patterns and class names from the caller instead of the settings."""
  if not labels and not settings.trains and settings.model_dir:
    labels = RunDir(settings.model_dir).class_names()
  reads_train = settings.mode != 'evaluate'
  reads_eval = settings.evaluates or (settings.mode == 'audit' and bool(eval_pattern))
  train_files = _list_files('train_pattern', train_pattern) if reads_train or not labels else []
  eval_files = _list_files('eval_pattern', eval_pattern) if reads_eval else []
  labels = labels or _class_names(train_files)
  if len(labels) < 2:
    raise UserError('there must be at least two classes, one folder each',
                    '--train_pattern={} (classes: {})'.format(train_pattern, ', '.join(labels)),
                    'give a pattern that matches several folders, or --labels=A,B')
  train = _make_split(train_files, labels)
  if reads_train:
    check_no_class_missing(labels, train)
  return _make_data_set(settings[groups.Data], labels, train if reads_train else None,
                        _make_split(eval_files, labels) if reads_eval else None)


def get(unused_settings: Settings) -> Sequence[FetchedFile]:
  """Returns []: the user provides the files, so there is nothing to download."""
  return []


def describe_classes(settings: Settings, labels: Tuple[str, ...] = ()) -> DataSet:
  """Describes the data set without listing files.

  Args:
    settings: the settings of the run.
    labels: the class names; if empty, those of the settings or else those in `model_dir`.

  Raises:
    UserError: neither the settings nor `model_dir` determines the classes.
  """
  run_dir = RunDir(settings.model_dir)
  labels = labels or settings.labels or run_dir.class_names()
  if not labels:
    raise UserError('the classes are unknown', 'no {} in --model_dir={}'.format(
        LABELS_FILE, run_dir.path), 'give the --model_dir of a run, or --labels')
  return _make_data_set(settings[groups.Data], labels, None, None)


def _make_data_set(settings: groups.Data, labels: Tuple[str, ...], train: Optional[ImageSplit],
                   test: Optional[ImageSplit]) -> DataSet:
  height, width = (settings.image_size or DEFAULT_IMAGE_SIZE)[:2]
  return DataSet(name=settings.dataset, labels=labels, image_shape=(height, width, 3),
                 train=train, test=test, files=())


def check_no_class_missing(labels: Sequence[str], train: ImageSplit) -> None:
  """Raises a UserError if a class has no training image."""
  missing = [label for label, count in zip(labels, class_counts(train, len(labels))) if not count]
  if missing:
    raise UserError('a class has no training images', ', '.join(missing),
                    'add images to its folder, or omit the class from --labels')


def class_counts(split: Union[ImageSplit, ArraySplit], num_classes: int) -> List[int]:
  """Returns the number of images of each class."""
  return np.bincount(split.classes, minlength=num_classes).tolist()


def _list_files(flag: str, pattern: Optional[str]) -> List[bytes]:
  if not pattern:
    raise UserError('--{} is required for this data set and mode'.format(flag), 'no --' + flag,
                    'give a pattern such as --{}=\'DATA/train/**/*.jpeg\''.format(flag))
  files = file_pattern.expand(pattern)
  if not files:
    raise UserError('--{} matches no file'.format(flag), '--{}={}'.format(flag, pattern),
                    'give a pattern such as \'DATA/train/**/*.jpeg\', in quotes')
  if _is_tfrecord(files[0]):
    raise UserError('--{} must match image files'.format(flag),
                    '{} is a TFRecord file'.format(printable(os.fsdecode(files[0]))),
                    'read TFRecords with estimator_train.convert and an input_fn of your own')
  return files


def _is_tfrecord(path: bytes) -> bool:
  """Returns whether a file begins like an uncompressed TFRecord file.

  A record consists of the message's length (uint64), a 4-byte CRC, the message, and a 4-byte CRC.
  Each of the first three lengths must lead to the next record or to the end of the file.
  """
  try:
    if not stat.S_ISREG(os.stat(path).st_mode):
      return False
    with open(path, 'rb') as file:
      size, offset = os.fstat(file.fileno()).st_size, 0
      for _ in range(3):
        header = file.read(8)
        if offset and not header:
          return True
        offset += 16 + int.from_bytes(header, 'little')
        if len(header) < 8 or offset > size or offset == 16:  # 16: the first record is empty.
          return False
        file.seek(offset)
  except OSError:  # The decoder reports a file that cannot be read.
    return False
  return True


def _class_names(files: Sequence[bytes]) -> Tuple[str, ...]:
  folders = {os.path.dirname(path) for path in files}
  return tuple(sorted({_class_name(folder) for folder in folders}))


def _class_name(folder: bytes) -> str:
  name = os.path.basename(os.path.abspath(folder)).decode('utf-8', 'backslashreplace')
  if name.splitlines() not in ([], [name]):  # labels.txt and flags.txt are read by line.
    raise UserError('a class name must not have a line break', repr(os.fsdecode(folder)),
                    'rename the folder')
  return name


def _make_split(files: List[bytes], labels: Sequence[str]) -> ImageSplit:
  class_indices = {label: index for index, label in enumerate(labels)}
  class_of_folder: Dict[bytes, int] = {}
  classes = np.empty(len(files), np.int32)
  for index, path in enumerate(files):
    folder = os.path.dirname(path)
    if folder not in class_of_folder:
      label = _class_name(folder)
      if label not in class_indices:
        raise UserError('the folder of a file is not among the labels',
                        '{} (labels: {})'.format(printable(os.fsdecode(path)), ', '.join(labels)),
                        'give a pattern that does not match it, or add it to --labels: ' + label)
      class_of_folder[folder] = class_indices[label]
    classes[index] = class_of_folder[folder]
  return ImageSplit(files, classes)
