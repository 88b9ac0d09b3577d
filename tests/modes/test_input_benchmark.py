"""`--mode=input_benchmark`: end to end, what its passes count and time, and its advice."""

import itertools
import json
import os
import time
import types
from unittest import mock

import own_models
import pytest
import tensorflow.compat.v1 as tf
from conftest import contents_of
from mode_runs import fails, image_flags, measure_shortly

from estimator_train.data import decoding
from estimator_train.model import compiling
from estimator_train.modes import input_benchmark
from estimator_train.modes.input_benchmark import measurement
from estimator_train.modes.input_benchmark.measurement import InputMeasurement
from estimator_train.run_dir import RunDir
from estimator_train.settings import Settings, command_line
from estimator_train.training.run import open_run

SHORT = ['--mode=input_benchmark', '--batch_size=8', '--model=own_models:two_layers']


@pytest.fixture
def measure(run_well, monkeypatch):
  """Runs the mode with short passes; checks that the figures of its result are consistent."""
  measure_shortly(monkeypatch)

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
  make, shapes = compiling.make_preprocess_function, []
  monkeypatch.setattr(compiling, 'make_preprocess_function', lambda *given: lambda pixels: (
      shapes.append((pixels.shape.as_list(), pixels.dtype)) or make(*given)(pixels)))
  aside, cache = tmp_path / 'aside', tmp_path / 'cache'
  aside.mkdir()
  monkeypatch.setattr('tempfile.tempdir', str(aside))
  before = contents_of(copied_run)
  result, out = measure('--model_dir', copied_run, *flags)
  after = contents_of(copied_run)
  assert json.loads(after.pop('input_benchmark.json').decode()) == result
  assert after == before and os.listdir(str(aside)) == []
  assert list(result['stages']) == ['read', 'decode', 'resize', 'batch']
  assert result['mode'] == 'input_benchmark' and result['global_batch_size'] == 8
  assert result['devices'] == ['/cpu:0'] and result['model_shares_cores']
  assert result['num_parallel_calls'] == result['cores'] and result['cache'] == 'none'
  _, _, *rows, advice, _ = map(str.split, out.splitlines())
  assert [(row[0], len(row)) for row in rows] == [
      ('read', 7), ('decode', 7), ('resize', 7), ('batch', 7), ('cold', 5), ('warm', 5),
      ('model', 5)]
  assert rows[0][3] == 'to' and rows[0][6] == '%' and advice == result['advice'].split()

  result, _ = measure('--cache={}'.format(cache), *flags)
  assert list(result['stages']) == ['batch']
  assert result['prepare_secs'] > 0 and result['cache'] == str(cache)
  assert len(list(cache.glob('images-*.npy'))) == 1
  assert shapes == [([8, 16, 20, 1], tf.float32), ([8, 16, 20, 1], tf.uint8)]


def test_verdicts_of_a_slow_input_and_of_a_slow_model(measure, flags, monkeypatch):
  """An image takes 10 ms to decode or to resize; a step of the model takes 100 ms."""
  def wait(tensor, secs):
    waited = tf.numpy_function(lambda value: time.sleep(secs) or value, [tensor], tensor.dtype)
    waited.set_shape(tensor.shape)
    return waited

  for stage in ('decode', 'resize'):
    with monkeypatch.context() as patch:
      make = getattr(decoding, stage)
      patch.setattr(decoding, stage, lambda *given, make=make: wait(make(*given), .01))
      patch.setattr(decoding, 'are_all_gray', lambda contents: True)  # Decodes a sample.
      result, _ = measure('--num_parallel_calls=1', *flags)
    assert result['verdict'] == 'input-bound' and result['verdict_ratio'] > 1
    assert result['stages'][stage]['share'] > .5 and result['warm_images_per_sec'] < 1 / .01
  monkeypatch.setattr(own_models.Wait, 'delay', types.SimpleNamespace(
      apply=lambda tensor: wait(tensor, .1)), raising=False)
  result, _ = measure('--model=own_models:slow')
  assert result['model_images_per_sec'] < 8 / .1
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
      (['--cache_features'], 'reads no images: --cache_features=true: omit it'),
      (['--dataset=fashion_mnist'], '--data_dir is required'), (flags, str(bad))):
    assert fails(run_program(*SHORT, '--model_dir', model_dir, *extra), message)
    assert not model_dir.exists()
  measure('--on_bad_image=skip', '--max_bad_images=0.1', *flags)


@pytest.mark.parametrize('cache, num_examples, cold, warm', [
    # Warm: what the cold pass has read, of five batches four, as the first is not timed.
    ('none', 80, 5, 4),
    # Cold: an epoch, as later ones would find the files in memory. With a cache, a whole one.
    ('none', 13, 4, 10), ('memory', 80, 20, 10), ('disk', 80, 20, 10),
    ('memory', 8, 3, 10)])  # Two batches would be too few.
def test_batches_of_the_passes(flags, tmp_path, monkeypatch, cache, num_examples, cold, warm):
  """With a second for each batch: five batches of the cold pass, ten of warm ones."""
  evicted, cached = [], tmp_path / 'disk' / 'images-0.npy'
  cached.parent.mkdir()
  cached.touch()
  for name, value in (('clock', itertools.count(1.).__next__), ('_COLD_PASS_SECS', 5),
                      ('_WARM_PASS_SECS', 10)):
    monkeypatch.setattr(measurement, name, value)
  monkeypatch.setattr(measurement.storage, 'advise_kernel', lambda files, advice: (
      evicted.extend(files if advice == os.POSIX_FADV_DONTNEED else [])))
  run = open_run(command_line.parse([
      *flags, '--mode=train', '--train_steps=1', '--batch_size=4',
      '--cache={}'.format(cached.parent if cache == 'disk' else cache),
      '--model_dir={}'.format(tmp_path / 'model')]), RunDir(str(tmp_path / 'model')))
  run.data.train.num_examples = num_examples
  measured = measurement.measure_input(run, one_hot=True)
  passes, stages = [(4 * warm, warm)] * 5, ['read', 'decode', 'resize', 'batch']
  assert measured == InputMeasurement(
      format_name='image_files', num_examples=num_examples, prepare_secs=1,
      cold_pass=(4 * cold, cold), warm_passes=passes,
      stage_passes=dict.fromkeys(stages if cache == 'none' else ['batch'], passes),
      image_shape=(16, 20, 1), pixels_dtype='float32' if cache == 'none' else 'uint8')
  assert list(measured.stage_passes)[-1] == 'batch'
  assert evicted == run.data.train.list_files() + [str(cached)] * (cache == 'disk')


def test_the_first_batch_of_a_warm_pass_is_not_timed(monkeypatch):
  monkeypatch.setattr(measurement, 'clock', iter([0, 7, 8, 9, 10]).__next__)
  pipeline = measurement._Pipeline(restart=mock.Mock(), read_batch=mock.Mock(), read_pixels=None)
  assert pipeline.run_pass(8, 2.5, None, skip_first_batch=True) == (3 * 8, 3)
  assert pipeline.read_batch.call_count == 4 and pipeline.restart.call_count == 2


@pytest.mark.parametrize('warmup_steps, times, segments', [
    (3, [9, 10, 11, 12, 13, 14, 15], [(16, 2), (16, 2)]),
    (10, [30, 34, 38, 42, 46, 50], [(8, 4), (16, 8)]),  # By time.
    (0, [30, 32, 34, 36], [(8, 2), (16, 4)])])  # The first step never counts.
def test_steps_of_a_model_that_count(monkeypatch, warmup_steps, times, segments):
  monkeypatch.setattr(measurement, '_MAX_SEGMENTS', 2)
  monkeypatch.setattr(measurement, 'clock', iter(times).__next__)
  timer, context = measurement.RateTimer(warmup_steps), mock.Mock()
  for _ in times:
    assert not context.request_stop.called
    timer.after_run(context, None)
  assert context.request_stop.called and timer.split_into_segments(batch_size=8) == segments


def at(*rates):
  """Returns passes at these rates, of different lengths."""
  return [(rate * secs, secs) for secs, rate in enumerate(rates, 1)]


FILES = InputMeasurement(
    format_name='image_files', num_examples=2000, prepare_secs=15., cold_pass=(200, 1),
    warm_passes=at(100, 300, 200), stage_passes={
        'read': at(1000, 900, 1100), 'decode': at(250), 'resize': at(260), 'batch': at(200)},
    image_shape=(500, 1000, 1), pixels_dtype='uint8')


def test_rates_spread_and_stages():
  result = input_benchmark.compute_rates(FILES, at(90, 70, 85, 10, 99))
  # Making the input counts as cold, where there is an epoch: 15 s, and 10 s for the images.
  assert [result[name + '_images_per_sec'] for name in ('cold', 'warm', 'model')] == [80, 200, 85]
  assert result['spread']['model'] == {'median': 85, 'min': 10, 'max': 99, 'passes': 5}
  infinite = input_benchmark.compute_rates(FILES._replace(num_examples=None), at(50))
  assert infinite['cold_images_per_sec'] == 200
  stages = result['stages']
  assert {name: stage['share'] for name, stage in stages.items()} == pytest.approx(
      {'read': 0.2, 'decode': 0.6, 'resize': 0, 'batch': 0.2})
  assert stages['read']['images_per_sec'] == 1000 and stages['read']['max'] == 1100
  assert stages['resize']['images_per_sec'] == 260


@pytest.mark.parametrize('model, on_cpu, is_pretrained, texts', [
    (500, False, False, ['input-bound: the model can process 500 images/sec, 2.50 times the rate '
                         'of the input (200); INPUT']),
    (50, False, True, ['compute-bound: the input delivers 200 images/sec, 4 times the rate of '
                       'the model (50); a faster input would not help; to speed up the model, '
                       'try a larger --batch_size or more GPUs or --cache_features if the first']),
    (200, True, False, ['compute-bound', 'the same cores, so training reaches about 100 images/sec '
                        'and the input takes 50.0 % of the time; to reduce the time of the input: '
                        'INPUT', '--batch_size or a GPU']),
    (2, True, False, ['takes 0.99 % of the time; a faster input would not help'])])
def test_advice(model, on_cpu, is_pretrained, texts):
  rates = input_benchmark.compute_rates(FILES, at(model))
  advice = input_benchmark.make_advice(rates, 'INPUT', on_cpu, is_pretrained)
  assert all(text in advice for text in texts) and ('same cores' in advice) == on_cpu


FITS, OTHER = '--cache=memory (needs 1.00 GB, 1.00 GB of memory are free)', {'num_examples': 4000}


@pytest.mark.parametrize('change, calls, cache, expected', [
    ({}, 4, 'none', 'set ' + FITS),
    ({}, 3, 'none', 'set --num_parallel_calls=0 (one per core, 4, instead of 3) and ' + FITS),
    (OTHER, 0, 'none', 'set --cache=FOLDER (needs 2.00 GB, 1.00 GB of memory are free)'),
    ({}, 1, 'memory', 'the input is already cached, and no flag makes it faster'),
    ({'format_name': 'idx_files'}, 1, 'none', 'set ' + FITS),
    (dict(OTHER, format_name='idx_files'), 0, 'none', 'no flag helps: the cache does not fit into '
     'memory (needs 2.00 GB, 1.00 GB of memory are free)'),
    ({'format_name': 'synthetic', 'num_examples': None}, 0, 'none',
     'synthetic images cost almost nothing, and no flag makes them faster')])
def test_advice_on_the_input(change, calls, cache, expected):
  settings = Settings(mode='input_benchmark', cache=cache, num_parallel_calls=calls)
  assert expected == input_benchmark.make_input_advice(
      settings.input, FILES._replace(**change), cores=4, free_bytes=10 ** 9)
