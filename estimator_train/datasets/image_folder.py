"""Image files in one folder a class, found by file patterns."""

import os
from typing import Dict, List, Optional, Sequence, Tuple, Union

import numpy as np

from estimator_train.datasets import file_pattern
from estimator_train.datasets.description import ArraySplit, DataSet, ImageSplit
from estimator_train.datasets.transfer import Fetched
from estimator_train.errors import UserError, printable
from estimator_train.run_dir.run_files import LABELS_FILE, RunDir
from estimator_train.settings import Settings, groups

IMAGE_SIZE = (224, 224)


def describe(settings: Settings) -> DataSet:
  """Lists the files of `--train_pattern` and `--eval_pattern`, as far as this mode reads them.

  Raises:
    UserError: a pattern is missing or matches nothing, a file is of no class, or a class has no
      file to train on.
  """
  return describe_patterns(settings, settings.train_pattern, settings.eval_pattern, settings.labels)


def describe_patterns(settings: Settings, train_pattern: Optional[str],
                      eval_pattern: Optional[str], labels: Tuple[str, ...]) -> DataSet:
  """Does the same for patterns, and classes, that a published data set knows by itself."""
  if not labels and not settings.trains and settings.model_dir:
    labels = RunDir(settings.model_dir).labels()
  reads_train = settings.mode != 'evaluate'
  reads_eval = settings.evaluates or (settings.mode == 'audit' and bool(eval_pattern))
  train_files = _list('train_pattern', train_pattern) if reads_train or not labels else []
  eval_files = _list('eval_pattern', eval_pattern) if reads_eval else []
  labels = labels or _folder_names(train_files)
  if len(labels) < 2:
    raise UserError('there must be two classes or more, a folder each',
                    '--train_pattern={} with {}'.format(train_pattern, ', '.join(labels)),
                    'give a pattern of several folders, or --labels=A,B')
  train = _split(train_files, labels)
  if reads_train:
    check_classes(labels, train)
  return _make(settings[groups.Data], labels, train if reads_train else None,
               _split(eval_files, labels) if reads_eval else None)


def get(unused_settings: Settings) -> Sequence[Fetched]:
  """Gets nothing: the files are the user's."""
  return []


def describe_classes(settings: Settings, labels: Tuple[str, ...] = ()) -> DataSet:
  """Describes the images without listing any.

  Args:
    settings: of the run.
    labels: the classes; empty: those of the settings, or else those in `model_dir`.

  Raises:
    UserError: the classes are told neither by the settings nor by `model_dir`.
  """
  run_dir = RunDir(settings.model_dir)
  labels = labels or settings.labels or run_dir.labels()
  if not labels:
    raise UserError('the classes are not known', 'no {} in --model_dir={}'.format(
        LABELS_FILE, run_dir.path), 'give the --model_dir of a run, or --labels')
  return _make(settings[groups.Data], labels, None, None)


def _make(settings: groups.Data, labels: Tuple[str, ...], train: Optional[ImageSplit],
          test: Optional[ImageSplit]) -> DataSet:
  height, width = (settings.image_size or IMAGE_SIZE)[:2]
  return DataSet(name=settings.dataset, labels=labels, image_shape=(height, width, 3),
                 train=train, test=test, files=())


def check_classes(labels: Sequence[str], train: ImageSplit) -> None:
  """Raises a UserError when a class has no image to train on."""
  missing = [label for label, count in zip(labels, class_counts(train, len(labels))) if not count]
  if missing:
    raise UserError('a class has no image to train on', ', '.join(missing),
                    'add images to its folder, or give --labels without it')


def class_counts(split: Union[ImageSplit, ArraySplit], num_classes: int) -> List[int]:
  """Returns the number of images of each class."""
  return np.bincount(split.classes, minlength=num_classes).tolist()


def _list(flag: str, pattern: Optional[str]) -> List[bytes]:
  if not pattern:
    raise UserError('--{} is required here'.format(flag), 'no --' + flag,
                    'give one such as --{}=\'DATA/train/**/*.jpeg\''.format(flag))
  files = file_pattern.expand(pattern)
  if not files:
    raise UserError('--{} matches no file'.format(flag), '--{}={}'.format(flag, pattern),
                    'give one such as \'DATA/train/**/*.jpeg\', in quotes')
  return files


def _folder_names(files: Sequence[bytes]) -> Tuple[str, ...]:
  folders = {os.path.dirname(path) for path in files}
  return tuple(sorted({_label(folder) for folder in folders}))


def _label(folder: bytes) -> str:
  name = os.path.basename(os.path.abspath(folder)).decode('utf-8', 'backslashreplace')
  if name.splitlines() not in ([], [name]):  # A line each in labels.txt, and in flags.txt.
    raise UserError('a class\'s name has a line break', repr(os.fsdecode(folder)),
                    'rename the folder')
  return name


def _split(files: List[bytes], labels: Sequence[str]) -> ImageSplit:
  numbers = {label: number for number, label in enumerate(labels)}
  number_of_folder: Dict[bytes, int] = {}
  classes = np.empty(len(files), np.int32)
  for index, path in enumerate(files):
    folder = os.path.dirname(path)
    if folder not in number_of_folder:
      label = _label(folder)
      if label not in numbers:
        raise UserError('a file\'s folder is not among the labels',
                        '{} (labels: {})'.format(printable(os.fsdecode(path)), ', '.join(labels)),
                        'give a pattern that passes by it, or --labels with ' + label)
      number_of_folder[folder] = numbers[label]
    classes[index] = number_of_folder[folder]
  return ImageSplit(files, classes)
