"""What a pass over the input counts and times, and that every stage does all of its work."""

import os
import types
from unittest import mock

import numpy as np
import psutil
import pytest
import tensorflow.compat.v1 as tf

from estimator_train.benchmarking import input_rate
from estimator_train.datasets.description import DataSet, IdxSplit, ImageSplit, SyntheticSplit
from estimator_train.inputs import factory, images
from estimator_train.inputs.batching import Batching
from estimator_train.settings import Settings


class Clock:
  """A clock that each batch moves on by its own seconds."""

  def __init__(self, *secs):
    self.now, self.secs, self.taken = 100., list(secs), 0

  def __call__(self):
    return self.now

  def next_batch(self):
    self.now += self.secs[self.taken]
    self.taken += 1


@pytest.mark.parametrize('from_start, secs, max_batches, batches, taken', [
    (False, 2.5, None, 3, 3.),  # 1 + 1 + 1: over the time after the third.
    (True, 2.5, None, 3, 9.),  # The first one is over the time already, and three are taken.
    (False, 3.5, None, 4, 5.),
    (False, 100., 4, 4, 5.),
    (False, 0., 1, 3, 3.),  # One would say too little.
    (True, 10., None, 4, 10.),
])
def test_take_batches(from_start, secs, max_batches, batches, taken):
  clock = Clock(7, 1, 1, 1, 2, 2, 2)
  assert input_rate.take_batches(
      clock.next_batch, 8, secs, max_batches, from_start, clock) == (batches * 8, taken)
  assert clock.taken == batches + (not from_start)


def test_evict_from_page_cache(tmp_path, monkeypatch):
  paths = [tmp_path / 'a', tmp_path / 'b']
  for path in paths:
    path.write_bytes(b'some')
  advice = []

  def advise(descriptor, start, length, what):
    advice.append((os.readlink('/proc/self/fd/{}'.format(descriptor)), start, length, what))

  monkeypatch.setattr(os, 'posix_fadvise', advise)
  before = os.listdir('/proc/self/fd')
  input_rate.evict_from_page_cache([str(paths[0]), str(tmp_path / 'missing'), bytes(paths[1])])
  assert advice == [(str(path), 0, 0, os.POSIX_FADV_DONTNEED) for path in paths]
  assert len(os.listdir('/proc/self/fd')) == len(before)


@pytest.mark.parametrize('counters, expected', [
    (lambda: types.SimpleNamespace(read_bytes=4096), 4096),
    (mock.Mock(side_effect=psutil.AccessDenied), None),
    (mock.Mock(side_effect=FileNotFoundError), None),  # A kernel without task I/O accounting.
])
def test_bytes_that_the_kernel_gets_from_storage(monkeypatch, counters, expected):
  assert input_rate.bytes_read_from_storage() >= 0
  monkeypatch.setattr(psutil.Process, 'io_counters', lambda process: counters())
  assert input_rate.bytes_read_from_storage() == expected


BATCHING = Batching((10, 12, 3), 3, one_hot=False, examples_per_batch=4, shuffle_buffer=8,
                    num_parallel_calls=1)


@pytest.fixture
def split(tmp_path, write_images):
  paths = [tmp_path / 'data' / '{}.jpeg'.format(number) for number in range(8)]
  write_images({path: np.full((20, 25, 1), 9 * number, np.uint8)
                for number, path in enumerate(paths)})
  return ImageSplit([str(path).encode() for path in paths], np.arange(8, dtype=np.int32) % 3)


def dataset_of(split):
  return DataSet('any', ('a', 'b', 'c'), (10, 12, 3), split, None, ())


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


def stages_of(split, *given):
  dataset = DataSet('any', ('a', 'b'), (2, 2, 1))
  return factory.make_source(dataset, split).stage_input_fns(*given)


@pytest.mark.parametrize('stage, decodes, resizes', [
    ('read', False, False), ('decode', True, False), ('resize', True, True),
    ('batch', True, True)])
def test_stages_of_image_files_do_their_work(split, monkeypatch, stage, decodes, resizes):
  whole = factory.make_source(dataset_of(split), split).make_train_input_fn(BATCHING, 'none')
  input_fns = stages_of(split, BATCHING, False, whole)
  assert list(input_fns) == ['read', 'decode', 'resize', 'batch']
  assert input_fns['batch'] is whole
  counts = {'decode': 0, 'resize': 0}
  monkeypatch.setattr(images, 'are_all_grey', lambda contents: True)  # Decodes a sample.
  for name in counts:
    monkeypatch.setattr(images, name, counting(getattr(images, name), counts, name))
  with tf.Graph().as_default(), tf.Session() as session:
    following = tf.data.make_one_shot_iterator(input_fns[stage]().take(3)).get_next()
    for _ in range(3):
      session.run(following)
  for name, runs in (('decode', decodes), ('resize', resizes)):
    assert counts[name] >= 12 if runs else counts[name] == 0, name


def test_stages_of_idx_files(write_idx):
  split = IdxSplit(*write_idx(np.zeros((10, 10, 12)), np.arange(10)))
  batching = BATCHING._replace(image_shape=(10, 12, 1))
  input_fns = stages_of(split, batching, False, 'whole')
  assert list(input_fns) == ['read', 'batch', 'decode'] and input_fns['decode'] == 'whole'
  with tf.Graph().as_default(), tf.Session() as session:
    _, label = tf.data.make_one_shot_iterator(input_fns['read']()).get_next()
    # Each takes the reading of four.
    assert [session.run(label) for _ in range(3)] == [b'\3', b'\7', b'\1']
    images, labels = tf.data.make_one_shot_iterator(input_fns['batch']()).get_next()
    assert session.run(tf.shape(images)).tolist() == [4]


def test_what_is_cached_or_made_up_has_no_such_stages(split):
  assert stages_of(split, BATCHING, True, 'whole') == {'batch': 'whole'}
  for cached in (False, True):
    assert stages_of(SyntheticSplit(None), BATCHING, cached, 'whole') == {}


class Ticks:
  """A clock that goes on by a second at each look, so that a pass always takes three batches."""

  def __init__(self):
    self.now = 0.

  def __call__(self):
    self.now += 1
    return self.now


@pytest.mark.parametrize('cache, passes, names', [
    ('none', 3, ['read', 'decode', 'resize', 'batch']), ('memory', 1, ['batch']),
    ('folder', 1, ['batch'])])
def test_measure(split, tmp_path, monkeypatch, cache, passes, names):
  evicted = []
  monkeypatch.setattr(
      input_rate, 'evict_from_page_cache', lambda paths: evicted.append(list(paths)))
  folder = tmp_path / 'cache'
  settings = Settings(model_dir='any', train_steps=1, batch_size=4,
                      cache=str(folder) if cache == 'folder' else cache)
  measured = input_rate.measure(dataset_of(split), settings, True, 8, Ticks())
  assert len(measured.cold_passes) == len(evicted) == passes and len(measured.warm_passes) == 5
  assert list(measured.stage_passes) == names
  assert measured.stage_passes[names[-1]] == measured.warm_passes
  assert measured.cold_passes + measured.warm_passes == [(12, 3.)] * (passes + 5)
  assert measured.image_shape == (10, 12, 1)
  assert measured.pixels_dtype == ('float32' if cache == 'none' else 'uint8')
  sizes = [os.stat(path).st_size for path in split.files]
  assert measured.bytes_per_example == sum(sizes) / 8 and evicted[0] == split.files
  least = measured.bytes_per_example if cache == 'none' else min(sum(sizes) / 8, 10 * 12)
  assert measured.min_bytes_if_cold == sum(examples for examples, _ in measured.cold_passes) * least
  if cache == 'folder':
    input_rate.measure(dataset_of(split), settings, True, 8, Ticks())
    assert evicted[1][:8] == split.files and evicted[1][8:] == [
        str(path) for path in folder.glob('images-*.npy')] != []


def test_warm_passes_stay_with_what_the_cold_ones_read(split, monkeypatch):
  limits = []

  def take_batches(next_batch, batch_size, secs, max_batches, from_start, clock):
    limits.append((from_start, max_batches))
    return 20, 1.

  monkeypatch.setattr(input_rate, 'take_batches', take_batches)
  settings = Settings(model_dir='any', train_steps=1, batch_size=4)
  input_rate.measure(dataset_of(split), settings, True, num_examples=1000)
  assert limits[:3] == [(True, 250)] * 3  # An epoch: later ones would find the files in memory.
  assert set(limits[3:]) == {(False, 4)}  # Five batches, of which the first is not timed.
  del limits[:]
  input_rate.measure(dataset_of(split), settings, True, num_examples=18)
  assert limits[0] == (True, 5) and set(limits[3:]) == {(False, None)}


def test_prepare_secs_count_what_comes_before_the_first_example(split, monkeypatch):
  clock = Ticks()

  def make(*given):
    clock.now += 50
    return lambda: tf.data.Dataset.from_tensors((tf.zeros((4, 2, 2, 1)), 0)).repeat()

  monkeypatch.setattr(factory, 'make_train_input_fn_of', make)
  settings = Settings(model_dir='any', train_steps=1, batch_size=4, cache='memory')
  measured = input_rate.measure(dataset_of(split), settings, True, 8, clock)
  assert measured.prepare_secs == 51  # With the look at the clock itself.


def test_made_up_images():
  settings = Settings(model_dir='any', train_steps=1, batch_size=4)
  measured = input_rate.measure(dataset_of(SyntheticSplit(None)), settings, True, None, Ticks())
  assert measured.stage_passes == {} and len(measured.warm_passes) == 5
  assert measured.bytes_per_example is None and measured.min_bytes_if_cold == 0
  assert measured.image_shape == (10, 12, 3) and measured.pixels_dtype == 'uint8'
