"""--dataset=FOLDER: its splits and classes, its defaults, and what cannot be trained on."""

import os

import pytest

from estimator_train.data import datasets
from estimator_train.errors import UserError
from estimator_train.settings import Settings, command_line, to_arguments, to_flagfile
from estimator_train.system.record_framing import frame_record

TREE = ('two/train/a/1.jpg', 'two/train/b/1.jpg', 'two/train/b/2.PNG', 'two/val/b/1.jpg',
        'two/test/a/9.jpg', 'two/raw/', 'two/.hidden/x/1.jpg',
        'one/a/1.jpg', 'one/a/.2.jpg', 'one/b/1.jpg', 'one/b/2.jpg', 'one/__MACOSX/a/._1.jpg')


@pytest.fixture(autouse=True)
def in_folder(tmp_path, monkeypatch):
  monkeypatch.chdir(str(tmp_path))


def make_files(*paths, content=b''):
  """Writes files, and folders whose paths end with a slash."""
  for path in paths:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if not path.endswith('/'):
      with open(path, 'wb') as file:
        file.write(content)


def parse(dataset, *arguments):
  return command_line.parse(['--dataset=' + dataset, '--model_dir=run', *arguments])


def patterns_of(dataset, *arguments):
  data = parse(dataset, *arguments).data
  return data.train_pattern, data.eval_pattern, data.validation_fraction


def describe(dataset, *arguments):
  return datasets.describe_data_set(parse(dataset, *arguments))


def test_splits(caplog):
  make_files(*TREE)
  for dataset in ('two', './two', os.path.abspath('two/')):
    found = describe(dataset)
    assert found.labels == ('a', 'b') and found.image_shape == (64, 64, 3)
    assert (len(found.train.files), len(found.test.files)) == (3, 1)
    assert (found.train.classes.tolist(), found.test.classes.tolist()) == ([0, 1, 1], [1])
  assert patterns_of('two') == patterns_of('two', '--mode=audit') == (
      './two/train', './two/val', None)
  for dataset, split in (('one', './one'), ('two/train', 'two/train')):
    assert patterns_of(dataset) == (split, None, .2)
    assert patterns_of(dataset, '--validation_fraction=.4') == (split, None, .4)
    assert patterns_of(dataset, '--eval_pattern=x') == (split, 'x', None)
    # The other modes read all images.
    for mode in ('train', 'audit', 'input_benchmark'):
      assert patterns_of(dataset, '--mode=' + mode) == (split, None, None)
  found = describe('one', '--validation_fraction=.5')
  assert found.labels == ('a', 'b') and (len(found.train.files), len(found.test.files)) == (2, 1)
  assert not caplog.records


@pytest.mark.parametrize('paths, train, evaluation', [
    (('d/Training/a/1.jpg', 'd/Training/b/1.jpg', 'd/Testing/a/1.jpg'), 'Training', 'Testing'),
    (('d/train/a/1.jpg', 'd/train/b/1.jpg', 'd/validation/a/1.jpg', 'd/test/a/1.jpg'),
     'train', 'validation'),
    # As archives are often unpacked.
    (('d/LICENSE.txt', 'd/x/train/a/1.jpg', 'd/x/train/b/1.jpg', 'd/x/valid/a/1.jpg',
      'd/__MACOSX/x/._y'), 'x/train', 'x/valid'),
    # A class whose name is that of a split.
    (('d/train/1.jpg', 'd/bus/1.jpg', 'd/bus/2.jpg'), '', None),
    (('d/x,y [z]/é/1.jpg', 'd/x,y [z]/猫 1/1.jpg', 'd/x,y [z]/猫 1/2.jpg'), 'x,y [z]', None)])
def test_names_of_splits(paths, train, evaluation):
  make_files(*paths)
  assert patterns_of('d') == (os.path.join('./d', train).rstrip('/'), evaluation and os.path.join(
      './d', evaluation), None if evaluation else .2)
  assert len(describe('d').labels) == 2


def test_the_class_of_an_image_in_nested_folders():
  make_files(*('n/{}/{}/{}.jpg'.format(label, year, index) for label in ('cat', 'dog')
               for year in ('2019', '2020') for index in range(8)), 'n/cat/0.jpg')
  os.symlink('../n/dog', 'n/fox')
  found = describe('n')
  assert found.labels == ('cat', 'dog', 'fox') and len(found.train.files + found.test.files) == 49
  for split in (found.train, found.test):
    assert [found.labels[index].encode() for index in split.classes] == [
        path.split(b'/')[2] for path in split.files]
  # Images of two classes have the same folder and name, and are chosen one by one.
  chosen = {label: {path[-10:] for path in found.test.files if b'/%s/20' % label in path}
            for label in (b'cat', b'dog')}
  assert chosen[b'cat'] and chosen[b'dog'] and chosen[b'cat'] != chosen[b'dog']
  again = datasets.describe_data_set(parse('n'), (), found.validation)
  assert again.test.files == found.test.files


def test_records():
  record = frame_record(b'')
  make_files('r/train-00000-of-00001', 'r/validation-00000-of-00001', 'r/val.txt', content=record)
  make_files('r/labels.txt', content=b'a\nb\n')
  found = describe('r')
  assert found.labels == ('a', 'b') and found.image_shape == (64, 64, 3)
  assert patterns_of('r') == ('./r/train-*', './r/validation-*', None)
  make_files('s/train/1.tfrecord', 's/train/2.tfrecord', 's/test/1.tfrecord', content=record)
  assert [len(split.records.lengths) for split in describe('s', '--labels=a,b')[3:5]] == [2, 1]
  make_files('t/x.tfrecord', 't/y.tfrecord', content=2 * record)
  assert len(describe('t', '--labels=a,b').test.records.original_paths) == 2
  with pytest.raises(UserError, match='=published does not support --validation_fraction of TFR'):
    describe('t', '--labels=a,b', '--input_pipeline=published')


NO_FOLDER = '^there is no such folder: --dataset='


@pytest.mark.parametrize('paths, dataset, message', [
    ((), 'd/x', NO_FOLDER + 'd/x; this folder has no folders: '),
    (('d/fotos/',), 'd/photos', NO_FOLDER + 'd/photos; d has fotos: '),
    (('./d.zip',), 'd.zip', NO_FOLDER + './d.zip is a file: unpack it, and give'),
    (('d/',), 'd', 'needs images or TFRecord files: --dataset=./d: ./d has no visible files: put'),
    (('d/x.zip',), 'd', 'needs images or TFRecord files: .* ./d has x.zip: unpack x.zip'),
    (('d/cat/1.jpg',), 'd', r'at least two classes, .*: --dataset=./d \(classes: cat\): add the f'),
    (('d/cat/1.jpg',), 'd/cat', 'in the folder of its class: .* d/cat has 1 image.*: .* one class'),
    (('d/1.jpg', 'd/a/1.jpg', 'd/b/1.jpg'), 'd', 'each image .* ./d has 1 image.s., such as 1.jpg'),
    (('d/train/1.jpg', 'd/val/2.jpg'), 'd', './d/train has 1 image.* such as ./d/train/cat'),
    (('d/train/a/1.jpg', 'd/train/b/1.jpg', 'd/val/fox/1.jpg'), 'd',
     'not a class name: ./d/val/fox/1.jpg .class names: a, b.: add training images of fox [(]and'),
    (('d/test/a/1.jpg', 'd/test/b/1.jpg'), 'd', 'no training examples: .* has ./d/test, but no tr'),
    (('d/a/1.jpg', 'd/b/1.jpg', 'd/b/x.tfrecord'), 'd', 'images or TFRecord files, not both: .* '
     'has ./d/a/1.jpg and ./d/b/x.tfrecord: '),
    (('d/a/1.webp', 'd/b/1.webp'), 'd', 'needs JPEG, .* ./d has 2 .webp: convert'),
    (('d/a/x.csv.txt', 'd/b/'), 'd', 'needs JPEG, PNG or GIF images, .* ./d has x.csv.txt: '),
    ((), 'C:\\photos', 'must not be a path of Windows: .*: give .* such as /mnt/c/photos'),
    ((), 'C:/photos', NO_FOLDER + 'C:/photos: give .* such as /mnt/c/photos'),
    ((), 'mnits',
     'no such choice: --dataset=mnits: did you mean mnist.*, or the path of an existing folder'),
    (('mnist/a/1.jpg', 'mnist/b/1.jpg'), 'mnist', '^training requires --train_steps')])
def test_what_cannot_be_trained_on(paths, dataset, message):
  make_files(*paths)
  with pytest.raises(UserError, match=message):
    describe(dataset)


def test_links_and_names_of_built_in_data_sets():
  make_files('mnist/a/1.jpg', 'mnist/a/2.jpg', 'mnist/b/1.jpg')
  os.symlink('mnist', 'link')
  os.symlink('nowhere', 'broken')
  assert describe('link').labels == describe('./mnist').labels == ('a', 'b')
  with pytest.raises(UserError, match=NO_FOLDER + './broken is a link to nowhere: '):
    describe('broken')


def test_defaults():
  make_files(*TREE)
  found = parse('two')
  assert (found.model.model, found.optimizer.batch_size, found.optimizer.lr_schedule,
          found.input.augment, found.duration.train_epochs) == (
              'residual_cnn', 16, 'cosine', 'flip', 30)
  assert found == Settings(dataset='two', model_dir='run').for_mode('train_and_evaluate')
  # Given values have precedence, even if they are the defaults for other data.
  given = parse('two', '--model=fashion_cnn', '--batch_size=128', '--train_steps=3')
  assert (given.model.model, given.optimizer.batch_size, given.duration.train_epochs) == (
      'fashion_cnn', 128, None)
  for settings in (found, given):
    assert command_line.parse(to_arguments(settings)) == settings
    with open('flags.txt', 'w', encoding='utf-8') as file:
      file.write(to_flagfile(settings))
    assert command_line.parse(['--flagfile=flags.txt']) == settings
  # Defaults that contradict a given flag are left out.
  assert parse('two', '--model=resnet50').data.image_size is None
  compiled = parse('two', '--model=own:model', '--cache_features')
  assert (compiled.optimizer.lr_schedule, compiled.input.augment) == ('constant', 'none')
  assert parse('two', '--mode=scaling').duration.train_epochs is None
  help_text = command_line.help_text(['--help=batch_size:'])
  assert '(default: 128; 16 for a folder)' in help_text


def test_a_run_is_evaluated_on_its_examples_or_another_folder():
  make_files(*TREE)
  make_files('run/flags.txt', content=to_flagfile(parse('one')).encode())
  evaluate = ['--mode=evaluate', '--model_dir=run']

  def patterns(*arguments):
    data = command_line.parse(evaluate + list(arguments)).data
    return data.dataset, data.train_pattern, data.eval_pattern, data.validation_fraction

  of_run = ('./one', './one', None, .2)
  assert patterns() == of_run
  assert patterns('--dataset=one') == of_run
  assert patterns('--dataset=' + os.path.abspath('one'))[1:] == of_run[1:]
  assert patterns('--eval_pattern=x') == ('./one', './one', 'x', None)
  assert patterns('--dataset=two') == ('./two', None, './two/val', None)
  assert patterns('--dataset=two/test') == ('two/test', None, 'two/test', None)
  settings = Settings(dataset='two/test', model_dir='run', train_epochs=1).for_mode('evaluate')
  assert (settings.data.eval_pattern, settings.data.validation_fraction) == ('two/test', None)
  # Predictions need only the run.
  os.rename('one', 'moved')
  predicted = command_line.parse(['--mode=predict', '--model_dir=run', '--input=x'])
  assert datasets.describe_spec(predicted, ('a', 'b')) == ('./one', ('a', 'b'), (64, 64, 3))
