"""The registry of sources, and what a worker reads."""

import collections

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from estimator_train.datasets.description import (
  ArraySplit,
  DataFile,
  DataSet,
  IdxSplit,
  ImageSplit,
  SyntheticSplit,
)
from estimator_train.inputs import arrays, factory, image_files, images
from estimator_train.inputs.batching import Batching, Shard

BATCHING = Batching((2, 2, 1), 2, False, 3, shuffle_buffer=4)


def test_each_split_has_a_source():
  dataset = DataSet('any', ('a', 'b'), (2, 2, 1))
  for split, kind in ((IdxSplit('images', 'labels'), 'idx_files'),
                      (ImageSplit([], []), 'image_files'), (ArraySplit([], []), 'arrays'),
                      (SyntheticSplit(None), 'synthetic')):
    assert factory.make_source(dataset, split).format_name == kind


@pytest.mark.parametrize('split', [None, 'a path', collections.namedtuple('Other', 'path')('x')])
def test_what_has_no_source(split):
  with pytest.raises(ValueError, match='no source is implemented for ' + type(split).__name__):
    factory.make_source(DataSet('any', ('a', 'b'), (2, 2, 1)), split)


def test_idx_files_have_a_digest_unless_they_are_published(write_idx):
  """Workers compare the class indices of a user's files; published files have checksums."""
  def digest(labels, name='train', files=()):
    split = IdxSplit(*write_idx(np.zeros((4, 2, 2)), labels, name))
    dataset = DataSet('any', ('a', 'b'), (2, 2, 1), split, files=files)
    return factory.make_source(dataset, split).digest_of_examples()

  found = digest([0, 1, 0, 1])
  assert found and found == digest([0, 1, 0, 1], 'copy') and found != digest([0, 1, 1, 0])
  assert digest([0, 1, 0, 1], files=(DataFile('any.gz', 1, 'f' * 32, ()),)) == ''


def take(input_fn, count):
  with tf.Graph().as_default(), tf.Session() as session:
    following = tf.data.make_one_shot_iterator(input_fn()).get_next()
    return [session.run(following)[1].tolist() for _ in range(count)]


def test_a_worker_opens_its_own_files_only(monkeypatch, tmp_path, write_images):
  """Of 96 images two workers take three each in every step; an epoch is 16 steps."""
  opened = []
  read = image_files.tf.read_file

  def recording(path):
    def record(name):
      opened.append(name)
      return name

    passed = tf.numpy_function(record, [path], tf.string)
    passed.set_shape([])
    return read(passed)

  files = [tmp_path / '{}.png'.format(number) for number in range(96)]
  write_images({path: np.full((2, 2, 1), 9, np.uint8) for path in files})
  split = ImageSplit([str(path).encode() for path in files], np.arange(96, dtype=np.int32) % 2)
  source = factory.make_source(DataSet('any', ('a', 'b'), (2, 2, 1)), split)
  monkeypatch.setattr(images, 'are_all_grey', lambda contents: True)  # Decodes a sample.
  monkeypatch.setattr(image_files.tf, 'read_file', recording)
  own = []
  for rank in (0, 1):
    batching = BATCHING._replace(shard=Shard(0, 2, rank, 3))
    take(lambda batching=batching: source.make_train_input_fn(batching, 'none')().take(5), 5)
    own.append(set(opened))
    opened.clear()
  assert min(map(len, own)) >= 15 and not own[0] & own[1]


def test_a_worker_looks_up_its_own_rows_only(monkeypatch):
  looked_up = []

  class Rows(np.ndarray):
    def __getitem__(self, index):
      if isinstance(index, np.ndarray):
        looked_up.extend(index.tolist())
      return np.asarray(self)[index]

  images = np.zeros((24, 2, 2, 1), np.uint8).view(Rows)
  source = arrays.ArraySource(DataSet('any', ('a', 'b'), (2, 2, 1)),
                              ArraySplit(images, np.zeros(24, np.int64)))
  input_fn = source.make_train_input_fn(BATCHING._replace(shard=Shard(0, 2, 1, 3)), 'none')
  take(lambda: input_fn().take(4), 4)
  # An epoch has twelve of this worker; a further batch is prefetched.
  assert len(set(looked_up[:12])) == 12 <= len(looked_up) <= 15
