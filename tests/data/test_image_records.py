"""Images in records: their labels and keys, records of another schema, and damaged ones."""

import re

import pytest
import tensorflow.compat.v1 as tf
from conftest import batches, record_of, write_records
from input_plans import plan

from estimator_train.data import (
  DataSet,
  RecordSplit,
  Role,
  datasets,
  image_records as module,
  tfrecord,
)
from estimator_train.data.opening import make_source
from estimator_train.data.source import translate_errors
from estimator_train.errors import UserError
from estimator_train.run_dir import RunDir
from estimator_train.settings import Settings

SHAPE, LABEL = (20, 24, 3), 'image/class/label'
PLAN = plan(SHAPE, 2, 3, num_parallel_calls=2)


def source_of(folder, **given):
  dataset = tfrecord.describe_data_set(Settings(
      dataset='tfrecord', mode='train', train_steps=1, model_dir=str(folder / 'model'),
      train_pattern=str(folder / 'train-*'), image_size=SHAPE[:2], **given))
  return make_source(dataset.train, dataset.spec, Role.TRAIN)


@pytest.fixture
def image(image_records):
  return (image_records.parent / 'data' / 'train' / 'A' / '0.jpeg').read_bytes()


def example(features):
  """Returns a serialized tf.train.Example of features, which are integers or bytes."""
  return tf.train.Example(features=tf.train.Features(feature={
      key: tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
           if isinstance(value, bytes) else
           tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))
      for key, value in features.items()})).SerializeToString()


def test_labels_keys_and_fingerprints(image_records, tmp_path, image):
  write_records(tmp_path / 'one' / 'train-0', [record_of(image, 1), record_of(image, 2)])
  (tmp_path / 'one' / 'labels.txt').write_text('a\nb\n')
  assert source_of(tmp_path / 'one', label_offset=-1).read_class_indices().tolist() == [0, 1]
  with pytest.raises(UserError, match=r'train-0: record 1 \(label 2 for 2 classes\): give '
                     '--label_offset=-1 if the first label is 1, or'):
    source_of(tmp_path / 'one').read_class_indices()
  write_records(tmp_path / 'two' / 'train-0', [example({'picture': image, 'kind': 1})])
  source = source_of(tmp_path / 'two', labels=('a', 'b'), image_key='picture', label_key='kind')
  assert source.read_class_indices().tolist() == [1] and source.read_content(0) == image
  assert len({source_of(image_records, **given).files_fingerprint() for given in (
      {}, {'image_key': 'a'}, {'label_key': 'a'})}) == 3
  assert len({source_of(tmp_path / 'one', label_offset=offset).files_fingerprint()
              for offset in (0, -1)}) == 2
  # The labels in labels.txt need no --label_offset.
  (tmp_path / 'one' / 'labels.txt').write_text('1:a\n2:b\n')
  assert source_of(tmp_path / 'one').read_class_indices().tolist() == [0, 1]
  with pytest.raises(UserError, match='--label_offset contradicts labels.txt: --label_offset=2; '
                     'the first label next to --train_pattern=.* is 1: omit --label_offset'):
    source_of(tmp_path / 'one', label_offset=2)


@pytest.mark.parametrize('make, reason, remedy', [
    (lambda image: example({'picture': image, 'size': 8, 'a/label': 1}),
     'no image/encoded; the keys are a/label, picture, size',
     '--image_key=picture --label_key=a/label'),
    (lambda image: example({'image/encoded': image, LABEL: b'1'}),
     LABEL + ' is of the kind bytes_list, not int64_list', '--label_key=KEY'),
    (lambda image: record_of(image, 2), 'label 2 for 2 classes',
     'a labels.txt with all labels'),
    (lambda image: record_of(image, -1), 'label -1 for 2 classes',
     'a labels.txt with all labels')])
def test_a_record_of_another_schema_is_never_skipped(image_records, image, tmp_path, monkeypatch,
                                                     make, reason, remedy):
  path = image_records / 'train-00007-of-00008'
  write_records(path, [record_of(image, 0), make(image), record_of(image, 1)])
  source = source_of(image_records)

  def refuses(function, *arguments):
    with pytest.raises(UserError, match=r'an example does not fit the flags: {}: record 1 \({}\): '
                       'give {}, or '.format(path, reason, remedy)), translate_errors(source):
      function(*arguments)

  skip = source.exclude_bad_images, Settings(max_bad_images=1).input, str(tmp_path)
  refuses(source.check_and_count_examples)
  refuses(*skip)
  refuses(lambda: batches(source.make_train_input_fn(*PLAN, 'none'), 9))
  with pytest.raises(UserError), translate_errors(source):
    batches(source.make_published_input_fn(*PLAN), 9)
  # In a large data set, it is noticed when it is read.
  monkeypatch.setattr(module, '_MAX_CHECKED_BYTES', 0)
  monkeypatch.setattr(module, '_SAMPLE_SIZE', 2)
  assert source.check_and_count_examples() == 21
  refuses(*skip)


@pytest.mark.parametrize('labels_and_texts, given, is_error, message', [
    ([(0, b'B'), (1, b'A')], {}, True, 'label 0 is the class A, but image/class/text of 1 record(s)'
     ' is B: give --labels in the order of the labels'),
    ([(1, b'A'), (2, b'B')], {'labels': ('A', 'B', 'C')}, True, 'is A: give --label_offset=-1'),
    ([(0, None), (1, None)], {}, True, 'no checked record has a JPEG, PNG or GIF file in '
     'image/encoded): give --image_key=KEY, or a data set with RecordSplit'),
    ([(0, b'A'), (1, b'B')], {}, False, None),
    ([(0, b'A'), (1, b'B'), (0, b'A'), (0, b'B')], {}, False,
     'image/class/text of 1 records is not the class of their label, such as B for A'),
    # As many records with the name of the class as with that of another one.
    ([(0, b'A'), (0, b'\xff'), (1, b'B')], {}, False, 'of 1 records is not the class of their la'),
    ([(1, b'B'), (1, b'B')], {}, False, '1 class(es) have no training records: A; if the first '
     'label is 1, give --label_offset=-1')])
def test_class_names_of_the_records(tmp_path, image, labels_and_texts, given, is_error, message,
                                    caplog):
  write_records(tmp_path / 'train-0', [
      example({'image/encoded': image, LABEL: label, 'image/class/text': name}) if name
      else record_of(bytes(192), label) for label, name in labels_and_texts])
  source = source_of(tmp_path, **dict({'labels': ('A', 'B')}, **given))
  if is_error:
    with pytest.raises(UserError, match=re.escape(message)):
      source.check_and_count_examples()
  else:
    source.check_and_count_examples()
    assert len(caplog.records) == (message is not None) and (message or '') in caplog.text
    caplog.clear()
    make_source(source.split, source.spec, Role.TEST_ONLY).check_and_count_examples()
    assert 'no training records' not in caplog.text


def write_classes(folder, image, class_names, has_text=False, has_file=True):
  """Writes a record of each class, with labels from 0 on."""
  write_records(folder / 'records', [
      example(dict({'image/encoded': image, LABEL: label},
                   **({'image/class/text': name.encode()} if has_text else {})))
      for label, name in enumerate(class_names)])
  if has_file:
    (folder / 'labels.txt').write_text('\n'.join(class_names))


def test_labels_of_test_records_are_translated_by_the_class_names(tmp_path, image, monkeypatch):
  def indices(train, test, split='test', **given):
    write_classes(tmp_path / 'train', image, train)
    write_classes(tmp_path / 'test', image, test)
    given = dict({'mode': 'train_and_evaluate', 'model_dir': str(tmp_path / 'model')}, **given)
    dataset = tfrecord.describe_data_set(Settings(
        dataset='tfrecord', train_steps=1, train_pattern=str(tmp_path / 'train' / 'rec*'),
        eval_pattern=str(tmp_path / 'test'), image_size=SHAPE[:2], **given),
        RunDir(str(tmp_path / 'model')).read_class_names())
    source = make_source(getattr(dataset, split), dataset.spec,
                         Role.TRAIN if split == 'train' else Role.TEST)
    source.check_and_count_examples()
    published, _ = batches(source.make_published_input_fn(*PLAN.given(
        num_classes=len(dataset.labels), size=1)), 20)
    found = source.read_class_indices().tolist()
    assert {int(label) for _, label in published} == set(found)
    return found

  assert indices('abc', 'ac') == [0, 2]
  assert indices('abc', 'cab') == [2, 0, 1]
  assert indices('abc', 'abc') == [0, 1, 2]
  assert indices('abc', ['0:c', '1:a'], label_offset=0) == [2, 0]
  # --labels is the order of the model's outputs; it may also give all classes other names.
  assert indices('abc', 'ac', labels=('c', 'b', 'a')) == [2, 0]
  assert indices('abc', 'ac', labels=('c', 'b', 'a'), split='train') == [2, 1, 0]
  assert indices('abc', 'ca', labels=('A', 'B', 'C')) == [2, 0]
  # The classes of a trained model are those that it was trained with.
  (tmp_path / 'model').mkdir()
  (tmp_path / 'model' / 'labels.txt').write_text('b\nc\na\n')
  assert indices('abc', 'ac', mode='evaluate') == [2, 1]
  with pytest.raises(UserError, match=r'record 1 \(label 1 is x in labels.txt, which is not one of '
                     'the 3 class names.: give --labels with all classes, or files without'):
    indices('abc', 'ax')
  with pytest.raises(UserError, match='labels.txt next to the files must have class names of the'):
    indices('abc', 'xyz')
  # Also if a function describes the data set.
  monkeypatch.setattr(datasets.user_code, 'call_function', lambda *_: DataSet(
      'mine', ('a', 'b', 'c'), SHAPE, test=RecordSplit(str(tmp_path / 'test' / 'rec*'))))
  write_classes(tmp_path / 'test', image, 'ca')
  dataset = datasets.describe_data_set(
      Settings(dataset='m:f', mode='evaluate', model_dir=str(tmp_path)))
  assert make_source(dataset.test, dataset.spec, Role.TEST).read_class_indices().tolist() == [2, 0]


def test_the_digest_of_records_depends_on_the_classes_of_their_labels(tmp_path, image):
  for folder in ('train', 'test'):
    write_classes(tmp_path / folder, image, 'abc')

  def digest(class_names):
    (tmp_path / 'test' / 'labels.txt').write_text('\n'.join(class_names))
    dataset = tfrecord.describe_data_set(Settings(
        dataset='tfrecord', train_steps=1, train_pattern=str(tmp_path / 'train'),
        eval_pattern=str(tmp_path / 'test'), model_dir=str(tmp_path / 'm'), image_size=SHAPE[:2]))
    return make_source(dataset.test, dataset.spec, Role.TEST).content_digest()

  assert digest('abc') == digest('abc') != digest('acb')


def test_errors_about_labels_of_test_records(tmp_path, image):
  """--label_offset, which holds for both splits, is not proposed if the training records fit."""
  def error_of(train, test, file_names=''):
    write_classes(tmp_path / 'train', image, train, has_text=True)
    write_classes(tmp_path / 'test', image, test, has_text=True, has_file=False)
    if file_names:
      (tmp_path / 'test' / 'labels.txt').write_text('\n'.join(file_names))
    dataset = tfrecord.describe_data_set(Settings(
        dataset='tfrecord', train_steps=1, train_pattern=str(tmp_path / 'train'),
        eval_pattern=str(tmp_path / 'test'), model_dir=str(tmp_path / 'm'), image_size=SHAPE[:2]))
    with pytest.raises(UserError) as caught:
      make_source(dataset.test, dataset.spec, Role.TEST).check_and_count_examples()
    assert 'label_offset' not in str(caught.value)
    return str(caught.value)

  assert 'is c: write labels.txt with the names of their labels next to them' in error_of(
      'abc', 'ac')
  assert 'give a labels.txt next to these files' in error_of('abd', 'abcd')
  assert 'is c: correct labels.txt next to them' in error_of('abc', 'ac', file_names='ab')
  write_classes(tmp_path / 'train' / 'more', image, 'ba')
  with pytest.raises(UserError, match='the files of a split must have the same class names'):
    error_of('abc', 'ac')
