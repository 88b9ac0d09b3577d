"""Images in records: the pixels and the order of image files, shards, labels, and bad records."""

import os

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from conftest import batches, record_of, write_records

from estimator_train.datasets import image_folder, tfrecord
from estimator_train.errors import UserError
from estimator_train.inputs import factory
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
  ints = tf.train.Int64List
  return {
      'no tf.train.Example': (b'\xff\xff', 'not a tf.train.Example'),
      'no image': (tf.train.Example().SerializeToString(),
                   'no image/encoded; the keys are missing'),
      'label of another kind': (record_of(image, 0, **{'image/class/label': feature(
          bytes_list=tf.train.BytesList(value=[b'1']))}),
          'image/class/label is of the kind bytes_list, not int64_list'),
      'two labels': (record_of(image, 0, **{'image/class/label': feature(
          int64_list=ints(value=[0, 1]))}), 'image/class/label has 2 values, not one'),
      'label out of range': (record_of(image, 2), 'label 2 for 2 classes'),
      'negative label': (record_of(image, -1), 'label -1 for 2 classes'),
      'no such image': (record_of(b'text', 0), 'unknown format'),
      'half an image': (record_of(image[:len(image) // 2], 0), 'Invalid JPEG data'),
  }


@pytest.mark.parametrize('kind', list(bad_records(b'')))
def test_a_bad_record_is_named_or_skipped(image_records, kind, tmp_path):
  image = (image_records.parent / 'data' / 'train' / 'A' / '0.jpeg').read_bytes()
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
      {}, {'label_offset': 1}, {'image_key': 'a'})]
  os.utime(str(image_records / 'train-00000-of-00007'), ns=(1, 1))
  assert len(set(keys + [source_of(image_records).cache_key()])) == 4
