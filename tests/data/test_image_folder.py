"""Which images are listed, and of which class; what is named when a pattern matches another set."""

import os
from types import SimpleNamespace

import numpy as np
import pytest

from estimator_train.data import (
  datasets,
  file_pattern,
  image_folder,
  labels_file,
  opening,
  tfrecord,
)
from estimator_train.errors import UserError
from estimator_train.modes.predict import images
from estimator_train.run_dir import RunDir
from estimator_train.settings import Settings
from estimator_train.system.record_framing import frame_record

NFC, NFD = 'caf\u00e9', 'cafe\u0301'


@pytest.fixture(autouse=True)
def in_folder(tmp_path, monkeypatch):
  monkeypatch.chdir(str(tmp_path))


def make_files(*paths, content=b''):
  """Writes files, and folders whose paths end with a slash."""
  for path in map(os.fsencode, paths):
    os.makedirs(os.path.dirname(path) or b'.', exist_ok=True)
    if not path.endswith(b'/'):
      with open(path, 'wb') as file:
        file.write(content)


def assert_logged(caplog, warnings):
  messages = [record.getMessage() for record in caplog.records]
  assert len(messages) == len(warnings), messages
  assert all(warning in message for warning, message in zip(warnings, messages)), messages


def describe(train, test=None, module=image_folder, **given):
  return module.describe_data_set(Settings(**dict(
      {'dataset': module.__name__.rpartition('.')[2], 'model_dir': 'model', 'train_steps': 1,
       'train_pattern': train, 'eval_pattern': test,
       'mode': 'train_and_evaluate' if test else 'train'}, **given)),
                                  RunDir('model').read_class_names())


TRAIN, TEST = 'train/**/*.jpeg', 'test/[ABC]/*.jpeg'


@pytest.fixture
def folders():
  make_files('train/B/1.jpeg', 'train/B/2.jpeg', 'train/A/x/C/3.jpeg', 'train/A/4.jpeg',
             'test/A/5.jpeg', 'test/B/6.jpeg', 'test/C/7.jpeg', 'test/D/8.jpeg')


def test_describe(folders):
  found = describe(TRAIN, TEST)
  assert found.labels == ('A', 'B', 'C') and found.image_shape == (224, 224, 3)
  assert found.train.files == [b'train/A/4.jpeg', b'train/A/x/C/3.jpeg', b'train/B/1.jpeg',
                               b'train/B/2.jpeg']
  assert found.train.classes.tolist() == [0, 2, 1, 1] and found.train.classes.dtype == np.int32
  assert found.test.classes.tolist() == [0, 1, 2]
  found = describe(TRAIN, image_size=(32, 48))
  assert found.test is None and found.image_shape == (32, 48, 3)
  make_files('model/labels.txt', content=b'C\nB\nA\n')
  found = describe(None, TEST, mode='evaluate')
  assert found.labels == ('C', 'B', 'A') and found.test.classes.tolist() == [2, 1, 0]


CLASSES = ('t/cat/1.jpg', 't/cat/2.jpg', 't/dog/1.jpg')
NESTED = ('t/cat/2019/1.jpg', 't/dog/2019/1.jpg', 't/cat/2020/1.jpg')
NO_MATCH = '--train_pattern matches no file: --train_pattern=.*'
NEXT_TO = 'images must not be next to the class folders: .* matches 1 image.s. in .*t: give a pat'


def shards(total, *indices, suffix=''):
  return ['r/train-{:05d}-of-{:05d}{}'.format(index, total, suffix)
          for index in indices or range(total)]


@pytest.mark.parametrize('paths, patterns, given, message', [
    ((), (TRAIN, 'test/*.png'), {}, '--eval_pattern matches no file: --eval_pattern=test/'),
    ((), (None, TEST), {}, '--train_pattern is required for this data set and mode'),
    ((), (TRAIN, None), {'mode': 'train_and_evaluate'}, '--eval_pattern is required for this data '
     "set .*: give a pattern such as --eval_pattern='DATA/test/.*, or --mode=train"),
    ((), (TRAIN, 'test/**/*.jpeg'), {}, 'the folder of a file is not a class name: test/D/8.jpeg '
     '.class names: A, B, C.: .*add D to --labels'),
    ((), (TRAIN, TEST), {'labels': ('A', 'B')},
     'not a class name: .*/x/C/3.jpeg .class names: A, B.'),
    ((), (TRAIN,), {'labels': ('A', 'B', 'C', 'E')}, 'a class has no training images: E: '),
    ((), ('train/B/*',), {},
     'at least two classes, one folder each: --train_pattern=.* .classes: B.'),
    ((), ('records/*',), {}, r'--train_pattern must match image files: records/images-0 is a '
     'TFRecord file: give --dataset=tfrecord'),
    # What there is.
    (('t/cat/1.JPG', 't/cat/x.txt'), ('t/**/*.jpg',), {},
     NO_MATCH + r"\(t has 1 .JPG, x.txt\): give a pattern such as 't/\*\*/\*.JPG', in quotes"),
    (('t/cat/1.JPG', 't/cat/2.jpg', 't/1.png'), ('t/*.gif',), {},
     NO_MATCH + r"\(t has 1 .png, 1 .JPG, 1 .jpg\): give a pattern such as 't/\*\*/\*.png'"),
    (('t/.hidden/1.png',), ('t/*/*.jpg',), {},
     NO_MATCH + r"\(t has no files\): give .* 'DATA/train/\*\*/\*.jpeg'"),
    (('[1]/[x]/1.jpg', '1/y'), ('[1]/[x]/*.jpg',), {},
     NO_MATCH + "give '\\[\\[\\]1\\]/\\[\\[\\]x\\]/\\*.jpg': br"),
    ((*CLASSES, *NESTED, 't/cover.jpg'), ('t/**/*.jpg',), {}, NEXT_TO),
    ((*CLASSES, *NESTED, 't/cover.jpg'), ('./t//**/?*.jpg',), {}, NEXT_TO),
    ((*shards(4), *shards(2, suffix='.gz'), *shards(4, suffix='.gz'), *shards(2)), ('r/*4*',),
     {'module': tfrecord}, r'a pattern matches the same shards twice: .*\(r/train-\*-of-0000.* '
     r'and r/train-\*-of-0000.*\): give the pattern'),
    # Before the class names, which are missing too.
    (shards(4), ('r/tpyo-*',), {'module': tfrecord}, r'matches no file: --train_pattern=r/tpyo-\* '
     r"\(r has .*train-00000-of-.*\): give a pattern such as 'DATA/train-"),
    ((), ('records/*',), {'mode': 'train_and_evaluate', 'labels': ('A', 'B'), 'module': tfrecord},
     "--eval_pattern='DATA/validation-.*, or --mode=train")])
def test_what_cannot_be(folders, paths, patterns, given, message):
  make_files(*paths)
  make_files('records/images-0', content=frame_record(b'any'))
  with pytest.raises(UserError, match=message):
    describe(*patterns, **given)


def test_folders_and_several_patterns(folders, caplog):
  make_files('new/B/9.JPG', 'new/A/8.Jfif', 'new/A/7.PNG', 'new/A/.x.png', 'new/A/notes.txt')
  assert describe('new').train.files == [b'new/A/7.PNG', b'new/A/8.Jfif', b'new/B/9.JPG']
  assert not caplog.records
  found = describe('train/**/4.jpeg,new/,train/B,new/A/*')
  assert found.train.files == [b'train/A/4.jpeg', b'new/A/7.PNG', b'new/A/8.Jfif', b'new/B/9.JPG',
                               b'train/B/1.jpeg', b'train/B/2.jpeg', b'new/A/notes.txt']
  assert found.train.classes.tolist() == [0, 0, 0, 1, 1, 1, 0]
  make_files('new/A/6.webp')
  caplog.clear()
  describe('new,train/*/*.jpeg')
  assert_logged(caplog, ['leaves out 1 images in the folders that it searches: 1 .webp'])
  with pytest.raises(UserError, match='--train_pattern=nowhere .there is no nowhere.: give the pa'):
    describe('new,nowhere')
  with pytest.raises(UserError, match='there is no trian.: did you mean train[?] give the path'):
    describe('new,trian')
  make_files('x,y/A/1.png', 'x,y/B/1.png', 'x,y/A/2,3.png')  # Commas in names.
  for pattern, count in (('x,y', 3), ('x,y/*/*.png', 3), ('x,y/*/?.png', 2)):
    assert len(describe(pattern).train.files) == count
  for patterns, files in (('x,y/A/2,3.png', [b'x,y/A/2,3.png']),
                          ('x,y', describe('x,y').train.files),
                          ('new/B,train/B/1*', [b'new/B/9.JPG', b'train/B/1.jpeg'])):
    assert list(images.find_files(file_pattern.split_patterns(patterns))) == files


def describe_split(folder, recorded=None, **given):
  return datasets.describe_data_set(Settings(**dict(
      {'dataset': 'image_folder', 'train_pattern': folder, 'validation_fraction': .25,
       'model_dir': 'model', 'mode': 'train', 'train_steps': 1}, **given)), (), recorded)


def test_validation_fraction(tmp_path):
  """Each class gives its part; no file changes sides if others are added or the folder moves."""
  def split(folder, **given):
    found = describe_split(folder, mode='train_and_evaluate', **given)
    return found.train, found.test

  names = ['{}/{}.png'.format(label, index) for label, count in (('A', 400), ('B', 40), ('C', 2))
           for index in range(count)]
  make_files(*('one/' + name for name in names))
  train, test = split('one')
  assert len(train.files) == len(train.classes) and len(test.files) == len(test.classes)
  assert sorted(train.files + test.files) == sorted(b'one/' + name.encode() for name in names)
  a, b, c = np.bincount(test.classes)
  assert 75 < a < 125 and 4 < b < 17 and c == 1
  make_files(*('two/' + name for name in names),
             *('two/{}/new{}.png'.format(label, index) for label in 'ABC' for index in range(50)))
  _, moved = split(str(tmp_path / 'two'))
  for name in names[:440]:  # Of the two of C, one is for validation in any case.
    assert (b'one/%s' % name.encode() in test.files) == (
        bytes(tmp_path / 'two' / name) in moved.files)
  assert split('one', seed=2)[1].files != test.files
  evaluated = describe_split('one', mode='evaluate')
  assert evaluated.train is None and evaluated.test.files == test.files
  alone = describe_split('one')
  assert alone.test is None and alone.train.files == train.files
  with pytest.raises(UserError, match='eval_pattern and validation_fraction exclude each other'):
    describe('one', 'two', validation_fraction=.25)
  with pytest.raises(UserError, match='requires two examples of a class: --validation_fraction=0.25'
                     ' of 2 example'):
    split('one/[AB]/0.png')


@pytest.mark.parametrize('fraction', [.02, .25, .97])
def test_no_image_becomes_one_for_validation(tmp_path, fraction):
  """Of a run, whichever images are added or removed, even in classes with few images."""
  def split(**given):
    found = describe_split('all', mode='train_and_evaluate', validation_fraction=fraction, **given)
    return [set(part.files) for part in (found.train, found.test)] + [found.validation]

  names = ['all/{}/{}.png'.format(label, index) for label, count in (('A', 60), ('B', 3), ('C', 1))
           for index in range(count)]
  make_files(*names)
  train, test, validation = split()
  assert len(train) + len(test) == 64 and split(seed=2)[1] != test
  make_files(*('all/{}/new{}.png'.format(label, index) for label in 'ABC' for index in range(40)))
  for index in range(59, 0, -1):
    (tmp_path / 'all' / 'A' / '{}.png'.format(index)).unlink()
    if index % 20 == 0:
      new_train, new_test, validation = split(recorded=validation, seed=2)
      assert not new_test & train
      train |= new_train
      # If none is left to train on, the program takes one for validation.
      assert len(new_train & test) <= (fraction == .97)
  # Images that the run does not know may be trained images under other names.
  _, before, validation = split(recorded=validation)
  for path in (tmp_path / 'all').glob('*/new*'):
    path.rename(path.with_name('renamed_' + path.name))
  assert split(recorded=validation)[1] == before
  for path in (tmp_path / 'all').glob('*/*'):
    path.rename(path.with_name('again_' + path.name))
  with pytest.raises(UserError, match='the data has none of the validation examples of this run'):
    split(recorded=validation)


def test_odd_names(folders):
  """Any name is a class, unless it contains a line break; messages print it in one line."""
  make_files(b'train/\xff "\'/x.jpeg', 'train/é/x.jpeg', 'other/D/a  b\n\x1b[2J.jpeg')
  assert describe(TRAIN).labels == ('A', 'B', 'C', '\\xff "\'', 'é')
  with pytest.raises(UserError, match=r'a  b\\n\\x1b\[2J.jpeg'):
    describe(TRAIN, 'other/*/*')
  make_files('odd/a\u2028b/x.jpeg')
  with pytest.raises(UserError, match='name must not have a line break: .*: rename the folder'):
    describe('odd/*/*')


def test_unicode_forms_of_folders():
  make_files('train/tea/1.jpg', 'train/{}/1.jpg'.format(NFC), 'test/{}/1.jpg'.format(NFD))
  assert describe('train/*/*', 'test/*/*').test.classes.tolist() == [0]
  make_files('train/{}/2.jpg'.format(NFD))
  with pytest.raises(UserError, match=r"only in their Unicode form: 'cafe\\u0301', 'caf\\xe9'"):
    describe('train/*/*')
  assert describe('train/*/*', labels=('tea', NFD)).train.classes.tolist() == [1, 1, 0]
  with pytest.raises(UserError, match='labels must be different names'):
    Settings(labels=(NFC, NFD))


def names_in(content, **given):
  make_files('labels.txt', content=content)
  return tfrecord.describe_spec(Settings(dataset='tfrecord', train_pattern='*', **given)).labels


def test_labels_file():
  for content, offset in (
      (b'a\nb\n\n \n', 0), (b'\xef\xbb\xbf0:a\r\n1:b\r\n\r\n', 0), (b'1: b\n0: a\n', 0),
      (b'10:a\n11:b\n', -10), (b'10:a\n11:b\n', 0), (b'a\nb\n', -1)):
    assert names_in(content, label_offset=offset) == ('a', 'b'), content
  for names in (('a ', 'a', '\ta'), (' a', '  a'), ('0:a', '1:b'), (' ', 'a')):
    labels_file.write_class_names('.', names)
    assert labels_file.LabelFiles(5, False).read_labels('*') == (names, 0, True)
  assert names_in('10:30\nnoon\n\u00b2:x\n'.encode()) == ('10:30', 'noon', '\u00b2:x')


@pytest.mark.parametrize('content, offset, message', [
    (b'0:a\n2:b\n', 0, 'has 2 lines with labels from 0 to 2: write a line for each label'),
    ('{}\n{}\n'.format(NFC, NFD).encode(), 0, 'a different name in each line'),
    ('a\u2028b\nc\n'.encode(), 0, 'a different name in each line'),
    (b'a\n\nc\n', 0, 'a different name in each line'),
    (b'\xff\xfea\0\n\0', 0, "labels.txt cannot be read: .*codec can't decode .* UTF-8")])
def test_invalid_labels_files(content, offset, message):
  with pytest.raises(UserError, match=message):
    names_in(content, label_offset=offset)


@pytest.mark.parametrize('paths, pattern, warnings', [
    (('t/cat/labels.txt', 't/cat/.x.png', 't/meta/a.xml', 't/.git/x.png'), 't/**/*.jpg', []),
    (('t/cat/3.JPG', 't/cat/4.png', 't/dog/5.JPG'), 't/**/*.jpg',
     ['--train_pattern leaves out 3 images in the folders that it searches: 2 .JPG, 1 .png']),
    (('t/cover.jpg', 't/dog/x2.jpg'), 't/*/[12].jpg', []),  # Left out by its name.
    (('t/fox/1.JPEG', 't/owl/'), 't/*/*.jpg',
     ['leaves out 1 images in the folders that it searches: 1 .JPEG',
      '--train_pattern matches no image in 2 folder(s): t/fox, t/owl']),
    (('t/wild/fox/1.jpg',), './t/**/*.jpg',
     ['class folders are at different depths, such as ./t/cat and ./t/wild/fox: the class']),
    (NESTED, 't/*/*/*.jpg', ['1 class name(s) are of several folders, such as t/cat/2019 and '
                             't/dog/2019: the class of an image is the name of its own folder']),
    (shards(4), 'r/train-0000[01]*', []),  # A part, by intention.
    (shards(4) + shards(5, 4), 'r/*', ['4 of 5 shards are missing', '2 sets of shards: r/train']),
    (['r/train.tfrecord', 'r/b'], 'r/*', [])])
def test_warnings(paths, pattern, warnings, caplog):
  if pattern.startswith('r/'):
    make_files(*paths, content=frame_record(b'any'))
    describe(pattern, module=tfrecord, labels=('a', 'b'))
  else:
    make_files(*CLASSES, *paths)
    describe(pattern)
  assert_logged(caplog, warnings)


def test_images_next_to_the_class_folders(caplog):
  make_files(*CLASSES, *NESTED, 't/cover.jpg')
  describe('t/**/*.jpg', labels=('cat', 'dog', '2019', '2020', 't'))  # The user knows them.
  assert not caplog.records


@pytest.mark.parametrize('counts, expected', [
    ([3, 3], 'A 3, B 3'),
    ([4, 3], 'A 4, B 3; the largest class has 1.33 times as many as the smallest'),
    ([6, 3], 'A 6, B 3; the largest class has 2 times as many as the smallest '
     '(--class_weights=balanced compensates for that)')])
def test_the_log_of_the_numbers_of_images(counts, expected, caplog):
  caplog.set_level('INFO', 'estimator_train')
  opening._log_class_counts(SimpleNamespace(
      count_examples_by_class=lambda: counts, spec=SimpleNamespace(labels=('A', 'B'))), Settings())
  assert caplog.messages == ['{} training images: {}'.format(sum(counts), expected)]
