"""Describes data sets whose image files are in one folder per class."""

import contextlib
import os
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

import numpy as np

from estimator_train.data import (
  ArraySplit,
  DataSet,
  DataSpec,
  ImageSplit,
  file_pattern,
  record_index,
)
from estimator_train.errors import UserError, join_items, printable
from estimator_train.run_dir import LABELS_FILE
from estimator_train.settings import Settings, data_folder
from estimator_train.settings.flags import MODES_OF_ALL_SPLITS, DataFlags, are_distinct, to_nfc

DEFAULT_IMAGE_SIZE = (224, 224)  # (height, width)


def describe_data_set(settings: Settings, recorded_names: Tuple[str, ...] = ()) -> DataSet:
  """Describes the files of `--train_pattern` and `--eval_pattern` that the mode reads.

  Raises:
    UserError: a pattern is not given or matches no file, the folder of a file is not a class
      name, or a class has no training file.
  """
  data = settings.data
  return describe_patterns(settings, data.train_pattern, data.eval_pattern,
                           find_known_class_names(settings, recorded_names))


def find_known_class_names(settings: Settings, recorded_names: Tuple[str, ...]) -> Tuple[str, ...]:
  """Returns the class names of the flags or of the trained model; empty if the files give them.

  Args:
    recorded_names: the class names of the run in `--model_dir`. A training run does not use them,
      because its files may have other classes.
  """
  return settings.data.labels or (() if settings.run.trains else recorded_names)


def describe_patterns(settings: Settings, train_pattern: Optional[str],
                      eval_pattern: Optional[str], class_names: Tuple[str, ...]) -> DataSet:
  """Describes the files of these patterns that the mode reads; see describe_data_set.

  Args:
    settings: the settings of the run; their patterns and class names are not used.
    train_pattern, eval_pattern: the patterns of the training and test files.
    class_names: the class names. If they are empty, the names of the folders of the training files
      become the class names.
  """
  fraction = settings.data.validation_fraction
  reads_train, reads_eval = splits_to_read(settings, eval_pattern or fraction)
  train_files = (_list_files('train_pattern', train_pattern, gives_class_names=not (
      class_names or data_folder.is_folder(settings.data.dataset)))
                 if reads_train or fraction or not class_names else [])
  eval_files = (_list_files('eval_pattern', eval_pattern)
                if reads_eval and not fraction else [])
  roots = _find_roots(settings.data.dataset, train_pattern, eval_pattern)
  class_names = class_names or _find_class_names(train_files, roots)
  if len(class_names) < 2:
    raise UserError(
        'there must be at least two classes, one folder each',
        '--{}={} (classes: {})'.format(*(
            ('dataset', settings.data.dataset) if roots else ('train_pattern', train_pattern)),
            join_items(class_names)),
        'add the folders of other classes to {}'.format(train_pattern) if roots else
        'give a pattern that matches several folders, or --labels=A,B')
  train, test = (_make_split(files, class_names, roots) for files in (train_files, eval_files))
  if reads_train:
    check_no_class_missing(class_names, train)
  return DataSet(*make_spec(settings.data, class_names),
                 train=train if reads_train or fraction else None,
                 test=test if reads_eval and not fraction else None)


def describe_spec(settings: Settings, recorded_names: Tuple[str, ...] = ()) -> DataSpec:
  """Describes the data set without listing files.

  Raises:
    UserError: neither the settings nor `model_dir` determines the classes.
  """
  class_names = settings.data.labels or recorded_names
  if not class_names:
    raise UserError('the classes are unknown', 'no {} in --model_dir={}'.format(
        LABELS_FILE, settings.run.model_dir), 'give the --model_dir of a run, or --labels')
  return make_spec(settings.data, class_names)


def make_spec(flags: DataFlags, class_names: Tuple[str, ...]) -> DataSpec:
  """Returns the spec of a data set of color images, whose size the flags give."""
  height, width = (flags.image_size or DEFAULT_IMAGE_SIZE)[:2]
  return DataSpec(flags.dataset, class_names, (height, width, 3))


def check_no_class_missing(class_names: Sequence[str],
                           train: Union[ImageSplit, ArraySplit]) -> None:
  """Raises a UserError if a class has no training image."""
  counts = np.bincount(train.classes, minlength=len(class_names))
  missing = [name for name, count in zip(class_names, counts) if not count]
  if missing:
    raise UserError('a class has no training images', join_items(missing),
                    'add images of this class, or omit it from the class names (--labels)')


def splits_to_read(settings: Settings, test_flag: Any) -> Tuple[bool, bool]:
  """Returns whether the mode reads the training examples, and whether it reads the test examples.

  Args:
    test_flag: the value of the flag that gives the test examples. Modes that read all splits read
      the test examples only if this value is given.
  """
  return settings.run.mode != 'evaluate', settings.run.evaluates or (
      settings.run.mode in MODES_OF_ALL_SPLITS and bool(test_flag))


def require_pattern(flag: str, pattern: Optional[str], example: str) -> str:
  """Returns the pattern of a flag; raises a UserError that proposes `example` if it is missing."""
  if not pattern:
    raise UserError('--{} is required for this data set and mode'.format(flag), 'no --' + flag,
                    'give a pattern such as --{}=\'{}\'{}'.format(
                        flag, example, '' if flag == 'train_pattern' else
                            ', or --validation_fraction=0.2, or --mode=train'))
  return pattern


def _list_files(flag: str, pattern: Optional[str], gives_class_names: bool = False) -> List[bytes]:
  """Returns the files that match the patterns of a flag.

  Args:
    flag: the name of the flag, whose value is `pattern`.
    gives_class_names: whether the names of the folders of the files become the class names.

  Raises:
    UserError: no file matches, the files are not images, or the folders cannot be classes.
  """
  example = 'DATA/{}/**/*.jpeg'.format('train' if flag == 'train_pattern' else 'test')
  pattern = require_pattern(flag, pattern, example)
  listings: file_pattern.FolderListings = {}
  files: List[bytes] = []
  for single_pattern in file_pattern.split_patterns(pattern):
    location = '--{}={}'.format(flag, single_pattern)
    matching_files = list(file_pattern.iter_files(single_pattern, listings))
    if not matching_files:
      raise file_pattern.make_no_match_error('--{} matches no file'.format(flag),
                                             location, single_pattern, example)
    file_pattern.check_no_archives(location, matching_files)
    if gives_class_names:
      file_pattern.check_class_folders(flag, single_pattern, matching_files)
    files += matching_files
  is_record_file = False
  with contextlib.suppress(OSError):  # The error is reported when the image is decoded.
    is_record_file = record_index.starts_with_record(files[0])
  if is_record_file:
    raise UserError('--{} must match image files'.format(flag),
                    '{} is a TFRecord file'.format(printable(os.fsdecode(files[0]))),
                    'give --dataset=tfrecord')
  file_pattern.warn_about_unmatched_images(flag, files, listings)
  return list(dict.fromkeys(files))


def _find_roots(dataset: str, *patterns: Optional[str]) -> Tuple[bytes, ...]:
  """Returns the folders that contain the class folders if `--dataset` is a folder, otherwise ()."""
  if not data_folder.is_folder(dataset):
    return ()
  folders = [os.fsencode(pattern) for each in patterns if each
             for pattern in file_pattern.split_patterns(each) if os.path.isdir(pattern)]
  roots = {b'/' * folder.startswith(b'/') + b'/'.join(filter(None, folder.split(b'/')))
           for folder in folders}
  return tuple(sorted(roots, key=len, reverse=True))


def _class_folder(folder: bytes, roots: Sequence[bytes]) -> bytes:
  """Returns the folder whose name is the class of the files in a folder.

  Args:
    roots: see _find_roots.
  """
  for root in roots:
    if folder.startswith(root + b'/'):
      return os.path.join(root, folder[len(root) + 1:].partition(b'/')[0])
  return folder


def _find_class_names(files: Sequence[bytes], roots: Sequence[bytes]) -> Tuple[str, ...]:
  """Returns the sorted names of the class folders of the files."""
  folders = {_class_folder(folder, roots) for folder in {os.path.dirname(path) for path in files}}
  class_names = tuple(sorted({_class_name_of_folder(folder) for folder in folders}))
  if not are_distinct(class_names):
    raise UserError('class names must not differ only in their Unicode form',
                    ', '.join(ascii(name) for name in class_names if any(
                        to_nfc(name) == to_nfc(other) != other for other in class_names)),
                    'rename the folders of one class')
  return class_names


def _class_name_of_folder(folder: bytes) -> str:
  """Returns the class name of the files in a folder, which is the name of the folder."""
  name = os.path.basename(os.path.abspath(folder)).decode('utf-8', 'backslashreplace')
  if name.splitlines() not in ([], [name]):  # labels.txt and flags.txt are read line by line.
    raise UserError('a class name must not have a line break', repr(os.fsdecode(folder)),
                    'rename the folder')
  return name


def _make_split(files: List[bytes], class_names: Sequence[str],
                roots: Sequence[bytes]) -> ImageSplit:
  """Returns the split of the files; raises a UserError if a folder is not named after a class."""
  index_by_name = {to_nfc(name): index for index, name in enumerate(class_names)}
  index_by_folder: Dict[bytes, int] = {}
  class_indices = np.empty(len(files), np.int32)
  for position, path in enumerate(files):
    folder = os.path.dirname(path)
    if folder not in index_by_folder:
      name = _class_name_of_folder(_class_folder(folder, roots))
      if to_nfc(name) not in index_by_name:
        raise UserError(
            'the folder of a file is not a class name',
            '{} (class names: {})'.format(printable(os.fsdecode(path)), join_items(class_names)),
            ('add training images of {0} (and {0} to --labels, if given), or move its folder '
             'elsewhere' if roots else
             'change the pattern so that it excludes this file, or add {0} to --labels').format(
                 name))
      index_by_folder[folder] = index_by_name[to_nfc(name)]
    class_indices[position] = index_by_folder[folder]
  return ImageSplit(files, class_indices)
