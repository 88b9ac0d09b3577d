"""What the `input_fn`s of idx files deliver."""

import numpy as np
import pytest
from conftest import batches

from estimator_train.datasets.description import DataSet, IdxSplit
from estimator_train.inputs import factory, idx_files
from estimator_train.inputs.batching import Batching, Shard
from estimator_train.settings import Settings

EXAMPLES, SHAPE, CLASSES = 10, (2, 3, 1), 4
BATCHING = Batching(SHAPE, CLASSES, one_hot=True, examples_per_batch=4, shuffle_buffer=5,
                    prefetch=2)


@pytest.fixture
def split(write_idx):
  images = np.arange(EXAMPLES * 6).reshape(EXAMPLES, 2, 3) * 4
  return IdxSplit(*write_idx(images, np.arange(EXAMPLES) % CLASSES))


def examples_of(images):
  """Returns the numbers of the examples in a batch, from their first pixel."""
  return [int(pixel) // 24 for pixel in images[:, 0, 0, 0]]


def train_fn(split, examples_per_batch=4, skip=0, seed=1, shuffle_buffer=5):
  return idx_files.make_train_input_fn(split, BATCHING._replace(
      examples_per_batch=examples_per_batch, shuffle_buffer=shuffle_buffer, seed=seed,
      shard=Shard(first_example=skip)))


def order(split, count, **options):
  found, _ = batches(train_fn(split, **options), count)
  return [example for images, _ in found for example in examples_of(images)]


def test_evaluation_has_every_example_once_in_order(split):
  found, _ = batches(idx_files.make_eval_input_fn(split, BATCHING))
  assert [len(images) for images, _ in found] == [4, 4, 2]
  images = np.concatenate([images for images, _ in found])
  labels = np.concatenate([labels for _, labels in found])
  assert images.dtype == np.uint8 and labels.dtype == np.float32
  expected = (np.arange(EXAMPLES * 6) * 4).astype(np.uint8).reshape((EXAMPLES,) + SHAPE)
  np.testing.assert_array_equal(images, expected)
  np.testing.assert_array_equal(labels, np.eye(CLASSES)[np.arange(EXAMPLES) % CLASSES])


def test_training_has_every_example_once_an_epoch_and_full_batches(split):
  found, _ = batches(train_fn(split), 5)
  assert [len(images) for images, _ in found] == [4] * 5
  seen = [example for images, _ in found for example in examples_of(images)]
  assert sorted(seen[:EXAMPLES]) == sorted(seen[EXAMPLES:]) == list(range(EXAMPLES))
  assert seen[:EXAMPLES] != seen[EXAMPLES:] and seen[:EXAMPLES] != list(range(EXAMPLES))


def test_a_resumed_run_does_not_go_through_the_epochs_behind_it(split):
  """By the billion they would take minutes."""
  behind = 10 ** 9 * EXAMPLES
  epoch = order(split, 5, skip=behind)
  assert sorted(epoch[:EXAMPLES]) == list(range(EXAMPLES))
  assert order(split, 2, skip=behind + 3) == epoch[3:11]


def test_labels_stay_with_their_images(split):
  for images, labels in batches(train_fn(split), 5)[0]:
    assert [example % CLASSES for example in examples_of(images)] == list(labels.argmax(-1))


def test_seed_decides_the_order(split):
  assert order(split, 5, seed=1) == order(split, 5, seed=1)
  assert order(split, 5, seed=1) != order(split, 5, seed=2)


def test_order_is_the_same_for_any_batch_size(split):
  assert order(split, 5, examples_per_batch=4) == order(split, 10, examples_per_batch=2)


def test_skipping_goes_on_where_a_run_stopped(split):
  whole = order(split, 10)
  assert order(split, 4, skip=24) == whole[24:]


def test_labels_as_class_numbers(split):
  ((_, labels),), _ = batches(idx_files.make_eval_input_fn(
      split, BATCHING._replace(one_hot=False, examples_per_batch=10)))
  assert labels.dtype == np.int64 and list(labels) == list(np.arange(EXAMPLES) % CLASSES)


def source_of(split):
  return idx_files.IdxSource(DataSet('own', tuple('abcd'), SHAPE), split)


def test_arrays_deliver_the_same(split):
  for one_hot in (True, False):
    batching = BATCHING._replace(one_hot=one_hot, seed=3, shard=Shard(first_example=7))
    streamed, _ = batches(idx_files.make_train_input_fn(split, batching), 6)
    held, _ = batches(source_of(split).make_train_input_fn(batching, 'memory'), 6)
    for (images, labels), (images_held, labels_held) in zip(streamed, held):
      np.testing.assert_array_equal(images, images_held)
      np.testing.assert_array_equal(labels, labels_held)
      assert images.dtype == images_held.dtype and labels.dtype == labels_held.dtype


@pytest.mark.parametrize('held', [False, True], ids=['streamed', 'held in arrays'])
def test_no_array_in_the_graph(write_idx, held):
  split = IdxSplit(*write_idx(np.random.RandomState(0).randint(256, size=(5000, 2, 3)),
                              np.zeros(5000)))
  input_fn = source_of(split).make_train_input_fn(BATCHING, 'memory' if held else 'none')
  _, graph = batches(input_fn, 1)
  assert graph.as_graph_def().ByteSize() < 20000


@pytest.mark.parametrize('given, small_bytes, cache', [
    ('auto', EXAMPLES * 6, 'memory'), ('auto', EXAMPLES * 6 - 1, 'none'), ('none', 1000, 'none'),
    ('memory', 0, 'memory')])
def test_small_files_are_held_unless_the_user_says_otherwise(split, monkeypatch, given,
                                                             small_bytes, cache):
  monkeypatch.setattr(idx_files, '_MAX_AUTO_CACHED_BYTES', small_bytes)
  dataset = DataSet('own', tuple('abcd'), SHAPE, split, split)
  settings = Settings(model_dir='any', train_steps=1, cache=given, batch_size=4)
  assert factory.resolve_cache(dataset, settings) == cache
  _, graph = batches(factory.make_train_input_fn(dataset, settings, True, 4), 1)
  reads = [node for function in graph.as_graph_def().library.function for node in function.node_def
           if node.op.startswith('FixedLengthRecordDataset')]
  assert bool(reads) == (cache == 'none')
