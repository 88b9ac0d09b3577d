"""What lies beside the files of a pattern: warnings and errors, which name what there is."""

import os

import pytest

from estimator_train.datasets import image_folder, record_files, tfrecord
from estimator_train.datasets.record_index import frame
from estimator_train.errors import UserError
from estimator_train.inputs import unlabelled
from estimator_train.settings import Settings


@pytest.fixture(autouse=True)
def in_folder(tmp_path, monkeypatch):
  monkeypatch.chdir(str(tmp_path))


def make_files(*paths, content=b''):
  for path in paths:
    os.makedirs(os.path.dirname(path) or '.', exist_ok=True)
    with open(path, 'wb') as file:
      file.write(content)


def describe_images(pattern, **given):
  return image_folder.describe(Settings(dataset='image_folder', mode='train', train_steps=1,
                                        model_dir='model', train_pattern=pattern, **given))


CLASSES = ('t/cat/1.jpg', 't/cat/2.jpg', 't/dog/1.jpg')
NESTED = ('t/cat/2019/1.jpg', 't/dog/2019/1.jpg', 't/cat/2020/1.jpg')


@pytest.mark.parametrize('paths, pattern, warnings', [
    ((), 't/*/*.jpg', []),
    (('t/cover.jpg',), 't/*/*.jpg', []),
    (('t/cat/labels.txt', 't/cat/.x.png', 't/meta/a.xml', 't/.git/x.png'), 't/**/*.jpg', []),
    (('t/cat/3.JPG', 't/cat/4.png', 't/dog/5.JPG'), 't/**/*.jpg',
     ['--train_pattern leaves out 3 images in the folders that it searches: 2 .JPG, 1 .png']),
    (('t/dog/x2.jpg',), 't/*/[12].jpg', []),  # Left out by its name.
    (('t/fox/1.JPEG', 't/owl/'), 't/*/*.jpg',
     ['leaves out 1 images in the folders that it searches: 1 .JPEG',
      '--train_pattern matches no image in 2 folder(s): t/fox, t/owl']),
    (('t/fox/2019/1.jpg',), 't/*/*.jpg', ['matches no image in 1 folder(s): t/fox']),
    (('t/cat/thumbs/1.jpg',), 't/**/*.jpg',
     ['class folders are at different depths, such as t/cat and t/cat/thumbs: the class of an']),
    (('t/wild/fox/1.jpg',), './t/**/*.jpg',
     ['class folders are at different depths, such as ./t/cat and ./t/wild/fox: the class']),
    (NESTED, 't/*/*/*.jpg', ['1 class name(s) are of several folders, such as t/cat/2019 and '
                             't/dog/2019: the class of an image is the name of its own folder']),
])
def test_warnings_about_image_folders(paths, pattern, warnings, caplog):
  make_files(*CLASSES, *(path for path in paths if not path.endswith('/')))
  for path in paths:
    os.makedirs(os.path.dirname(path), exist_ok=True)
  describe_images(pattern)
  assert len(caplog.records) == len(warnings), caplog.text
  for record, warning in zip(caplog.records, warnings):
    assert warning in record.getMessage()


def test_given_class_names_state_the_structure(caplog):
  make_files(*CLASSES, *NESTED, 't/fox.jpg')
  describe_images('t/**/*.jpg', labels=('cat', 'dog', '2019', '2020', 't'))
  assert not caplog.records


@pytest.mark.parametrize('pattern', ['t/**/*.jpg', './t/**/*.jpg', 't//**/*.jpg', 't/**/?*.jpg'])
def test_images_next_to_the_class_folders(pattern):
  make_files(*CLASSES, 't/cover.jpg')
  with pytest.raises(UserError, match='images must not be next to the class folders: '
                     '--train_pattern=.* matches 1 image.s. in .*t: give a pattern that excludes'):
    describe_images(pattern)


@pytest.mark.parametrize('paths, pattern, message', [
    (('t/cat/1.JPG', 't/cat/x.txt'), 't/**/*.jpg',
     r"\(t has 1 .JPG, x.txt\): give a pattern such as 't/\*\*/\*.JPG', in quotes"),
    (('t/cat/1.JPG', 't/cat/1.jpg'), 't/**/*.{jpg,JPG}', r"'t/\*\*/\*.\[jJ\]\[pP\]\[gG\]'"),
    (('t/cat/1.png', 't/cat/1.gif', 't/2.gif'), 't', r"\(t has 2 .gif, 1 .png\): .*/\*.gif'"),
    (('t/.hidden/1.png',), 't/*/*.jpg', r"\(t has no files\): give .* 'DATA/train/\*\*/\*.jpeg'"),
    ((), 'none/x/*.jpg', r'\(there is no none\): correct'),
    (('t/cat/1.jpg',), 't/none/*.jpg', r'\(there is no t/none\)'),
    (('[1]/[x]/1.jpg', '1/y'), '[1]/[x]/*.jpg', "give '\\[\\[\\]1\\]/\\[\\[\\]x\\]/\\*.jpg': brac"),
])
def test_no_match_names_what_there_is(paths, pattern, message):
  make_files(*paths)
  with pytest.raises(UserError, match='--train_pattern matches no file: --train_pattern=.*'
                     + message):
    describe_images(pattern)
  with pytest.raises(UserError, match='--input matches no file: --input='):
    unlabelled.find_input_files(pattern)


def test_files_are_searched_before_class_names():
  make_files('r/train-00000-of-00001')
  with pytest.raises(UserError, match=r'a pattern matches no file: --train_pattern=r/tpyo-\* \(r '
                     r"has train-00000-of-00001\): give a pattern such as 'DATA/train-"):
    tfrecord.describe(Settings(dataset='tfrecord', mode='train', train_steps=1, model_dir='model',
                               train_pattern='r/tpyo-*'))


@pytest.mark.parametrize('module, dataset, content, pattern', [
    (image_folder, 'image_folder', b'', 'DATA/test/'),
    (tfrecord, 'tfrecord', frame(b''), 'DATA/validation-')])
def test_a_missing_eval_pattern(module, dataset, content, pattern):
  make_files('t/a/1', 't/b/1', content=content)
  with pytest.raises(UserError, match="--eval_pattern='{}.*, or --mode=train".format(pattern)):
    module.describe(Settings(dataset=dataset, train_steps=1, model_dir='model', labels=('a', 'b'),
                             train_pattern='t/*/1'))


def shards(total, *indices, suffix='', name='r/train'):
  return ['{}-{:05d}-of-{:05d}{}'.format(name, index, total, suffix)
          for index in indices or range(total)]


def load(pattern):
  return record_files.load_index(pattern, '--train_pattern=' + pattern, 'none', Settings())


@pytest.mark.parametrize('paths, pattern, warnings', [
    (shards(4), 'r/*', []),
    (shards(4), 'r/train-0000[01]*', []),  # A part of the shards, by intention.
    (shards(4) + shards(4, name='other/train'), '*/train-*', ['2 sets']),
    (shards(4, 0, 3), 'r/*', ['2 of 4 shards are missing: r/train-00001-of-00004, r/train-00002']),
    (shards(2, suffix='.gz', name='r/a.b') + shards(2, name='r/c'), 'r/*',
     ['a pattern matches 2 sets of shards: r/a.b-*-of-00002.gz, r/c-*-of-00002']),
    (shards(4) + shards(5, 4), 'r/*', ['4 of 5 shards are missing', '2 sets of shards: r/train']),
    (['r/train.tfrecord', 'r/b'], 'r/*', []),
])
def test_warnings_about_shards(paths, pattern, warnings, caplog):
  make_files(*paths, content=frame(b'any'))
  assert load(pattern).num_records
  assert len(caplog.records) == len(warnings), caplog.text
  for record, warning in zip(caplog.records, warnings):
    assert warning in record.getMessage()


@pytest.mark.parametrize('second', [shards(2), shards(4, suffix='.gz')])
def test_shards_that_are_there_twice(second):
  make_files(*shards(4), *second, content=frame(b'any'))
  with pytest.raises(UserError, match=r'a pattern matches the same shards twice: --train_pattern='
                     r'r/\* \(r/train-\*-of-0000.* and r/train-\*-of-0000.*\): give the pattern'):
    load('r/*')
