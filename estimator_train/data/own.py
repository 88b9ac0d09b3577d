"""Calls the user's function that --dataset names, and checks the DataSet that it returns."""

import os
from typing import Any, Callable, Dict, Optional, Tuple, Union

import numpy as np

from estimator_train.data import image_folder, tfrecord
from estimator_train.data.description import (
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
)
from estimator_train.errors import UserError, join_items
from estimator_train.settings import Settings, user_code
from estimator_train.settings.groups import are_distinct


def describe(settings: Settings) -> DataSet:
  """Returns the data set that the function of `--dataset` returns, after checking the data set.

  Raises:
    UserError: the function does not exist or raises an exception, or the data set is invalid or
      lacks a split that the mode reads.
  """
  dataset = describe_classes(settings)
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


def describe_classes(settings: Settings) -> DataSet:
  """Like `describe`, but without checking the splits, whose files need not exist."""
  location = '--dataset=' + settings.data.dataset
  dataset = user_code.call_function('dataset', settings.data.dataset, 'settings', settings)
  if not isinstance(dataset, DataSet):
    raise UserError('the function of --dataset must return an estimator_train.DataSet',
                    '{} returns {}'.format(location, type(dataset).__name__),
                    'return estimator_train.DataSet(...)')
  return dataset._replace(name=settings.data.dataset, labels=_check_class_names(dataset, location),
                          image_shape=_check_shape(dataset.image_shape, location))


def describe_examples_to_predict(settings: Settings) -> DataSet:
  """Returns the data set with the examples of `--mode=predict` as `test`.

  These are the records of the files that `--input` names, which the function of the test split
  parses or, without `--input`, the test examples.

  Raises:
    UserError: there are no such examples.
  """
  dataset = describe_classes(settings)
  split: Any = dataset.test if dataset.test is not None else dataset.train
  if settings.export.input:
    if type(split) is not RecordSplit:
      raise UserError('--input requires a data set of records', '--dataset={} is {}'.format(
          settings.data.dataset, type(split).__name__),
                      'omit --input, to predict the test examples, or give a RecordSplit')
    split = split._replace(pattern=settings.export.input)
  elif dataset.test is None:
    raise UserError('there are no examples to predict',
                    '--dataset={} with test=None'.format(settings.data.dataset),
                    'give DataSet(test=...)')
  return dataset._replace(train=None,
                          test=_check_split('test', split, dataset, settings))


def _check_class_names(dataset: DataSet, location: str) -> Tuple[str, ...]:
  """Returns the checked `labels` of a DataSet, which are class names; () if there are no classes.

  Args:
    dataset: the data set that the function of the user has returned.
    location: the flag, with which an error message starts.

  Raises:
    UserError: `labels` is invalid.
  """
  labels: Any = dataset.labels
  # Reject an iterator: the next call of the function may return the same iterator, now exhausted.
  if not _is_collection(labels) or iter(labels) is labels or not all(
      isinstance(label, str) for label in labels):
    raise UserError('the labels of a data set must be a tuple or list of strings',
                    '{}: {!r}'.format(location, labels),
                    'name each class, such as labels=(\'cat\', \'dog\')')
  names = tuple(labels)
  if not names and dataset.image_shape is None:
    return ()
  if len(names) < 2 or not are_distinct(names) or any(
      not name or name.splitlines() != [name] for name in names):
    raise UserError('a data set must have two or more labels, all different, without line breaks',
                    '{}: {!r}'.format(location, names),
                    'name each class once; labels=() requires image_shape=None')
  return names


def _is_collection(value: Any) -> bool:
  """Whether a value can be iterated and is not a single string."""
  try:
    iter(value)
  except TypeError:
    return False
  return not isinstance(value, (str, bytes))


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
  if type(split) not in _CHECKS_BY_TYPE:
    raise UserError('a split of a data set has an unsupported type',
                    '{} is {}'.format(location, type(split).__name__),
                    'give ' + ' or '.join(split_type.__name__ for split_type in _CHECKS_BY_TYPE))
  has_function = type(split) is ExampleSplit or (
      type(split) is RecordSplit and (split.parse or split.parse_batch) is not None)
  if dataset.image_shape is None and not has_function:
    raise UserError('examples that are not images require a function that makes them',
                    '{} is {} with image_shape=None'.format(location, type(split).__name__),
                    'give a RecordSplit with parse or parse_batch, or an ExampleSplit')
  return _CHECKS_BY_TYPE[type(split)](split, dataset, split_name, location, settings)


def _check_array_split(split: ArraySplit, dataset: DataSet, split_name: str, location: str,
                       unused_settings: Settings) -> ArraySplit:
  images = np.asanyarray(split.images)
  _check_images(images, dataset.image_shape, location)
  return ArraySplit(images, _check_class_indices(split.classes, len(images), dataset, split_name))


def _check_image_split(split: ImageSplit, dataset: DataSet, split_name: str, location: str,
                       unused_settings: Settings) -> ImageSplit:
  if not _is_collection(split.files):
    raise UserError('the files of a split must be a list', '{}: {!r}'.format(location, split.files),
                    'give a list of paths')
  files = [os.fsencode(path) for path in split.files]
  return ImageSplit(files, _check_class_indices(split.classes, len(files), dataset, split_name))


def _accept_unchecked(split: Any, *unused: Any) -> Any:
  """Returns the split unchanged; the input pipeline later checks the files of an IdxSplit."""
  return split


def _find_records(split: RecordSplit, dataset: DataSet, split_name: str, location: str,
                  settings: Settings) -> Union[ImageRecordSplit, ParsedRecordSplit]:
  """Returns the split with the positions of the records."""
  if split.parse is not None and split.parse_batch is not None:
    raise UserError('a RecordSplit has parse or parse_batch, not both', location,
                    'omit one of them')
  records = tfrecord.load_index(str(split.pattern), '{} has pattern={}'.format(
      location, split.pattern), split.compression, settings)
  if split.parse is None and split.parse_batch is None:
    return ImageRecordSplit(records, settings.data.image_key, settings.data.label_key,
                            settings.data.label_offset)
  return ParsedRecordSplit(records, split.parse, split.parse_batch)


_CHECKS_BY_TYPE: Dict[type, Callable[..., Any]] = {
    ArraySplit: _check_array_split, ImageSplit: _check_image_split, IdxSplit: _accept_unchecked,
    SyntheticSplit: _accept_unchecked, RecordSplit: _find_records, ExampleSplit: _accept_unchecked}


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


def _check_class_indices(classes: Any, num_examples: int, dataset: DataSet,
                         split_name: str) -> np.ndarray:
  """Returns the class indices as an int32 array; raises a UserError for invalid ones."""
  location = '--dataset={}: {}'.format(dataset.name, split_name)
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
  out_of_range = np.flatnonzero((classes < 0) | (classes >= len(dataset.labels)))
  if len(out_of_range):
    raise UserError('classes must be at least 0 and less than the number of labels, {}'.format(
        len(dataset.labels)), '{} has class {} at position {}'.format(
            location, classes[out_of_range[0]], out_of_range[0]), 'give indices into labels')
  missing = image_folder.find_missing_classes(dataset.labels, classes)
  if missing and split_name == 'train':
    raise UserError('a class has no training examples', '{} lacks {}'.format(
        location, join_items(missing)), 'add examples, or remove the label')
  return classes.astype(np.int32)
