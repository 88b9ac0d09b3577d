"""What passes over the input, its stages, and steps of a model count, time and do."""

import os
from unittest import mock

import numpy as np
import psutil
import pytest
import tensorflow.compat.v1 as tf

from estimator_train.benchmarking import input_rate, model_rate
from estimator_train.datasets.description import DataSet, ImageSplit, SyntheticSplit
from estimator_train.inputs import factory, images
from estimator_train.inputs.batching import Batching
from estimator_train.settings import Settings

BATCHING = Batching((10, 12, 3), 3, one_hot=False, examples_per_batch=4, shuffle_buffer=8,
                    num_parallel_calls=1)


def test_take_batches():
  for from_start, secs, max_batches, batches, taken in (
      (False, 2.5, None, 3, 3.),  # 1 + 1 + 1: over the time after the third.
      (True, 2.5, None, 3, 9.),  # The first one is over the time already, and three are taken.
      (False, 3.5, None, 4, 5.), (False, 100., 4, 4, 5.), (True, 10., None, 4, 10.),
      (False, 0., 1, 3, 3.)):  # One would say too little.
    left, now = [7, 1, 1, 1, 2, 2, 2], [100.]

    def next_batch(left=left, now=now):
      now[0] += left.pop(0)

    assert input_rate.take_batches(next_batch, 8, secs, max_batches, from_start,
                                   lambda now=now: now[0]) == (batches * 8, taken)
    assert 7 - len(left) == batches + (not from_start)


def test_page_cache_and_storage(tmp_path, monkeypatch):
  paths, advice = [tmp_path / 'a', tmp_path / 'b'], []
  for path in paths:
    path.write_bytes(b'some')
  monkeypatch.setattr(os, 'posix_fadvise', lambda descriptor, *given: advice.append(
      (os.readlink('/proc/self/fd/{}'.format(descriptor)), *given)))
  input_rate.evict_from_page_cache([str(paths[0]), str(tmp_path / 'missing'), bytes(paths[1])])
  assert advice == [(str(path), 0, 0, os.POSIX_FADV_DONTNEED) for path in paths]
  assert input_rate.bytes_read_from_storage() >= 0
  for error in (psutil.AccessDenied, FileNotFoundError):  # A kernel without I/O accounting.
    monkeypatch.setattr(psutil.Process, 'io_counters', mock.Mock(side_effect=error))
    assert input_rate.bytes_read_from_storage() is None


@pytest.fixture
def split(tmp_path, write_images):
  paths = [tmp_path / 'data' / '{}.jpeg'.format(number) for number in range(8)]
  write_images({path: np.full((20, 25, 1), 9 * number, np.uint8)
                for number, path in enumerate(paths)})
  return ImageSplit([str(path).encode() for path in paths], np.arange(8, dtype=np.int32) % 3)


def dataset_of(split):
  return DataSet('any', ('a', 'b', 'c'), (10, 12, 3), split, None, ())


def stages_of(split, *given):
  return factory.make_source(dataset_of(split), split).stage_input_fns(*given)


def counting(function, counts, name):
  """Has a graph function count its runs, not its being built."""
  def count(image):
    counts[name] += 1
    return image

  def counted(*given, **named):
    image = function(*given, **named)
    passed = tf.numpy_function(count, [image], image.dtype)
    passed.set_shape(image.shape)
    return passed

  return counted


def take_three(input_fn):
  with tf.Graph().as_default(), tf.Session() as session:
    following = tf.data.make_one_shot_iterator(input_fn().take(3)).get_next()
    return [session.run(following) for _ in range(3)]


def test_stages_of_image_files_do_their_work(split, monkeypatch):
  whole = factory.make_source(dataset_of(split), split).make_train_input_fn(BATCHING, 'none')
  input_fns = stages_of(split, BATCHING, False, whole)
  assert list(input_fns) == ['read', 'decode', 'resize', 'batch'] and input_fns['batch'] is whole
  assert stages_of(split, BATCHING, True, 'whole') == {'batch': 'whole'}
  for cached in (False, True):
    assert stages_of(SyntheticSplit(None), BATCHING, cached, 'whole') == {}
  counts = {}
  monkeypatch.setattr(images, 'are_all_grey', lambda contents: True)  # Decodes a sample.
  for name in ('decode', 'resize'):
    monkeypatch.setattr(images, name, counting(getattr(images, name), counts, name))
  for stage, expected in (('read', set()), ('decode', {'decode'}), ('resize', {'decode', 'resize'}),
                          ('batch', {'decode', 'resize'})):
    counts.update(decode=0, resize=0)
    take_three(input_fns[stage])
    assert {name for name, runs in counts.items() if runs >= 12} == expected, stage
    assert all(runs == 0 for name, runs in counts.items() if name not in expected), stage


class Ticks:
  """A clock that advances by a second at each call, so that a pass always takes three batches."""

  def __init__(self):
    self.now = 0.

  def __call__(self):
    self.now += 1
    return self.now


def measure(split, num_examples=8, clock=None, cache='auto'):
  settings = Settings(model_dir='any', train_steps=1, batch_size=4, cache=str(cache))
  return input_rate.measure(dataset_of(split), settings, True, num_examples, clock or Ticks())


def test_measure(split, tmp_path, monkeypatch):
  evicted = []
  monkeypatch.setattr(
      input_rate, 'evict_from_page_cache', lambda paths: evicted.append(list(paths)))
  folder = tmp_path / 'cache'
  for cache, passes, names in (('none', 3, ['read', 'decode', 'resize', 'batch']),
                               ('memory', 1, ['batch']), (folder, 1, ['batch'])):
    del evicted[:]
    measured = measure(split, cache=cache)
    assert len(measured.cold_passes) == len(evicted) == passes and len(measured.warm_passes) == 5
    assert list(measured.stage_passes) == names
    assert measured.stage_passes[names[-1]] == measured.warm_passes
    assert measured.cold_passes + measured.warm_passes == [(12, 3.)] * (passes + 5)
    assert measured.image_shape == (10, 12, 1)
    assert measured.pixels_dtype == ('float32' if cache == 'none' else 'uint8')
    sizes = [os.stat(path).st_size for path in split.files]
    assert measured.bytes_per_example == sum(sizes) / 8 and evicted[0] == split.files
    least = measured.bytes_per_example if cache == 'none' else min(sum(sizes) / 8, 10 * 12)
    assert measured.min_bytes_if_cold == 12 * passes * least
  measure(split, cache=folder)
  assert evicted[1][:8] == split.files and evicted[1][8:] == [
      str(path) for path in folder.glob('images-*.npy')] != []
  measured = measure(SyntheticSplit(None), num_examples=None)
  assert measured.stage_passes == {} and len(measured.warm_passes) == 5
  assert measured.bytes_per_example is None and measured.min_bytes_if_cold == 0
  assert measured.image_shape == (10, 12, 3) and measured.pixels_dtype == 'uint8'


def test_limits_and_preparation_of_passes(split, monkeypatch):
  limits, clock = [], Ticks()

  def make(*given):
    clock.now += 50
    return lambda: tf.data.Dataset.from_tensors((tf.zeros((4, 2, 2, 1)), 0)).repeat()

  monkeypatch.setattr(factory, 'make_train_input_fn_of', make)
  # What comes before the first example, with the look at the clock itself.
  assert measure(split, clock=clock, cache='memory').prepare_secs == 51

  def take_batches(next_batch, batch_size, secs, max_batches, from_start, clock):
    limits.append((from_start, max_batches))
    return 20, 1.

  monkeypatch.setattr(input_rate, 'take_batches', take_batches)
  # Cold: an epoch, as later ones would find the files in memory; warm: what cold passes have read,
  # of five batches four, as the first is not timed.
  for num_examples, cold, warm in ((1000, 250, 4), (18, 5, None)):
    del limits[:]
    measure(split, num_examples, cache='none')
    assert limits[:3] == [(True, cold)] * 3 and set(limits[3:]) == {(False, warm)}


def test_steps_of_a_model_that_count():
  for warmup_steps, step_secs, end_times, steps in (
      (3, [9, 1, 1] + [1] * 50, [11, 12, 13, 14, 15], 7),
      (10, [30, 4, 4] + [4] * 50, [38, 42, 46, 50], 6),  # By time; at least three steps count.
      (0, [30] + [2] * 50, [30, 32, 34, 36], 4)):  # The first step never counts.
    now, context, left = [0.], mock.Mock(), list(step_secs)
    timer = model_rate.StepTimer(warmup_steps, lambda now=now: now[0])
    while not context.request_stop.called:
      now[0] += left.pop(0)
      timer.after_run(context, None)
    assert list(timer.end_times) == end_times and len(step_secs) - len(left) == steps
  for ended, expected in (([10, 11, 13, 14, 18], [(16, 3), (16, 5)]),
                          ([10, 11, 13, 14], [(8, 1), (16, 3)]), ([10, 12], [(8, 2)])):
    assert model_rate.split_into_segments(ended, batch_size=8, max_segments=2) == expected
