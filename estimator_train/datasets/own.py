"""A data set of the user's own: a function that returns its description."""

import os
from typing import Any, Callable, Dict, Sequence, Tuple

import numpy as np

from estimator_train.datasets.description import (
  ArraySplit,
  DataSet,
  IdxSplit,
  ImageSplit,
  SyntheticSplit,
)
from estimator_train.errors import UserError
from estimator_train.settings import Settings, user_code


def describe(settings: Settings) -> DataSet:
  """Calls the function that `--dataset` names, and checks what it returns.

  Raises:
    UserError: it is not there or raises, or what it returns is no data set for this mode.
  """
  given = '--dataset=' + settings.dataset
  dataset = user_code.call('dataset', settings.dataset, 'settings', settings)
  if not isinstance(dataset, DataSet):
    raise UserError('the function of --dataset returns no data set',
                    '{} returns {}'.format(given, type(dataset).__name__),
                    'return an estimator_train.DataSet')
  labels = _checked_labels(dataset.labels, given)
  shape = _checked_shape(dataset.image_shape, given)
  for name, wanted in (('train', settings.trains),
                       ('test', settings.evaluates)):
    if wanted and getattr(dataset, name) is None:
      raise UserError('the data set has no examples to {}'.format(
          'train on' if name == 'train' else 'evaluate on'),
          '{} with {}=None'.format(given, name), 'give DataSet({}=...)'.format(name))
  dataset = dataset._replace(name=settings.dataset, labels=labels, image_shape=shape)
  train, test = (_checked_split(name, getattr(dataset, name), dataset)
                 for name in ('train', 'test'))
  return dataset._replace(train=train, test=test)


def _checked_labels(labels: Any, given: str) -> Tuple[str, ...]:
  if isinstance(labels, str) or not all(isinstance(label, str) for label in labels):
    raise UserError('a data set\'s labels must be strings', '{}: {!r}'.format(given, labels),
                    'name each class, such as labels=(\'cat\', \'dog\')')
  if len(labels) < 2 or len(set(labels)) < len(labels) or any(
      not label or label.splitlines() != [label] for label in labels):
    raise UserError('a data set\'s labels must be two or more, each another, in one line',
                    '{}: {!r}'.format(given, tuple(labels)), 'name each class once')
  return tuple(labels)


def _checked_shape(shape: Any, given: str) -> Tuple[int, int, int]:
  try:
    height, width, channels = (int(side) for side in shape)
  except (TypeError, ValueError):
    height = width = channels = 0
  if min(height, width) < 1 or channels not in (1, 3):
    raise UserError('a data set\'s image_shape must be (height, width, channels), 1 or 3 channels',
                    '{}: {!r}'.format(given, shape), 'give one such as (28, 28, 1)')
  return height, width, channels


def _checked_split(name: str, split: Any, dataset: DataSet) -> Any:
  """Returns the split as those of built-in sets are, or raises a UserError."""
  if split is None:
    return None
  given = '--dataset={}: {}'.format(dataset.name, name)
  if type(split) not in _CHECKS:
    raise UserError('a split of a data set is of no kind that can be read',
                    '{} is {}'.format(given, type(split).__name__),
                    'give one of ' + ', '.join(kind.__name__ for kind in _CHECKS))
  return _CHECKS[type(split)](split, dataset, name, given)


def _checked_arrays(split: ArraySplit, dataset: DataSet, name: str, given: str) -> ArraySplit:
  images = np.asanyarray(split.images)
  _check_images(images, dataset.image_shape, given)
  return ArraySplit(images, _checked_classes(split.classes, len(images), dataset, name))


def _checked_files(split: ImageSplit, dataset: DataSet, name: str, given: str) -> ImageSplit:
  if isinstance(split.files, (str, bytes)):
    raise UserError('the files of a split must be a list', '{}: {!r}'.format(given, split.files),
                    'give a list of paths')
  files = [os.fsencode(path) for path in split.files]
  return ImageSplit(files, _checked_classes(split.classes, len(files), dataset, name))


def _checked_later(split: Any, *unused: Any) -> Any:
  """Returns a split that is checked when its files are."""
  return split


_CHECKS: Dict[type, Callable[..., Any]] = {
    ArraySplit: _checked_arrays, ImageSplit: _checked_files, IdxSplit: _checked_later,
    SyntheticSplit: _checked_later}


def _check_images(images: np.ndarray, shape: Tuple[int, int, int], given: str) -> None:
  if images.dtype != np.uint8:
    raise UserError('images must be uint8, from 0 to 255',
                    '{} has {} of {}'.format(given, images.dtype, images.shape),
                    'for images in [0, 1] give (images * 255).round().astype(np.uint8); '
                    '--preprocess scales them for the model')
  if images.shape[1:] != shape:
    raise UserError(
        'the images do not have the data set\'s image_shape',
        '{} has {}, expected (examples, {}, {}, {})'.format(given, images.shape, *shape),
        'give images[..., np.newaxis], or another image_shape' if images.shape[1:] == shape[:2]
        else 'give images of that shape, or another image_shape')


def _checked_classes(classes: Any, num_examples: int, dataset: DataSet, name: str) -> np.ndarray:
  """Returns the class numbers, an int32 array."""
  given = '--dataset={}: {}'.format(dataset.name, name)
  classes = np.asarray(classes)
  if classes.ndim != 1 or (classes.size and classes.dtype.kind not in 'biu'):
    raise UserError('classes must be whole numbers, one an example',
                    '{} has {} of {}'.format(given, classes.dtype, classes.shape),
                    'give classes.reshape(-1) of a column; classes.argmax(-1) of one-hot labels; '
                    'for names the places in labels')
  if len(classes) != num_examples:
    raise UserError('there must be as many classes as images',
                    '{} has {} images and {} classes'.format(given, num_examples, len(classes)),
                    'give the two of the same examples')
  if not num_examples:
    raise UserError('a split of the data set has no examples', given, 'give some, or None')
  outside = np.flatnonzero((classes < 0) | (classes >= len(dataset.labels)))
  if len(outside):
    raise UserError('classes must be from 0 to below the number of labels, {}'.format(
        len(dataset.labels)), '{} has class {} at position {}'.format(
            given, classes[outside[0]], outside[0]), 'number them by their places in labels')
  if name == 'train':
    _check_each_is_there(classes, dataset.labels, given)
  return classes.astype(np.int32)


def _check_each_is_there(classes: np.ndarray, labels: Sequence[str], given: str) -> None:
  counts = np.bincount(classes, minlength=len(labels))
  missing = [label for label, count in zip(labels, counts) if not count]
  if missing:
    raise UserError('a class has no example to train on', '{} lacks {}'.format(
        given, ', '.join(missing)), 'add some, or leave the label out')
