"""Which images are listed, and of which class; and every way in which that fails."""

import os

import numpy as np
import pytest
from conftest import write_records

from estimator_train.datasets import image_folder
from estimator_train.errors import UserError
from estimator_train.run_dir.run_files import RunDir
from estimator_train.settings import Settings


@pytest.fixture
def folders(tmp_path):
  for name in ('train/B/1.jpeg', 'train/B/2.jpeg', 'train/A/x/C/3.jpeg', 'train/A/4.jpeg',
               'test/A/5.jpeg', 'test/B/6.jpeg', 'test/C/7.jpeg', 'test/D/8.jpeg'):
    write(tmp_path, name)
  return tmp_path


def write(folder, name, content=b''):
  path = os.path.join(bytes(folder), os.fsencode(name))
  os.makedirs(os.path.dirname(path), exist_ok=True)
  with open(path, 'wb') as file:
    file.write(content)


def describe(folders, train='train/**/*.jpeg', test='test/[ABC]/*.jpeg', **given):
  given.setdefault('mode', 'train_and_evaluate')
  return image_folder.describe(Settings(
      dataset='image_folder', train_pattern=train and str(folders / train),
      eval_pattern=test and str(folders / test), train_steps=1,
      **dict({'model_dir': str(folders / 'model')}, **given)))


def test_describe(folders):
  found = describe(folders)
  assert found.labels == ('A', 'B', 'C') and found.image_shape == (224, 224, 3)
  names = [path.decode().rpartition('/')[2] for path in found.train.files]
  assert names == ['4.jpeg', '3.jpeg', '1.jpeg', '2.jpeg']
  assert found.train.classes.tolist() == [0, 2, 1, 1] and found.train.classes.dtype == np.int32
  assert found.test.classes.tolist() == [0, 1, 2]
  assert image_folder.class_counts(found.train, 3) == [1, 2, 1]
  assert describe(folders, test=None, mode='train').test is None


def test_given_and_recorded_labels_are_in_their_order(folders):
  found = describe(folders, labels=('C', 'B', 'A'), image_size=(32, 48))
  assert found.labels == ('C', 'B', 'A') and found.image_shape == (32, 48, 3)
  assert found.train.classes.tolist() == [2, 0, 1, 1]
  write(folders, 'model/labels.txt', b'C\nB\nA\n')
  found = describe(folders, train=None, mode='evaluate')
  assert found.labels == ('C', 'B', 'A') and found.train is None
  assert found.test.classes.tolist() == [2, 1, 0]


@pytest.mark.parametrize('given, message', [
    ({'train': 'none/*.jpeg'}, '--train_pattern matches no file: --train_pattern=.*/none/'),
    ({'test': 'test/*.png'}, '--eval_pattern matches no file: --eval_pattern=.*/test/'),
    ({'train': None}, '--train_pattern is required for this data set and mode'),
    ({'test': None}, '--eval_pattern is required for this data set and mode'),
    ({'test': 'test/**/*.jpeg'},
     'the folder of a file is not a class name: .*/test/D/8.jpeg .class names: A, B, C.: '
     '.*add D to --labels'),
    ({'labels': ('A', 'B')}, 'not a class name: .*/x/C/3.jpeg .class names: A, B.'),
    ({'labels': ('A', 'B', 'C', 'E')}, 'a class has no training images: E: '),
    ({'train': 'train/B/*'},
     'at least two classes, one folder each: --train_pattern=.* .classes: B.: '),
])
def test_what_cannot_be(folders, given, message):
  with pytest.raises(UserError, match=message):
    describe(folders, **given)


def test_tfrecords_are_recognized(tmp_path):
  write_records(tmp_path / 'train' / 'images-00000-of-00001', [b'any'])
  with pytest.raises(UserError, match=r'--train_pattern must match image files: .*images-00000-of-'
                     r'00001 is a TFRecord file: give --dataset=tfrecord'):
    describe(tmp_path, train='train/images-*')


def test_odd_names(folders):
  """Any name is a class, unless it breaks the line; and is told in one."""
  for name in (b'train/\xff "\'/x.jpeg', 'train/é/x.jpeg', 'test/D/a  b\n\x1b[2J.jpeg'):
    write(folders, name)
  assert describe(folders).labels == ('A', 'B', 'C', '\\xff "\'', 'é')
  os.remove(str(folders / 'test' / 'D' / '8.jpeg'))
  with pytest.raises(UserError) as caught:
    describe(folders, test='test/**/*.jpeg')
  assert 'a  b\\n\\x1b[2J.jpeg' in str(caught.value)
  for name in ('a\rb', 'a\n', 'a\u2028b', 'a\x0cb'):
    write(folders, 'train/{}/x.jpeg'.format(name))
    with pytest.raises(UserError,
                       match='name must not have a line break: .*: rename the folder') as caught:
      describe(folders)
    assert len(str(caught.value).splitlines()) == 1
    os.remove(str(folders / 'train' / name / 'x.jpeg'))


@pytest.mark.parametrize('name, read', [('labels.txt', RunDir.class_names),
                                        ('flags.txt', RunDir.flags)])
def test_a_damaged_file_of_the_run(folders, name, read):
  write(folders, 'model/' + name, b'\xff\n')
  with pytest.raises(UserError, match='is damaged: .*/model/{} .*: give'.format(name)):
    read(RunDir(str(folders / 'model')))
