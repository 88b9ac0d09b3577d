"""Images in records: the pixels and the order of image files, shards, labels, and bad records."""

import os

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from conftest import batches, record_of, write_records

from estimator_train.datasets import image_folder, tfrecord
from estimator_train.errors import UserError
from estimator_train.inputs import (
  factory,
  file_errors,
  image_records as image_records_module,
)
from estimator_train.inputs.batching import Batching, Shard
from estimator_train.settings import Settings, groups

SHAPE = (20, 24, 3)


def batching(**given):
  return Batching(SHAPE, 2, one_hot=False, **dict(
      {'examples_per_batch': 3, 'num_parallel_calls': 2}, **given))


def settings_of(folder, **given):
  return Settings(dataset='tfrecord', mode='train', train_steps=1, model_dir=str(folder / 'model'),
                  train_pattern=str(folder / 'train-*'), image_size=SHAPE[:2], **given)


def source_of(folder, **given):
  dataset = tfrecord.describe(settings_of(folder, **given))
  return factory.make_source(dataset, dataset.train)


@pytest.fixture
def file_source(image_folders):
  dataset = image_folder.describe(Settings(
      dataset='image_folder', mode='train', train_steps=1, model_dir='any',
      train_pattern=str(image_folders / 'train' / '*' / '*.jpeg'), image_size=SHAPE[:2]))
  return factory.make_source(dataset, dataset.train)


def assert_equal(batches_of_one, batches_of_other):
  assert len(batches_of_one) == len(batches_of_other)
  for (pixels, labels), (other_pixels, other_labels) in zip(batches_of_one, batches_of_other):
    np.testing.assert_array_equal(pixels, other_pixels)
    np.testing.assert_array_equal(labels, other_labels)


def test_records_are_read_like_files(image_records, file_source):
  source = source_of(image_records)
  assert source.check_and_count() == 18 and source.class_indices().tolist() == [0] * 12 + [1] * 6
  for make in (lambda source: source.make_eval_input_fn(batching()),
               lambda source: source.make_train_input_fn(batching(), 'memory'),
               lambda source: source.make_train_input_fn(batching(), 'none')):
    assert_equal(*(batches(make(each), 6)[0] for each in (source, file_source)))


def test_nothing_of_the_records_is_in_the_graph(image_records):
  _, graph = batches(source_of(image_records).make_train_input_fn(batching(), 'none'), 1)
  assert graph.as_graph_def().ByteSize() < 30000


def test_a_resumed_run_continues_with_the_next(image_records):
  source = source_of(image_records)
  straight, _ = batches(source.make_train_input_fn(batching(), 'none'), 12)
  resumed, _ = batches(source.make_train_input_fn(
      batching(shard=Shard(first_example=21)), 'none'), 5)
  assert_equal(resumed, straight[7:])


@pytest.mark.parametrize('workers', [2, 3, 20])
def test_workers_read_what_one_process_would(image_records, workers):
  """Even with more workers than files."""
  source, labels = source_of(image_records), []
  for rank in range(workers):
    input_fn = source.make_train_input_fn(batching(
        examples_per_batch=1, shard=Shard(0, workers, rank, 1)), 'none')
    labels.append([int(label) for _, (label,) in batches(input_fn, 3)[0]])
  of_one, _ = batches(source.make_train_input_fn(batching(examples_per_batch=1), 'none'),
                      3 * workers)
  assert [label for step in zip(*labels) for label in step] == [int(label)
                                                                for _, (label,) in of_one]


def test_bytes_read_by_two_workers(image_records, monkeypatch):
  """Each reads half of an epoch, of the lengths that the index has."""
  source = source_of(image_records)
  lengths, reads = source.split.records.lengths, []
  read = source._reader.read
  monkeypatch.setattr(source._reader, 'read',
                      lambda records: reads.append(records) or read(records))
  monkeypatch.setattr(type(source), 'expects_grey', lambda source: True)
  shares = []
  for rank in (0, 1):
    del reads[:]
    shard = batching(shard=Shard(0, 2, rank, 3))
    batches(lambda shard=shard: source.look_up(source.training_chunks(18, shard, 3).take(3)))
    shares.append(np.concatenate(reads))
  assert sorted(np.concatenate(shares)) == list(range(18))
  assert abs(lengths[shares[0]].sum() / lengths.sum() - 0.5) < 0.1


def test_labels_from_one(image_records, tmp_path):
  image = (image_records.parent / 'data' / 'train' / 'A' / '0.jpeg').read_bytes()
  write_records(tmp_path / 'from_one' / 'train-0', [record_of(image, 1), record_of(image, 2)])
  (tmp_path / 'from_one' / 'labels.txt').write_text('a\nb\n')
  source = source_of(tmp_path / 'from_one', label_offset=-1)
  assert source.class_indices().tolist() == [0, 1]
  with pytest.raises(UserError, match=r'train-0: record 1 \(label 2 for 2 classes\)'):
    source_of(tmp_path / 'from_one').class_indices()


def test_other_keys(tmp_path, image_folders):
  image = (image_folders / 'train' / 'A' / '0.jpeg').read_bytes()
  features = {'picture': tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
              'kind': tf.train.Feature(int64_list=tf.train.Int64List(value=[1]))}
  write_records(tmp_path / 'train-0', [tf.train.Example(features=tf.train.Features(
      feature=features)).SerializeToString()])
  source = source_of(tmp_path, labels=('a', 'b'), image_key='picture', label_key='kind')
  assert source.class_indices().tolist() == [1] and source.read_content(0) == image


def feature(**lists):
  return tf.train.Feature(**lists)


def bad_records(image):
  return {
      'no tf.train.Example': (b'\xff\xff', 'not a tf.train.Example'),
      'no such image': (record_of(b'text', 0), 'unknown format'),
      'half an image': (record_of(image[:len(image) // 2], 0), 'Invalid JPEG data'),
  }


@pytest.fixture
def image(image_records):
  return (image_records.parent / 'data' / 'train' / 'A' / '0.jpeg').read_bytes()


@pytest.mark.parametrize('kind', list(bad_records(b'')))
def test_a_bad_record_is_named_or_skipped(image_records, image, kind, tmp_path):
  record, reason = bad_records(image)[kind]
  path = image_records / 'train-00007-of-00008'
  write_records(path, [record_of(image, 0), record, record_of(image, 1)])
  source = source_of(image_records)
  assert source.check_and_count() == 21
  with pytest.raises(tf.errors.OpError):
    batches(source.make_train_input_fn(batching(), 'none'), 9)
  message = str(source.explain_failure())
  assert message.startswith('an image cannot be decoded: {}: record 1 ('.format(path))
  assert reason in message and message.endswith('or give --on_bad_image=skip')
  split, skipped = source.skip_bad_examples(
      'train', Settings(max_bad_images=0.1)[groups.Input], str(tmp_path))
  assert [bad.file for bad in skipped] == ['{}: record 1'.format(path)]
  rest = factory.make_source(source.dataset, split)
  assert rest.check_and_count() == 20 and rest.class_indices().tolist() == (
      [0] * 12 + [1] * 6 + [0, 1])
  assert rest.name_of(19) == '{}: record 2'.format(path)
  batches(rest.make_train_input_fn(batching(), 'none'), 9)


def ints(*values):
  return feature(int64_list=tf.train.Int64List(value=values))


def text(*values):
  return feature(bytes_list=tf.train.BytesList(value=values))


LABEL = 'image/class/label'


def other_keys(image, **features):
  return tf.train.Example(features=tf.train.Features(feature=dict(
      {'picture': text(image)}, **features))).SerializeToString()


@pytest.mark.parametrize('make, reason, remedy', [
    (lambda image: tf.train.Example().SerializeToString(), 'no image/encoded; the keys are missing',
     '--image_key=KEY --label_key=KEY'),
    (lambda image: other_keys(image, kind=ints(1)), 'no image/encoded; the keys are kind, picture',
     '--image_key=picture --label_key=kind'),
    (lambda image: other_keys(image, size=ints(8), **{'a/label': ints(1)}),
     'no image/encoded; the keys are a/label, picture, size',
     '--image_key=picture --label_key=a/label'),
    (lambda image: record_of(image, 0, **{LABEL: text(b'1')}),
     LABEL + ' is of the kind bytes_list, not int64_list', '--label_key=KEY'),
    (lambda image: record_of(image, 0, **{LABEL: ints(0, 1)}), LABEL + ' has 2 values, not one',
     '--label_key=KEY'),
    (lambda image: record_of(image, 2), 'label 2 for 2 classes',
     '--label_offset=-1 if the first label is 1'),
    (lambda image: record_of(image, 9, **{'image/class/text': text(b'B')}), 'label 9 for 2 classes',
     '--label_offset=-8'),
    (lambda image: record_of(image, -1), 'label -1 for 2 classes',
     '--labels, --label_offset or --label_key that fit'),
])
@pytest.mark.parametrize('is_sampled', [False, True])
def test_a_record_of_another_schema_is_never_skipped(image_records, image, tmp_path, monkeypatch,
                                                     make, reason, remedy, is_sampled):
  path = image_records / 'train-00007-of-00008'
  write_records(path, [record_of(image, 0), make(image), record_of(image, 1)])
  source, settings = source_of(image_records), Settings(max_bad_images=1)[groups.Input]
  if is_sampled:  # In a large data set, the record is noticed when it is read.
    monkeypatch.setattr(image_records_module, '_MAX_CHECKED_BYTES', 0)
    monkeypatch.setattr(image_records_module, '_SAMPLE_SIZE', 2)
    assert source.check_and_count() == 21
  else:
    with pytest.raises(UserError):
      source.check_and_count()
  message = r'an example does not fit the flags: {}: record 1 \({}\): give {}, or '.format(
      path, reason, remedy)
  with pytest.raises(UserError, match=message):
    source.skip_bad_examples('train', settings, str(tmp_path))
  with pytest.raises(UserError, match=message), file_errors.translate_errors(source):
    batches(source.make_train_input_fn(batching(), 'none'), 9)
  with pytest.raises(UserError), file_errors.translate_errors(source):
    batches(source.make_published_input_fn(batching()), 9)


def described(image, *labels_and_texts):
  return [record_of(image, label, **{'image/class/text': text(name)})
          for label, name in labels_and_texts]


@pytest.mark.parametrize('labels_and_texts, given, message', [
    ([(0, b'B'), (1, b'A')], {}, "label 0 is the class A, but image/class/text of 1 record.s. is "
     'B: give --labels in the order of the labels'),
    ([(1, b'A'), (2, b'B')], {'labels': ('A', 'B', 'C')},
     'label 1 is the class B, .* is A: give --label_offset=-1'),
    ([(3, b'B'), (2, b'A'), (2, b'A')], {'label_offset': -1, 'labels': ('A', 'B', 'C')},
     'label . is the class ., .*: give --label_offset=-2'),
])
def test_class_names_of_the_records_that_disagree(tmp_path, image, labels_and_texts, given,
                                                  message):
  write_records(tmp_path / 'train-0', described(image, *labels_and_texts))
  with pytest.raises(UserError, match=message):
    source_of(tmp_path, **dict({'labels': ('A', 'B')}, **given)).check_and_count()


@pytest.mark.parametrize('labels_and_texts, message', [
    ([(0, b'A'), (1, b'B')], None),
    ([(0, b'A'), (1, b'B'), (0, b'A'), (0, b'B')],
     'image/class/text of 1 records is not the class of their label, such as B for A'),
    ([(0, b'a cat'), (1, b'\xff')], 'of 2 records is not the class of their label, such as a cat'),
    ([(1, b'B'), (1, b'B')], '1 class(es) have no training records: A; if the first label is 1, '
     'give --label_offset=-1'),
])
def test_warnings_about_classes(tmp_path, image, labels_and_texts, message, caplog):
  write_records(tmp_path / 'train-0', described(image, *labels_and_texts))
  source_of(tmp_path, labels=('A', 'B')).check_and_count()
  assert len(caplog.records) == (message is not None) and (message or '') in caplog.text


def test_records_without_any_image(tmp_path):
  write_records(tmp_path / 'train-0', [record_of(bytes(192), 0), record_of(bytes(192), 1)])
  with pytest.raises(UserError, match='image/encoded is not a JPEG, PNG or GIF file, as in all '
                     r'other records\): give --image_key=KEY, or a data set with RecordSplit'):
    source_of(tmp_path, labels=('A', 'B')).check_and_count()


def test_damaged_files(image_records, tmp_path):
  path = image_records / 'train-00003-of-00007'
  os.truncate(str(path), path.stat().st_size - 3)
  source = source_of(image_records)
  with pytest.raises(UserError, match=r'a TFRecord file is damaged: .*train-00003-of-00007: record '
                     r'\d \(truncated; the last [\d,]+ bytes of the file are lost\): write'):
    source.check_and_count()
  split, skipped = source.skip_bad_examples(
      'train', Settings(max_bad_images=0.1)[groups.Input], str(tmp_path))
  assert len(skipped) == 1 and factory.make_source(source.dataset, split).check_and_count() == 17


def test_a_wrong_checksum_is_named(image_records):
  path = image_records / 'train-00001-of-00007'
  content = bytearray(path.read_bytes())
  content[40] ^= 1
  path.write_bytes(content)
  source = source_of(image_records)
  with pytest.raises(tf.errors.OpError, match='wrong checksum'):
    batches(source.make_train_input_fn(batching(), 'none'), 6)
  assert '{}: record 0 (wrong checksum)'.format(path) in str(source.explain_failure())


def test_cache_keys(image_records):
  keys = [source_of(image_records, **given).cache_key() for given in (
      {}, {'label_offset': 1, 'labels': ('A', 'B')}, {'image_key': 'a'})]
  os.utime(str(image_records / 'train-00000-of-00007'), ns=(1, 1))
  assert len(set(keys + [source_of(image_records).cache_key()])) == 4
