"""`--mode=input_benchmark`: end to end, what its passes count and time, and its advice."""

import json
import os
import time
import types
from unittest import mock

import numpy as np
import own_models
import pytest
import tensorflow.compat.v1 as tf
from conftest import contents_of
from mode_runs import fails, image_flags

from estimator_train.data import DataSet, ImageSplit, images
from estimator_train.data.run_data import make_source
from estimator_train.modes import input_benchmark
from estimator_train.modes.input_benchmark import measurement
from estimator_train.modes.input_benchmark.measurement import InputMeasurement
from estimator_train.settings import Settings
from estimator_train.training import building

KEYS = {'mode', 'cold_images_per_sec', 'warm_images_per_sec', 'model_images_per_sec', 'verdict',
        'verdict_ratio', 'advice', 'stages', 'spread', 'dataset', 'model', 'devices'}
SHORT = ['--mode=input_benchmark', '--batch_size=8', '--model=own_models:two_layers']


@pytest.fixture
def measure(run_well, monkeypatch):
  """Runs the mode with short passes; checks that the figures of its result are consistent."""
  for name, value in (('_COLD_PASS_SECS', 0.02), ('_WARM_PASS_SECS', 0.02),
                      ('_MIN_TIMED_SECS', 0.1), ('_MAX_WARMUP_SECS', 0.1)):
    monkeypatch.setattr(measurement, name, value)

  def run(*flags):
    done = run_well(*SHORT, *flags)
    result = done.result
    warm, model = result['warm_images_per_sec'], result['model_images_per_sec']
    assert result['verdict_ratio'] == pytest.approx(model / warm)
    assert min(result['cold_images_per_sec'], warm, model) > 0
    if result['stages']:
      assert sum(stage['share'] for stage in result['stages'].values()) == pytest.approx(1)
      assert list(result['stages'].values())[-1]['images_per_sec'] == warm
    return result, done.out

  return run


@pytest.fixture
def flags(image_folders):
  return image_flags(image_folders, '**/*.jpeg')[:2] + ['--image_size=16,20']


def test_image_folder(measure, flags, copied_run, tmp_path, monkeypatch):
  """The run of another model that is in model_dir is left alone, and nothing else is left.

  The model is measured on what the input delivers: float32, and uint8 from a cache.
  """
  make, shapes = building.make_preprocess_function, []
  monkeypatch.setattr(building, 'make_preprocess_function', lambda *given: lambda pixels: (
      shapes.append((pixels.shape.as_list(), pixels.dtype)) or make(*given)(pixels)))
  aside, cache = tmp_path / 'aside', tmp_path / 'cache'
  aside.mkdir()
  monkeypatch.setattr('tempfile.tempdir', str(aside))
  before = contents_of(copied_run)
  result, out = measure('--model_dir', copied_run, *flags)
  after = contents_of(copied_run)
  assert json.loads(after.pop('input_benchmark.json').decode()) == result
  assert after == before and os.listdir(str(aside)) == []
  assert set(result) >= KEYS and list(result['stages']) == ['read', 'decode', 'resize', 'batch']
  assert result['global_batch_size'] == 8 and result['devices'] == ['/cpu:0']
  assert result['model_shares_cores']
  assert result['num_parallel_calls'] == result['cores'] and result['cache'] == 'none'
  lines = out.splitlines()
  rows = {line.split()[0]: line.split()[1:] for line in lines[2:9]}
  assert list(rows) == ['read', 'decode', 'resize', 'batch', 'cold', 'warm', 'model']
  assert len(rows['read']) == 5 and rows['read'][2] == 'to' and rows['read'][4].endswith('%')
  assert len(rows['model']) == 4
  assert lines[-2] == result['advice']

  result, _ = measure('--cache={}'.format(cache), *flags)
  assert list(result['stages']) == ['batch']
  assert result['prepare_secs'] > 0 and result['cache'] == str(cache)
  assert len(list(cache.glob('images-*.npy'))) == 1
  assert shapes == [([8, 16, 20, 1], tf.float32), ([8, 16, 20, 1], tf.uint8)]


def test_verdicts_of_a_slow_input_and_of_a_slow_model(measure, flags, monkeypatch):
  """An image takes 5 ms to decode or to resize; a step of the model takes 50 ms."""
  def wait(tensor, secs):
    waited = tf.numpy_function(lambda value: time.sleep(secs) or value, [tensor], tensor.dtype)
    waited.set_shape(tensor.shape)
    return waited

  for stage in ('decode', 'resize'):
    with monkeypatch.context() as patch:
      make = getattr(images, stage)
      patch.setattr(images, stage, lambda *given, make=make: wait(make(*given), .005))
      patch.setattr(images, 'are_all_grey', lambda contents: True)  # Decodes a sample.
      result, _ = measure('--num_parallel_calls=1', *flags)
    assert result['verdict'] == 'input-bound' and result['verdict_ratio'] > 1
    assert result['stages'][stage]['share'] > .5 and result['warm_images_per_sec'] < 1 / .005
  monkeypatch.setattr(own_models.Wait, 'delay', types.SimpleNamespace(
      apply=lambda tensor: wait(tensor, .05)), raising=False)
  result, _ = measure('--model=own_models:slow')
  assert result['model_images_per_sec'] < 8 / .05
  assert result['verdict'] == 'compute-bound' and result['verdict_ratio'] < 1


def test_replicas_and_synthetic_images(measure):
  result, _ = measure('--cache=none', '--num_cpu_replicas=2')
  assert result['num_replicas'] == 2
  assert result['per_replica_batch_size'] == 4 and result['model_dir'] is None
  assert list(result['stages']) == ['read', 'batch', 'decode']
  result, _ = measure('--dataset=synthetic', '--image_size=12,12', '--train_epochs=3')
  assert result['stages'] == {}


def test_what_cannot_be_measured(measure, run_program, flags, image_folders, tmp_path):
  bad = image_folders / 'train' / 'A' / 'x.jpeg'
  bad.write_text('no image')
  model_dir = tmp_path / 'model'
  for extra, message in (
      (['--cache_features'], 'reads no images: --cache_features=True: omit it'),
      (['--batch_size=9', '--num_cpu_replicas=2'], '--batch_size=9 for 2 replicas: use 8 or 10'),
      (['--dataset=fashion_mnist'], '--data_dir is required'), (flags, str(bad))):
    assert fails(run_program(*SHORT, '--model_dir', model_dir, *extra), message)
    assert not model_dir.exists()
  measure('--on_bad_image=skip', '--max_bad_images=0.1', *flags)


class Clock:
  """A clock that advances by a second at each look, or by what is left to take."""

  def __init__(self, secs=()):
    self.now, self.left = 0., list(secs)

  def __call__(self):
    self.now += 1
    return self.now

  def take(self):
    self.now += self.left.pop(0)


def test_batches_of_a_pass(monkeypatch):
  for skip, secs, max_batches, batches, taken in (
      (True, 2.5, None, 3, 3.),  # 1 + 1 + 1: over the time after the third.
      (False, 2.5, None, 3, 9.),  # The first one is over the time already, and three are taken.
      (True, 3.5, None, 4, 5.), (True, 100., 4, 4, 5.), (False, 10., None, 4, 10.),
      (True, 0., 1, 3, 3.)):  # One would say too little.
    clock, restart = Clock([7, 1, 1, 1, 2, 2, 2]), mock.Mock()
    monkeypatch.setattr(measurement, 'clock', lambda clock=clock: clock.now)
    pipeline = measurement._Pipeline(restart, clock.take, None)
    assert pipeline.run_pass(8, secs, max_batches, skip) == (batches * 8, taken)
    assert 7 - len(clock.left) == batches + skip and restart.call_count == 2


@pytest.fixture
def split(tmp_path, write_images):
  paths = [tmp_path / 'data' / '{}.jpeg'.format(number) for number in range(8)]
  write_images({path: np.full((20, 25, 1), 9 * number, np.uint8)
                for number, path in enumerate(paths)})
  return ImageSplit([str(path).encode() for path in paths], np.arange(8, dtype=np.int32) % 3)


def test_measurements_of_image_files(split, tmp_path, monkeypatch):
  """With a second for each batch: five batches of the cold pass, ten of warm ones."""
  evicted, folder = [], tmp_path / 'cache'
  for name, value in (('clock', Clock()), ('_COLD_PASS_SECS', 5), ('_WARM_PASS_SECS', 10),
                      ('_evict', lambda paths: evicted.append(list(paths)))):
    monkeypatch.setattr(measurement, name, value)
  for cache, count, is_cached, cold, warm in (
      # Warm: what the cold pass has read, of five batches four, as the first is not timed.
      ('none', 80, False, 5, 4),
      # Cold: an epoch, as later ones would find the files in memory. With a cache, a whole one.
      ('none', 13, False, 4, 10), ('memory', 80, True, 20, 10), (folder, 8, True, 3, 10)):
    del evicted[:]
    settings = Settings(model_dir='any', train_steps=1, batch_size=4, cache=str(cache))
    source = make_source(DataSet('any', ('a', 'b', 'c'), (10, 12, 3), split, None, ()), split)
    source.num_examples = count
    measured = measurement.measure_input(types.SimpleNamespace(
        settings=settings, data=types.SimpleNamespace(train=source)), True)
    assert measured.cold_pass == (4 * cold, cold) and len(evicted) == 1
    assert measured.warm_passes == [(4 * warm, warm)] * 5
    assert list(measured.stage_passes) == ['read', 'decode', 'resize', 'batch'][-1 if is_cached
                                                                               else -4:]
    assert measured.stage_passes['batch'] == measured.warm_passes
    assert measured.image_shape == (10, 12, 1) and evicted[0][:8] == split.files
    assert measured.pixels_dtype == ('float32' if cache == 'none' else 'uint8')
    assert measured.prepare_secs == 1  # From one look at the clock to the next.
  # In the first run with this cache, which has not been there before it.
  assert evicted == [split.files] and len(list(folder.glob('images-*.npy'))) == 1


def test_steps_of_a_model_that_count(monkeypatch):
  monkeypatch.setattr(measurement, '_MAX_SEGMENTS', 2)
  for warmup_steps, step_secs, end_times, segments in (
      (3, [9, 1, 1] + [1] * 50, [11, 12, 13, 14, 15], [(16, 2), (16, 2)]),
      (10, [30, 4, 4] + [4] * 50, [38, 42, 46, 50], [(8, 4), (16, 8)]),  # By time.
      (0, [30] + [2] * 50, [30, 32, 34, 36], [(8, 2), (16, 4)])):  # The first step never counts.
    clock, context = Clock(step_secs), mock.Mock()
    monkeypatch.setattr(measurement, 'clock', lambda clock=clock: clock.now)
    timer = measurement.RateTimer(warmup_steps)
    while not context.request_stop.called:
      clock.take()
      timer.after_run(context, None)
    assert list(timer.end_times) == end_times
    assert timer.split_into_segments(batch_size=8) == segments


SETTINGS = Settings(mode='input_benchmark', batch_size=8, cache='none')


def at(*rates):
  """Returns passes at these rates, of different lengths."""
  return [(rate * secs, secs) for secs, rate in enumerate(rates, 1)]


FILES = InputMeasurement(
    format_name='image_files', num_examples=1000, prepare_secs=0., cold_pass=(50, 1),
    warm_passes=at(100, 300, 200), stage_passes={}, image_shape=(500, 1000, 1),
    pixels_dtype='uint8')


def summarize(measured=FILES, model=(50,)):
  return input_benchmark.summarize(measured, at(*model))


def test_rates_spread_and_stages():
  result = summarize(model=[90, 70, 80, 10, 99])
  for name, rate in (('cold', 50), ('warm', 200), ('model', 80)):
    assert result[name + '_images_per_sec'] == pytest.approx(rate)
  assert result['spread']['model'] == {'median': 80, 'min': 10, 'max': 99, 'passes': 5}
  # Making the input counts as cold, where there is an epoch.
  filled = FILES._replace(prepare_secs=15., cold_pass=(200, 1))
  assert summarize(filled)['cold_images_per_sec'] == pytest.approx(
      1000 / (15 + 1000 / 200))
  assert summarize(filled._replace(num_examples=None))[
      'cold_images_per_sec'] == 200
  stages = summarize(FILES._replace(stage_passes={
      'read': at(1000, 900, 1100), 'decode': at(250), 'resize': at(260), 'batch': at(200)}))[
          'stages']
  assert {name: stage['share'] for name, stage in stages.items()} == pytest.approx(
      {'read': 0.2, 'decode': 0.6, 'resize': 0, 'batch': 0.2})
  assert stages['read']['images_per_sec'] == 1000 and stages['read']['max'] == 1100
  assert stages['resize']['images_per_sec'] == 260


def test_verdict_and_advice():
  for model, on_cpu, is_pretrained, verdict, *texts in (
      (500, False, False, 'input-bound', 'input-bound: the model can process 500 images/sec, 2.50 '
       'times the rate of the input (200); INPUT'),
      (50, False, True, 'compute-bound', 'compute-bound: the input delivers 200 images/sec, 4.00 '
       'times the rate of the model (50.0); a faster input would not help; to speed up the model, '
       'try a larger --batch_size or more GPUs or --cache_features if the first layers are frozen'),
      (200, True, False, 'compute-bound', '1.00 times', 'the same cores, so training reaches about '
       '100 images/sec and the input takes 50% of the time',
       'to reduce the time of the input: INPUT', '--batch_size or a GPU'),
      (2, True, False, 'compute-bound', 'takes 1% of the time', 'a faster input would not help')):
    result = summarize(model=[model])
    advice = input_benchmark.make_advice(result, 'INPUT', on_cpu, is_pretrained)
    assert result['verdict'] == verdict and all(text in advice for text in texts)
    assert ('same cores' in advice) == on_cpu
  fits, other = '--cache=memory (needs 0.5 GB, 1 GB of memory are free)', {'num_examples': 4000}
  for change, flags, expected in (
      ({}, {'num_parallel_calls': 4}, 'set ' + fits),
      ({'num_examples': 2000}, {}, 'set --cache=memory (needs 1 GB, 1 GB of memory are free)'),
      ({}, {'num_parallel_calls': 3},
       'set --num_parallel_calls=0 (one per core, 4, instead of 3) and ' + fits),
      (other, {}, 'set --cache=FOLDER (needs 2 GB, 1 GB of memory are free)'),
      ({}, {'cache': 'memory', 'num_parallel_calls': 1},
       'the input is already cached, and no flag makes it faster'),
      ({'format_name': 'idx_files'}, {'num_parallel_calls': 1}, 'set ' + fits),
      (dict(other, format_name='idx_files'), {}, 'no flag helps: the cache does not fit '
       'into memory (needs 2 GB, 1 GB of memory are free)'),
      ({'format_name': 'synthetic', 'num_examples': None}, {},
       'synthetic images cost almost nothing, and no flag makes them faster')):
    assert expected == input_benchmark.make_input_advice(
        SETTINGS.evolve(**flags).input, FILES._replace(**change), 4, 10 ** 9)
