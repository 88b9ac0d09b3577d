"""Finds the data set of --dataset: a built-in one, or one that a function of the user describes.

`_DESCRIBE_FUNCTIONS` contains functions for some of the built-in data sets. Each other built-in
data set NAME has a module, estimator_train.data.NAME, with these functions:

- `describe_data_set` takes the settings and the class names that an earlier run recorded in
  `model_dir`, and returns the DataSet.
- `describe_spec`, which is optional, takes the same arguments. It returns the DataSpec without
  listing files.
"""

import importlib
import os
from typing import Any, Callable, Dict, List, Optional, Tuple, Union

import numpy as np

from estimator_train.data import (
  ArraySplit,
  DataSet,
  DataSpec,
  ExampleSplit,
  IdxSplit,
  ImageRecordSplit,
  ImageShape,
  ImageSplit,
  ParsedRecordSplit,
  RecordSplit,
  Split,
  SyntheticSplit,
  file_pattern,
  image_folder,
  mnist,
  oct2017,
  require_data_dir,
  tfrecord,
)
from estimator_train.data.download import DownloadResult, download_files
from estimator_train.data.holdout import hold_out_examples
from estimator_train.data.labels_file import LabelFiles
from estimator_train.errors import UserError, printable
from estimator_train.run_dir.data_record import Holdout
from estimator_train.settings import Settings, data_folder, rules, user_code
from estimator_train.settings.flags import are_distinct

_NUM_SYNTHETIC_EVAL_BATCHES = 10
_USER_SPLIT_TYPES = (ArraySplit, ImageSplit, IdxSplit, SyntheticSplit, RecordSplit, ExampleSplit)


def describe_data_set(settings: Settings, recorded_names: Tuple[str, ...] = (),
                      recorded_validation: Optional[Holdout] = None) -> DataSet:
  """Describes the data set of the settings.

  Args:
    recorded_names: the class names that an earlier run recorded in `model_dir`.
    recorded_validation: the examples that an earlier run used for validation. If it is None,
      `--validation_fraction` and `--seed` determine these examples.

  Raises:
    UserError: a required folder or pattern is not given, image files are missing, or the user's
      function does not return a valid DataSet.
  """
  name = settings.data.dataset
  if data_folder.is_folder(name):
    if _has_image_files(settings):
      dataset = image_folder.describe_data_set(settings, recorded_names)
    else:
      rules.PIPELINE_OF_RECORDS_RULE.check(settings)
      dataset = tfrecord.describe_data_set(settings, recorded_names)
  elif user_code.is_function_name(name):
    dataset = _describe_user_data_set(settings)
  elif name in _DESCRIBE_FUNCTIONS:
    dataset = _DESCRIBE_FUNCTIONS[name](settings)
  else:
    dataset = importlib.import_module('estimator_train.data.' + name).describe_data_set(
        settings, recorded_names)
  if settings.data.validation_fraction:
    dataset = _hold_out_validation(dataset, settings, recorded_validation)
  if dataset.files:
    require_data_dir(settings.data)
  return dataset


def describe_spec(settings: Settings, recorded_names: Tuple[str, ...]) -> DataSpec:
  """Describes the data set without its splits.

  Raises:
    UserError: neither the settings nor `model_dir` determines the classes.
  """
  name = settings.data.dataset
  if data_folder.is_folder(name):  # The images in TFRecord files of a folder have three channels.
    return image_folder.describe_spec(settings, recorded_names)
  if user_code.is_function_name(name):
    return _call_user_function(settings).spec
  if name not in _DESCRIBE_FUNCTIONS:
    module = importlib.import_module('estimator_train.data.' + name)
    if hasattr(module, 'describe_spec'):
      spec: DataSpec = module.describe_spec(settings, recorded_names)
      return spec
  return describe_data_set(settings, recorded_names).spec


def download_missing_files(settings: Settings) -> List[DownloadResult]:
  """Downloads the missing files of the data set.

  Returns:
    A result for each published file or, for oct2017, for the folder of the images. The list is
    empty if there is nothing to download.

  Raises:
    UserError: the files cannot be downloaded or stored.
  """
  if settings.data.dataset == 'oct2017':
    return oct2017.download_images(require_data_dir(settings.data))
  if settings.data.dataset in ('image_folder', 'tfrecord') or data_folder.is_folder(
      settings.data.dataset):  # The user provides the files.
    return []
  files = describe_data_set(settings).files
  return download_files(files, require_data_dir(settings.data)) if files else []


def describe_examples_to_predict(settings: Settings) -> DataSet:
  """Returns the data set with the examples of `--mode=predict` as `test`.

  With `--input`, the examples are the records of the files that the flag names. The function of the
  test split parses them. Without `--input`, the examples are the test examples.

  Raises:
    UserError: there are no such examples.
  """
  dataset = _call_user_function(settings)
  split = dataset.test if dataset.test is not None else dataset.train
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
  label_files = LabelFiles(settings.data.label_offset, names_are_given=True)
  return dataset._replace(
      train=None, test=_check_split('test', split, dataset, settings, label_files))


def _has_image_files(settings: Settings) -> bool:
  """Returns whether the files of `--dataset=FOLDER` are image files, not TFRecord files.

  Raises:
    UserError: there are both, or none of them.
  """
  data = settings.data
  patterns = [pattern for patterns in (data.train_pattern, data.eval_pattern) if patterns
              for pattern in file_pattern.split_patterns(patterns)]

  def find_first(is_wanted: Callable[[bytes], bool]) -> Optional[bytes]:
    return next((path for pattern in patterns
                 for path in file_pattern.iter_files(pattern, is_wanted=is_wanted)
                 if is_wanted(path)), None)

  image, records = map(find_first, (file_pattern.is_image, file_pattern.has_name_of_records))
  if image is not None and records is not None:
    raise UserError('a folder of data must have images or TFRecord files, not both',
                    '--dataset={} has {} and {}'.format(data.dataset, *(
                        printable(os.fsdecode(path)) for path in (image, records))),
                    'move one kind of files elsewhere')
  if image is None and (find_first(file_pattern.may_be_image) is not None
                        or find_first(file_pattern.may_be_records) is None):
    raise UserError('a folder of data needs JPEG, PNG or GIF images, or TFRecord files',
                    '--dataset={}: {}'.format(data.dataset, '; '.join(
                        '{} has {}'.format(pattern, file_pattern.describe_files(pattern))
                        for pattern in patterns)), 'convert the images to JPEG or PNG, or add some')
  return image is not None


def _describe_synthetic(settings: Settings) -> DataSet:
  """Describes synthetic images, to measure the speed of a model without an input pipeline.

  The images have the size of `--image_size` (default: 28x28x1) and the classes of `--labels`
  (default: ten classes).
  """
  height, width, channels = (*(settings.data.image_size or (28, 28)), 1)[:3]
  return DataSet(
      name='synthetic',
      labels=settings.data.labels or tuple('class_{}'.format(index) for index in range(10)),
      image_shape=(height, width, channels),
      train=SyntheticSplit(None, settings.optimizer.seed),
      test=SyntheticSplit(_NUM_SYNTHETIC_EVAL_BATCHES, settings.optimizer.seed))


_DESCRIBE_FUNCTIONS: Dict[str, Callable[[Settings], DataSet]] = {
    'synthetic': _describe_synthetic,
    **dict.fromkeys(mnist.DATA_SETS, lambda settings: mnist.describe_data_set(
        settings.data.dataset, settings.data.data_dir or ''))}


def _describe_user_data_set(settings: Settings) -> DataSet:
  """Returns the checked data set of the user's function.

  Raises:
    UserError: the function does not exist or raises an exception, or the data set is invalid or
      lacks a split that the mode reads.
  """
  dataset = _call_user_function(settings)
  label_files = LabelFiles(settings.data.label_offset, names_are_given=True)

  def check_split_named(split_name: str) -> Optional[Split]:
    split = getattr(dataset, split_name)
    return _check_split(split_name, split, dataset, settings, label_files)

  if settings.data.validation_fraction:  # The test examples are taken from `train` later.
    return dataset._replace(train=check_split_named('train'))
  for split_name, is_required in (('train', settings.run.trains),
                                  ('test', settings.run.evaluates)):
    if is_required and getattr(dataset, split_name) is None:
      raise UserError('the data set has no examples to {}'.format(
          'train on' if split_name == 'train' else 'evaluate on'),
          '--dataset={} with {}=None'.format(settings.data.dataset, split_name),
          'give DataSet({}=...)'.format(split_name))
  return dataset._replace(train=check_split_named('train'), test=check_split_named('test'))


def _hold_out_validation(dataset: DataSet, settings: Settings,
                         recorded_holdout: Optional[Holdout]) -> DataSet:
  """Returns the data set with `--validation_fraction` of the training examples as `test`."""
  train = dataset.train
  if not isinstance(train, (ImageSplit, ImageRecordSplit)) or dataset.test is not None:
    raise UserError('--validation_fraction requires train=ImageSplit, or a RecordSplit of images, '
                    'and test=None', '--dataset={} with {} and {}'.format(dataset.name, *(
                        type(split).__name__ for split in (dataset.train, dataset.test))),
                    'omit --validation_fraction, and give DataSet(test=...)')
  train, test, validation = hold_out_examples(
      train, settings, recorded_holdout,
      dataset.labels if data_folder.is_folder(settings.data.dataset) else ())
  reads_train, reads_test = image_folder.splits_to_read(settings, test_flag=True)
  if reads_train and isinstance(train, ImageSplit):
    image_folder.check_no_class_missing(dataset.labels, train)
  return dataset._replace(train=train if reads_train else None, test=test if reads_test else None,
                          validation=validation)


def _call_user_function(settings: Settings) -> DataSet:
  """Returns the data set of the user without checking its splits, whose files need not exist."""
  location = '--dataset=' + settings.data.dataset
  dataset = user_code.call_function('dataset', settings.data.dataset, 'settings', settings)
  if not isinstance(dataset, DataSet):
    raise UserError('the function of --dataset must return an estimator_train.DataSet',
                    '{} returns {}'.format(location, type(dataset).__name__),
                    'return estimator_train.DataSet(...)')
  return dataset._replace(name=settings.data.dataset, labels=_check_class_names(dataset, location),
                          image_shape=_check_image_shape(dataset.image_shape, location))


def _check_class_names(dataset: DataSet, location: str) -> Tuple[str, ...]:
  """Returns the checked `labels` of a DataSet of the user; () if there are no classes.

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


def _check_image_shape(shape: Any, location: str) -> Optional[ImageShape]:
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


def _check_split(split_name: str, split: Optional[Split], dataset: DataSet, settings: Settings,
                 label_files: LabelFiles) -> Optional[Split]:
  """Returns the checked split, with int32 class indices; raises a UserError if it is invalid."""
  if split is None:
    return None
  location = '--dataset={}: {}'.format(dataset.name, split_name)
  if type(split) not in _USER_SPLIT_TYPES:
    raise UserError('a split of a data set has an unsupported type',
                    '{} is {}'.format(location, type(split).__name__),
                    'give ' + ' or '.join(split_type.__name__ for split_type in _USER_SPLIT_TYPES))
  has_function = type(split) is ExampleSplit or (
      type(split) is RecordSplit and (split.parse or split.parse_batch) is not None)
  if dataset.image_shape is None and not has_function:
    raise UserError('examples that are not images require a function that makes them',
                    '{} is {} with image_shape=None'.format(location, type(split).__name__),
                    'give a RecordSplit with parse or parse_batch, or an ExampleSplit')
  if type(split) is RecordSplit:
    return _find_records(split, location, dataset, settings, label_files)
  if type(split) is ArraySplit:
    examples: Any = np.asanyarray(split.images)
    _check_images(examples, dataset.image_shape, location)
  elif type(split) is ImageSplit:
    if isinstance(split.files, (str, bytes)) or not hasattr(split.files, '__iter__'):
      raise UserError('the files of a split must be a list',
                      '{}: {!r}'.format(location, split.files), 'give a list of paths')
    examples = [os.fsencode(path) for path in split.files]
  elif type(split) is SyntheticSplit:
    return SyntheticSplit(split.num_batches, settings.optimizer.seed)
  else:  # The source of an IdxSplit or ExampleSplit checks it later.
    return split
  classes = _check_class_indices(split.classes, len(examples), dataset.labels, location)
  checked_split = type(split)(examples, classes)
  if split_name == 'train':
    image_folder.check_no_class_missing(dataset.labels, checked_split)
  return checked_split


def _find_records(
    split: RecordSplit, location: str, dataset: DataSet, settings: Settings,
    label_files: LabelFiles) -> Union[ImageRecordSplit, ParsedRecordSplit]:
  if split.parse is not None and split.parse_batch is not None:
    raise UserError('a RecordSplit has parse or parse_batch, not both', location,
                    'omit one of them')
  pattern = str(split.pattern)
  records = tfrecord.find_records(pattern, '{} has pattern={}'.format(location, pattern),
                                  split.compression, settings)
  if split.parse is None and split.parse_batch is None:
    train = dataset.train
    return label_files.add_class_names_to(
        tfrecord.make_image_split(records, settings.data), pattern, dataset.labels,
        str(train.pattern) if type(train) is RecordSplit else None)
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
  """Returns the class indices as an int32 array; raises a UserError if they are invalid."""
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
