"""A data set that a user's own function describes."""

import sys
import types
from pathlib import Path

import numpy as np
import pytest

from estimator_train import ArraySplit, DataSet, IdxSplit, ImageSplit, UserError
from estimator_train.data import datasets
from estimator_train.settings import Settings

LABELS, SHAPE = ('dark', 'light'), (4, 5, 1)
CLASSES = np.arange(12) // 6  # Class by class, as people stack arrays.
IMAGES = np.broadcast_to(np.arange(12)[:, None, None, None], (12,) + SHAPE).astype(np.uint8)
ARRAYS = ArraySplit(IMAGES, CLASSES)
DATA = DataSet('mine', LABELS, SHAPE, ARRAYS, ARRAYS)


@pytest.fixture
def describe(monkeypatch):
  """Describes the data set that a function in a module `mine` returns, or calls the function."""
  def described(returned, **values):
    monkeypatch.setitem(sys.modules, 'mine', types.SimpleNamespace(
        data=returned if callable(returned) else lambda: returned))
    return datasets.describe_data_set(Settings(**dict(
        {'dataset': 'mine:data', 'model_dir': 'x', 'train_steps': 1}, **values)))

  return described


def test_the_flags_name_and_the_settings_reach_the_function(describe):
  def data(settings):
    return DATA._replace(labels=list(settings.data.labels))

  dataset = describe(data, labels=['a', 'b'])
  assert (dataset.name, dataset.labels) == ('mine:data', ('a', 'b'))
  assert dataset.train.classes.dtype == np.int32
  # Only what the mode reads must be there.
  assert describe(DATA._replace(test=None), mode='train').test is None
  assert describe(DATA._replace(train=None), mode='evaluate').train is None


def test_a_part_of_the_training_examples_is_for_validation(describe):
  files = ImageSplit(['{}/{}.png'.format(index % 2, index) for index in range(40)],
                     np.arange(40) % 2)
  dataset = describe(DATA._replace(train=files, test=None), validation_fraction=.2)
  assert sorted(dataset.train.files + dataset.test.files) == sorted(map(str.encode, files.files))
  assert [file[:1] for file in dataset.test.files] == [b'%d' % index
                                                       for index in dataset.test.classes]
  for wrong, given in ((DATA._replace(test=None), 'ArraySplit and NoneType'),
                       (DATA._replace(train=files), 'ImageSplit and ArraySplit')):
    with pytest.raises(UserError, match='--validation_fraction requires .*mine:data with ' + given):
      describe(wrong, validation_fraction=.2)


def train(**values):
  return DATA._replace(train=ArraySplit(**dict(ARRAYS._asdict(), **values)))


@pytest.mark.parametrize('data, message', [
    ({'train': 1}, 'must return an estimator_train.DataSet: --dataset=mine:data returns dict: re'),
    (DATA._replace(train=None), 'has no examples to train on: --dataset=mine:data with train=None'),
    (DATA._replace(test=None), 'has no examples to evaluate on: --dataset=mine:data with test=N'),
    (DATA._replace(labels='ab'), "tuple or list of strings of one line: .*'ab'"),
    (DATA._replace(labels=(0, 1)), 'list of strings of one line: .* .0, 1.: name each'),
    (DATA._replace(labels=('a',)), 'must have two or more labels, all different'),
    (DATA._replace(labels=('a\nb', 'c')), 'list of strings of one line'),
    (DATA._replace(image_shape=(4, 5)), r'must be \(height, width, channels\).*: \(4, 5\): give'),
    (DATA._replace(train=(IMAGES, CLASSES)), 'train is tuple: give ArraySplit or ImageSplit'),
    (train(images=IMAGES / 255), r'uint8, from 0 to 255: .* train has dtype float64 and shape '
     r'\(12, 4, 5, 1\): for images in \[0, 1\] give \(images \* 255\)'),
    (train(images=IMAGES[..., 0]), r'data set: .*\(12, 4, 5\), expected \(examples, 4, 5, 1\): '
     r'give images\[..., np.newaxis\]'),
    (train(images=IMAGES[:, :3]), r'train has shape \(12, 3, 5, 1\), expected'),
    (train(classes=CLASSES[:11]), 'as many classes as images: .* has 12 images and 11 classes'),
    (train(classes=CLASSES + 1), 'of labels, 2: .* train has class 2 at position 6: give ind'),
    (train(classes=np.eye(2)[CLASSES]), r'one per example: .*float64 and shape \(12, 2\)'),
    (train(classes=['dark'] * 12), 'or the indices of names in labels'),
    (train(classes=CLASSES * 0), 'no training images: light: add images of this class'),
    (train(images=IMAGES[:0], classes=[]), 'a split of the data set has no examples'),
    (DATA._replace(train=ImageSplit('a.jpeg', [0])), "must be a list: .*'a.jpeg'"),
    (DATA._replace(train=ImageSplit(['a.jpeg'], [0, 1])), '1 images and 2 classes'),
    (lambda: 1 / 0, r'the function of --dataset failed: .*test_own_dataset.py:\d+: ZeroDivision'),
    (lambda first, second: DATA, 'wrong parameters: .*: define it without parameters or with .se'),
])
def test_wrong(describe, data, message):
  with pytest.raises(UserError, match=message) as caught:
    describe(data)
  assert '\n' not in str(caught.value)


def test_files(describe):
  """Paths and booleans become what the other data sets have."""
  files = ImageSplit([Path('a.png'), Path('b.png')], [True, False])
  idx = IdxSplit('images.gz', 'labels.gz')
  dataset = describe(DATA._replace(train=files, test=idx))
  assert dataset.train.files == [b'a.png', b'b.png'] and dataset.test == idx
  assert dataset.train.classes.tolist() == [1, 0] and dataset.train.classes.dtype == np.int32
