"""Finds the data set of --dataset: a built-in one, or one that a function of the user describes.

A built-in data set NAME is the module estimator_train.data.NAME, unless _BUILT_IN has it. The
module has a function `describe`, which takes the settings and returns the DataSet. It may also have
a function `describe_classes`, which does so without listing the files of the splits.
"""

import importlib
import os
from typing import Any, Callable, Dict, List, Optional, Tuple, Union

import numpy as np

from estimator_train.data import (
  ArraySplit,
  DataSet,
  ExampleSplit,
  IdxSplit,
  ImageRecordSplit,
  ImageShape,
  ImageSplit,
  ParsedRecordSplit,
  RecordSplit,
  SyntheticSplit,
  idx,
  image_folder,
  labels_file,
  oct2017,
  require_data_dir,
  tfrecord,
)
from estimator_train.data.download import DownloadResult, download_files
from estimator_train.data.validation import split_examples
from estimator_train.errors import UserError
from estimator_train.run_dir.data_record import Validation
from estimator_train.settings import Settings, user_code
from estimator_train.settings.flags import are_distinct

_NUM_SYNTHETIC_EVAL_BATCHES = 10
_SPLITS_OF_USERS = (ArraySplit, ImageSplit, IdxSplit, SyntheticSplit, RecordSplit, ExampleSplit)
_Functions = Tuple[Callable[[Settings], DataSet], Callable[[Settings], DataSet]]


def describe(settings: Settings, recorded: Optional[Validation] = None) -> DataSet:
  """Describes the data set of the settings.

  Args:
    settings: the settings of the run.
    recorded: which examples are for validation; None: `--validation_fraction` and `--seed` decide.

  Raises:
    UserError: a required folder or pattern is not given, image files are missing, or the user's
      function does not return a valid DataSet.
  """
  dataset = _find_functions(settings.data.dataset)[0](settings)
  if settings.data.validation_fraction:
    dataset = _split_validation(dataset, settings, recorded)
  if dataset.files:
    require_data_dir(settings.data)
  return dataset


def describe_classes(settings: Settings) -> DataSet:
  """Describes the data set without its splits, which are not required to build the model.

  Raises:
    UserError: neither the settings nor `model_dir` determines the classes.
  """
  dataset = _find_functions(settings.data.dataset)[1](settings)
  return dataset._replace(train=None, test=None, files=())


def download_missing_files(settings: Settings) -> List[DownloadResult]:
  """Downloads the missing files of the data set.

  Returns:
    The published files, or the folder of the images of oct2017; [] if nothing is published.

  Raises:
    UserError: the files cannot be downloaded or stored.
  """
  if settings.data.dataset == 'oct2017':
    return oct2017.download_images(require_data_dir(settings.data))
  if settings.data.dataset in ('image_folder', 'tfrecord'):  # The user provides the files.
    return []
  files = describe(settings).files
  return download_files(files, require_data_dir(settings.data)) if files else []


def describe_examples_to_predict(settings: Settings) -> DataSet:
  """Returns the data set with the examples of `--mode=predict` as `test`.

  These are the records of the files that `--input` names, which the function of the test split
  parses or, without `--input`, the test examples.

  Raises:
    UserError: there are no such examples.
  """
  dataset = _describe_own_classes(settings)
  split: Any = dataset.test if dataset.test is not None else dataset.train
  if settings.export.input:
    if type(split) is not RecordSplit:
      raise UserError('--input requires a data set of records', '--dataset={} is {}'.format(
          settings.data.dataset, type(split).__name__),
                      'omit --input, to predict the test examples, or give rows (.csv or .jsonl)')
    split = split._replace(pattern=settings.export.input)
  elif dataset.test is None:
    raise UserError('there are no examples to predict',
                    '--dataset={} with test=None'.format(settings.data.dataset),
                    'give DataSet(test=...)')
  return dataset._replace(train=None,
                          test=_check_split('test', split, dataset, settings))


def _describe_idx(settings: Settings) -> DataSet:
  return idx.describe(settings.data.dataset, settings.data.data_dir or '')


def _describe_synthetic(settings: Settings) -> DataSet:
  """Describes synthetic images, to measure the speed of a model without an input pipeline.

  They have the size of `--image_size` (default: 28x28x1) and the classes of `--labels` (default:
  ten classes).
  """
  height, width, channels = (*(settings.data.image_size or (28, 28)), 1)[:3]
  return DataSet(
      name='synthetic',
      labels=settings.data.labels or tuple('class_{}'.format(index) for index in range(10)),
      image_shape=(height, width, channels),
      train=SyntheticSplit(None),
      test=SyntheticSplit(_NUM_SYNTHETIC_EVAL_BATCHES))


_BUILT_IN: Dict[str, Callable[[Settings], DataSet]] = {
    'synthetic': _describe_synthetic, **dict.fromkeys(idx.DATA_SETS, _describe_idx)}


def _find_functions(name: str) -> _Functions:
  """Returns the functions that describe a data set with its splits, and only its classes."""
  if user_code.is_function_name(name):
    return _describe_own, _describe_own_classes
  if name in _BUILT_IN:
    return _BUILT_IN[name], _BUILT_IN[name]
  module = importlib.import_module('estimator_train.data.' + name)
  return module.describe, getattr(module, 'describe_classes', module.describe)


def _describe_own(settings: Settings) -> DataSet:
  """Returns the data set that the function of `--dataset` returns, after checking the data set.

  Raises:
    UserError: the function does not exist or raises an exception, or the data set is invalid or
      lacks a split that the mode reads.
  """
  dataset = _describe_own_classes(settings)
  if settings.data.validation_fraction:  # `describe` splits the training examples.
    return dataset._replace(train=_check_split('train', dataset.train, dataset, settings))
  for name, is_required in (('train', settings.run.trains),
                            ('test', settings.run.evaluates)):
    if is_required and getattr(dataset, name) is None:
      raise UserError('the data set has no examples to {}'.format(
          'train on' if name == 'train' else 'evaluate on'),
          '--dataset={} with {}=None'.format(settings.data.dataset, name),
          'give DataSet({}=...)'.format(name))
  train, test = (_check_split(name, getattr(dataset, name), dataset, settings)
                 for name in ('train', 'test'))
  return dataset._replace(train=train, test=test)


def _split_validation(dataset: DataSet, settings: Settings,
                      recorded: Optional[Validation]) -> DataSet:
  """Returns the data set with `--validation_fraction` of the training examples as `test`."""
  train: Any = dataset.train
  if type(train) not in (ImageSplit, ImageRecordSplit) or dataset.test is not None:
    raise UserError('--validation_fraction requires train=ImageSplit, or a RecordSplit of images, '
                    'and test=None', '--dataset={} with {} and {}'.format(dataset.name, *(
                        type(split).__name__ for split in (dataset.train, dataset.test))),
                    'omit --validation_fraction, and give DataSet(test=...)')
  train, test, validation = split_examples(train, settings, recorded)
  reads_train, reads_test = image_folder.splits_to_read(settings, test_flag=True)
  if reads_train and isinstance(train, ImageSplit):
    image_folder.check_no_class_missing(dataset.labels, train)
  return dataset._replace(train=train if reads_train else None, test=test if reads_test else None,
                          validation=validation)


def _describe_own_classes(settings: Settings) -> DataSet:
  """Like _describe_own, but without checking the splits, whose files need not exist."""
  location = '--dataset=' + settings.data.dataset
  dataset = user_code.call_function('dataset', settings.data.dataset, 'settings', settings)
  if not isinstance(dataset, DataSet):
    raise UserError('the function of --dataset must return an estimator_train.DataSet',
                    '{} returns {}'.format(location, type(dataset).__name__),
                    'return estimator_train.DataSet(...)')
  return dataset._replace(name=settings.data.dataset, labels=_check_class_names(dataset, location),
                          image_shape=_check_shape(dataset.image_shape, location))


def _check_class_names(dataset: DataSet, location: str) -> Tuple[str, ...]:
  """Returns the checked `labels` of a DataSet, which are class names; () if there are no classes.

  Args:
    dataset: the data set that the function of the user has returned.
    location: the flag, with which an error message starts.

  Raises:
    UserError: `labels` is invalid.
  """
  labels: Any = dataset.labels
  if not isinstance(labels, (tuple, list)) or not all(
      isinstance(name, str) and name.splitlines() == [name] for name in labels):
    raise UserError('the labels of a data set must be a tuple or list of strings of one line',
                    '{}: {!r}'.format(location, labels),
                    'name each class, such as labels=(\'cat\', \'dog\')')
  if (labels or dataset.image_shape is not None) and (len(labels) < 2 or not are_distinct(labels)):
    raise UserError('a data set must have two or more labels, all different',
                    '{}: {!r}'.format(location, labels),
                    'name each class once; labels=() requires image_shape=None')
  return tuple(labels)


def _check_shape(shape: Any, location: str) -> Optional[ImageShape]:
  """Returns the checked `image_shape` of a DataSet; raises a UserError if it is invalid."""
  if shape is None:
    return None
  try:
    height, width, channels = (int(side) for side in shape)
  except (TypeError, ValueError):
    height = width = channels = 0
  if min(height, width) < 1 or channels not in (1, 3):
    raise UserError('image_shape must be (height, width, channels), with 1 or 3 channels',
                    '{}: {!r}'.format(location, shape),
                    'give a shape such as (28, 28, 1), or None if the examples are not images')
  return height, width, channels


def _check_split(split_name: str, split: Any, dataset: DataSet, settings: Settings) -> Any:
  """Returns the checked split, with int32 class indices; raises a UserError if it is invalid."""
  if split is None:
    return None
  location = '--dataset={}: {}'.format(dataset.name, split_name)
  if type(split) not in _SPLITS_OF_USERS:
    raise UserError('a split of a data set has an unsupported type',
                    '{} is {}'.format(location, type(split).__name__),
                    'give ' + ' or '.join(split_type.__name__ for split_type in _SPLITS_OF_USERS))
  has_function = type(split) is ExampleSplit or (
      type(split) is RecordSplit and (split.parse or split.parse_batch) is not None)
  if dataset.image_shape is None and not has_function:
    raise UserError('examples that are not images require a function that makes them',
                    '{} is {} with image_shape=None'.format(location, type(split).__name__),
                    'give a RecordSplit with parse or parse_batch, or an ExampleSplit')
  if type(split) is RecordSplit:
    return _find_records(split, location, dataset, settings)
  if type(split) is ArraySplit:
    examples: Any = np.asanyarray(split.images)
    _check_images(examples, dataset.image_shape, location)
  elif type(split) is ImageSplit:
    examples = _check_files(split.files, location)
  else:  # The source checks the other splits later.
    return split
  classes = _check_class_indices(split.classes, len(examples), dataset.labels, location)
  checked = type(split)(examples, classes)
  if split_name == 'train':
    image_folder.check_no_class_missing(dataset.labels, checked)
  return checked


def _check_files(files: Any, location: str) -> List[bytes]:
  """Returns the paths of an ImageSplit; raises a UserError if they are not a list."""
  if isinstance(files, (str, bytes)) or not hasattr(files, '__iter__'):
    raise UserError('the files of a split must be a list', '{}: {!r}'.format(location, files),
                    'give a list of paths')
  return [os.fsencode(path) for path in files]


def _find_records(split: RecordSplit, location: str, dataset: DataSet,
                  settings: Settings) -> Union[ImageRecordSplit, ParsedRecordSplit]:
  """Returns the split with the positions of the records."""
  if split.parse is not None and split.parse_batch is not None:
    raise UserError('a RecordSplit has parse or parse_batch, not both', location,
                    'omit one of them')
  records = tfrecord.load_index(str(split.pattern), '{} has pattern={}'.format(
      location, split.pattern), split.compression, settings)
  if split.parse is None and split.parse_batch is None:
    train: Any = dataset.train
    return labels_file.add_labels(
        ImageRecordSplit(records, settings.data.image_key, settings.data.label_key,
                         settings.data.label_offset), str(split.pattern), dataset.labels,
        str(train.pattern) if type(train) is RecordSplit else None, are_given=True)
  return ParsedRecordSplit(records, split.parse, split.parse_batch)


def _check_images(images: np.ndarray, shape: Optional[ImageShape], location: str) -> None:
  if images.dtype != np.uint8:
    raise UserError('images must be uint8, from 0 to 255',
                    '{} has dtype {} and shape {}'.format(location, images.dtype, images.shape),
                    'for images in [0, 1] give (images * 255).round().astype(np.uint8); '
                    '--preprocess scales them for the model')
  assert shape is not None
  if images.shape[1:] != shape:
    raise UserError(
        'the images must have the image_shape of the data set',
        '{} has shape {}, expected (examples, {}, {}, {})'.format(location, images.shape, *shape),
        'give images[..., np.newaxis], or change image_shape' if images.shape[1:] == shape[:2]
        else 'give images of that shape, or change image_shape')


def _check_class_indices(classes: Any, num_examples: int, labels: Tuple[str, ...],
                         location: str) -> np.ndarray:
  """Returns the class indices as an int32 array; raises a UserError for invalid ones."""
  classes = np.asarray(classes)
  if classes.ndim != 1 or (classes.size and classes.dtype.kind not in 'biu'):
    raise UserError('classes must be integers, one per example',
                    '{} has dtype {} and shape {}'.format(location, classes.dtype, classes.shape),
                    'give classes.reshape(-1) for a column, classes.argmax(-1) for one-hot labels, '
                    'or the indices of names in labels')
  if len(classes) != num_examples:
    raise UserError('there must be as many classes as images',
                    '{} has {} images and {} classes'.format(location, num_examples, len(classes)),
                    'give the images and classes of the same examples')
  if not num_examples:
    raise UserError('a split of the data set has no examples', location,
                    'add examples, or give None')
  out_of_range = np.flatnonzero((classes < 0) | (classes >= len(labels)))
  if len(out_of_range):
    raise UserError('classes must be at least 0 and less than the number of labels, {}'.format(
        len(labels)), '{} has class {} at position {}'.format(
            location, classes[out_of_range[0]], out_of_range[0]), 'give indices into labels')
  return classes.astype(np.int32)
