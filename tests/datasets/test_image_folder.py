"""Which images are listed, and of which class; and every way in which that fails."""

import os

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from estimator_train.datasets import image_folder
from estimator_train.errors import UserError
from estimator_train.run_dir.run_files import RunDir
from estimator_train.settings import Settings


@pytest.fixture
def folders(tmp_path):
  for name in ('train/B/1.jpeg', 'train/B/2.jpeg', 'train/A/x/C/3.jpeg', 'train/A/4.jpeg',
               'test/A/5.jpeg', 'test/B/6.jpeg', 'test/C/7.jpeg', 'test/D/8.jpeg'):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text('')
  return tmp_path


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


def test_given_labels_are_in_their_order(folders):
  found = describe(folders, labels=('C', 'B', 'A'), image_size=(32, 48))
  assert found.labels == ('C', 'B', 'A') and found.image_shape == (32, 48, 3)
  assert found.train.classes.tolist() == [2, 0, 1, 1]


def test_evaluation_takes_the_recorded_labels(folders):
  (folders / 'model').mkdir()
  (folders / 'model' / 'labels.txt').write_text('C\nB\nA\n')
  found = describe(folders, train=None, mode='evaluate')
  assert found.labels == ('C', 'B', 'A') and found.train is None
  assert found.test.classes.tolist() == [2, 1, 0]


def test_training_alone_needs_no_test_images(folders):
  assert describe(folders, test=None, mode='train').test is None


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
  path = tmp_path / 'train' / 'images-00000-of-00001'
  path.parent.mkdir()
  with tf.io.TFRecordWriter(str(path)) as writer:
    writer.write(b'any')
  with pytest.raises(UserError, match=r'--train_pattern must match image files: .*images-00000-of-'
                     r'00001 is a TFRecord file: give --dataset=tfrecord'):
    image_folder.describe(Settings(
        dataset='image_folder', model_dir='x', train_steps=1,
        train_pattern=str(tmp_path / 'train' / 'images-*')))


def test_a_class_by_an_odd_name(folders):
  for name in (b'train/\xff "\'', 'train/é'.encode()):
    path = str(folders).encode() + b'/' + name
    os.makedirs(path)
    with open(path + b'/x.jpeg', 'wb'):
      pass
  assert describe(folders).labels == ('A', 'B', 'C', '\\xff "\'', 'é')
  (folders / 'train' / 'line\nbreak').mkdir()
  (folders / 'train' / 'line\nbreak' / 'x.jpeg').write_text('')
  with pytest.raises(UserError, match='name must not have a line break: .*line.*break'):
    describe(folders)


@pytest.mark.parametrize('name', ['a\rb', 'a\n', 'a\u2028b', 'a\x0cb'])
def test_a_class_whose_name_breaks_the_line(folders, name):
  (folders / 'train' / name).mkdir()
  (folders / 'train' / name / 'x.jpeg').write_text('')
  with pytest.raises(UserError,
                     match='name must not have a line break: .*: rename the folder') as caught:
    describe(folders)
  assert len(str(caught.value).splitlines()) == 1


def test_an_odd_name_of_a_file_is_told_in_one_line(folders):
  (folders / 'test' / 'D' / '8.jpeg').rename(folders / 'test' / 'D' / 'a  b\n\x1b[2J.jpeg')
  with pytest.raises(UserError) as caught:
    describe(folders, test='test/**/*.jpeg')
  assert 'a  b\\n\\x1b[2J.jpeg' in str(caught.value)


@pytest.mark.parametrize('name', ['labels.txt', 'flags.txt'])
def test_a_damaged_file_of_the_run(folders, name):
  (folders / 'model').mkdir()
  (folders / 'model' / name).write_bytes(b'\xff\n')
  with pytest.raises(UserError, match='is damaged: .*/model/{} .*: give'.format(name)):
    RunDir(str(folders / 'model')).flags()
    RunDir(str(folders / 'model')).class_names()
