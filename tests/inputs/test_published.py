"""The input pipeline of 2018: its stages, every example once a pass, and what it cannot do."""

from collections import Counter

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from conftest import batches

from estimator_train.datasets import image_folder, tfrecord
from estimator_train.errors import UserError
from estimator_train.inputs import factory
from estimator_train.inputs.batching import Batching, Shard
from estimator_train.settings import Settings

SHAPE = (20, 24, 3)


@pytest.fixture(params=[(image_folder, 'data/train/*/*.jpeg'), (tfrecord, 'records/train-*')],
                ids=['files', 'records'])
def source(request, image_records):
  module, pattern = request.param
  dataset = module.describe(Settings(
      dataset=module.__name__.rpartition('.')[2], mode='train', train_steps=1, model_dir='any',
      train_pattern=str(image_records.parent / pattern), image_size=SHAPE[:2]))
  return factory.make_source(dataset, dataset.train)


def read(make_input_fn, num_batches, shard=Shard(), batch_size=6):
  """Returns the mean pixel value and the class of each example, which identify it; the graph."""
  found, graph = batches(make_input_fn(Batching(
      SHAPE, 2, one_hot=False, examples_per_batch=batch_size, shuffle_buffer=100,
      num_parallel_calls=2, shard=shard)), num_batches)
  return [(round(float(image.mean()), 2), int(label)) for pixels, labels in found
          for image, label in zip(np.broadcast_to(pixels, pixels.shape[:3] + (3,)), labels)], graph


def test_each_example_once_a_pass(source):
  found, graph = read(source.make_published_input_fn, 6)
  expected, _ = read(source.make_eval_input_fn, 3)
  first, second = found[:18], found[18:]
  assert Counter(first) == Counter(second) == Counter(expected) and first != second
  ops = {node.op for node in graph.as_graph_def().node}
  assert {'ShuffleAndRepeatDataset', 'PrefetchDataset'} <= ops
  assert any(op.startswith('MapAndBatchDataset') for op in ops)
  is_record_source = source.format_name == 'image_records'
  assert any('InterleaveDataset' in op for op in ops) == is_record_source
  if not is_record_source:  # The readers of records run in parallel.
    assert read(source.make_published_input_fn, 3)[0] == first
  resumed, _ = read(source.make_published_input_fn, 3, Shard(first_example=6))
  assert resumed != first and Counter(resumed) == Counter(first)


def test_workers_read_different_files(source):
  found = [read(source.make_published_input_fn, 6, Shard(0, 2, rank, 1), 1)[0] for rank in (0, 1)]
  assert not set(found[0]) & set(found[1])
  if source.format_name == 'image_records':
    with tf.Graph().as_default(), pytest.raises(
        UserError, match=r'requires a file per worker: 7 file\(s\) for 8 workers: '):
      read(source.make_published_input_fn, 1, Shard(0, 8, 0, 1))


@pytest.mark.parametrize('given, message', [
    ({'cache': 'memory'}, 'cache: '), ({'cache_features': True}, 'cache_features: '),
    ({'on_bad_image': 'skip'}, 'on_bad_image=skip: ')])
def test_flags_that_require_the_exact_pipeline(given, message):
  with pytest.raises(UserError, match='input_pipeline=published does not support ' + message):
    Settings(input_pipeline='published', **given)
