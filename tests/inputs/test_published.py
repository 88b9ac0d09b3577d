"""The input pipeline of 2018: its stages, every example once a pass, and what it cannot do."""

from collections import Counter

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from conftest import batches
from test_image_records import SHAPE, settings_of

from estimator_train.datasets import image_folder, tfrecord
from estimator_train.errors import UserError
from estimator_train.inputs import factory
from estimator_train.inputs.batching import Batching, Shard
from estimator_train.settings import Settings


def batching(**given):
  return Batching(SHAPE, 2, one_hot=False, **dict(
      {'examples_per_batch': 6, 'shuffle_buffer': 100, 'num_parallel_calls': 2}, **given))


@pytest.fixture(params=['image_folder', 'tfrecord'])
def source(request, image_folders, image_records):
  if request.param == 'tfrecord':
    dataset = tfrecord.describe(settings_of(image_records))
  else:
    dataset = image_folder.describe(Settings(
        dataset='image_folder', mode='train', train_steps=1, model_dir='any',
        train_pattern=str(image_folders / 'train' / '*' / '*.jpeg'), image_size=SHAPE[:2]))
  return factory.make_source(dataset, dataset.train)


def means_of(found):
  """Returns the mean pixel value and the class of each example, which identify it."""
  return [(round(float(image.mean()), 2), int(label)) for pixels, labels in found
          for image, label in zip(pixels, labels)]


def test_each_example_once_a_pass(source):
  found, graph = batches(source.make_published_input_fn(batching()), 6)
  assert all(pixels.shape == (6,) + SHAPE for pixels, _ in found)
  expected, _ = batches(source.make_eval_input_fn(batching()))
  expected = Counter(means_of([(np.broadcast_to(pixels, pixels.shape[:3] + (3,)), labels)
                               for pixels, labels in expected]))
  first, second = means_of(found[:3]), means_of(found[3:])
  assert Counter(first) == Counter(second) == expected and first != second
  ops = {node.op for node in graph.as_graph_def().node}
  assert {'ShuffleAndRepeatDataset', 'PrefetchDataset'} <= ops
  assert any(op.startswith('MapAndBatchDataset') for op in ops)
  is_record_source = source.format_name == 'image_records'
  assert any('InterleaveDataset' in op for op in ops) == is_record_source


def test_another_order_after_a_resumption(source):
  orders = [means_of(batches(source.make_published_input_fn(batching(
      shard=Shard(first_example=first))), 3)[0]) for first in (0, 0, 6)]
  if source.format_name == 'image_files':  # The readers of records run in parallel.
    assert orders[0] == orders[1]
  assert orders[0] != orders[2] and Counter(orders[0]) == Counter(orders[2])


def test_workers_read_different_files(source):
  found = [means_of(batches(source.make_published_input_fn(batching(
      examples_per_batch=1, shard=Shard(0, 2, rank, 1))), 6)[0]) for rank in (0, 1)]
  assert not set(found[0]) & set(found[1])


def test_fewer_files_than_workers(image_records):
  dataset = tfrecord.describe(settings_of(image_records))
  source = factory.make_source(dataset, dataset.train)
  with tf.Graph().as_default(), pytest.raises(
      UserError, match=r'requires a file per worker: 7 file\(s\) for 8 workers: '):
    source.make_published_input_fn(batching(shard=Shard(0, 8, 0, 1)))()


@pytest.mark.parametrize('given, message', [
    ({'cache': 'memory'}, 'does not support cache: '),
    ({'cache_features': True}, 'does not support cache_features: '),
    ({'on_bad_image': 'skip'}, 'does not support on_bad_image=skip: ')])
def test_flags_that_require_the_exact_pipeline(given, message):
  with pytest.raises(UserError, match='input_pipeline=published ' + message):
    Settings(input_pipeline='published', **given)
