"""The workers' shards of the examples: together all of them, once an epoch, in one order."""

from collections import Counter

import numpy as np
import pytest
from conftest import batches

from estimator_train.datasets import image_folder
from estimator_train.datasets.description import ArraySplit, DataSet, IdxSplit
from estimator_train.inputs import arrays, idx_files, order
from estimator_train.inputs.batching import Batching, Shard
from estimator_train.inputs.image_files import ImageFileSource
from estimator_train.settings import Settings

SHAPE = (2, 2, 1)
COUNT = 21  # Not a multiple of any step here.


@pytest.fixture
def make_input_fn(write_idx):
  """Makes the `input_fn` of numbered examples, streamed or from arrays."""
  numbers = np.arange(COUNT, dtype=np.uint8)
  images = np.tile(numbers[:, None, None], (1,) + SHAPE[:2])
  split = IdxSplit(*write_idx(images, numbers))

  def make(kind, **given):
    batching = Batching(SHAPE, COUNT, one_hot=False, shuffle_buffer=5, seed=3, **given)
    if kind == 'idx':
      return idx_files.make_train_input_fn(split, batching)
    source = arrays.ArraySource(DataSet('any', ('a', 'b'), SHAPE),
                                ArraySplit(images[..., None], numbers))
    return source.make_train_input_fn(batching, 'none')

  return make


def seen(input_fn, count):
  """Returns the classes of some batches, each of which is in its pixels too."""
  found, _ = batches(input_fn, count)
  for pixels, classes in found:
    assert (pixels == classes[:, None, None, None]).all()
  return [classes.tolist() for _, classes in found]


@pytest.mark.parametrize('kind', ['idx', 'arrays'])
@pytest.mark.parametrize('workers, replicas, batch_size', [(2, 1, 4), (3, 1, 3), (3, 2, 1)])
def test_workers_take_what_one_process_would(make_input_fn, kind, workers, replicas, batch_size):
  steps = 12
  of_one = seen(make_input_fn(kind, examples_per_batch=batch_size), steps * workers * replicas)
  for worker in range(workers):
    shard = Shard(0, workers, worker, replicas * batch_size)
    own = seen(make_input_fn(kind, examples_per_batch=batch_size, shard=shard), steps * replicas)
    expected = [of_one[step * workers * replicas + worker * replicas + replica]
                for step in range(steps) for replica in range(replicas)]
    assert own == expected


@pytest.mark.parametrize('kind', ['idx', 'arrays'])
def test_every_example_once_an_epoch(make_input_fn, kind):
  workers, batch_size = 3, 1
  steps = 2 * COUNT // workers
  by_step = zip(*(seen(make_input_fn(kind, examples_per_batch=batch_size,
                                     shard=Shard(0, workers, worker, batch_size)), steps)
                  for worker in range(workers)))
  order = [number for step in by_step for classes in step for number in classes]
  first, second = order[:COUNT], order[COUNT:]
  assert Counter(first) == Counter(second) == Counter(range(COUNT))
  assert first != second


def test_a_resumed_worker_goes_on_with_its_next(make_input_fn):
  shard = Shard(0, 2, 1, 3)
  straight = seen(make_input_fn('idx', examples_per_batch=3, shard=shard), 9)
  resumed = seen(make_input_fn('idx', examples_per_batch=3,
                               shard=shard._replace(first_example=4 * 6)), 5)
  assert resumed == straight[4:]


def test_image_files_are_shared_by_name(image_folders):
  """A worker decodes no image of another's."""
  dataset = image_folder.describe_patterns(
      Settings(mode='input_benchmark'), str(image_folders / 'train' / '**' / '*.jpeg'), None, ())
  source = ImageFileSource(dataset, dataset.train)
  batching = Batching((8, 8, 1), 2, one_hot=False, examples_per_batch=2, seed=1)
  listed = [[path for path, _ in batches(lambda shard=shard: source.look_up(
      order.training_chunks(18, batching._replace(shard=shard), 3)), 9)[0]]
            for shard in (Shard(0, 2, 0, 3), Shard(0, 2, 1, 3))]
  assert len(set(listed[0]) | set(listed[1])) == 18 and not set(listed[0]) & set(listed[1])
