"""`--mode=input_benchmark`, end to end."""

import json
import os

import pytest
import tensorflow.compat.v1 as tf
from mode_runs import fails, image_flags

from estimator_train.benchmarking import input_rate, model_rate
from estimator_train.training import building

KEYS = {'mode', 'cold_images_per_sec', 'warm_images_per_sec', 'model_images_per_sec', 'verdict',
        'verdict_ratio', 'advice', 'stages', 'expected_images_per_sec', 'spread',
        'cold_mb_per_sec', 'warm_mb_per_sec', 'cold_is_from_storage', 'dataset', 'model', 'devices'}


@pytest.fixture
def measure(run_program, monkeypatch):
  """Runs the mode with short passes; checks that the figures of its result are consistent."""
  for module, name, value in (
      (input_rate, '_COLD_PASS_SECS', 0.02), (input_rate, '_WARM_PASS_SECS', 0.02),
      (model_rate, '_MIN_TIMED_SECS', 0.1), (model_rate, '_MAX_WARMUP_SECS', 0.1)):
    monkeypatch.setattr(module, name, value)

  def run(*flags):
    done = run_program('--mode=input_benchmark', '--batch_size=8', '--model=own_models:two_layers',
                       *flags)
    if done.code:
      return done, None
    result = done.result
    warm, model = result['warm_images_per_sec'], result['model_images_per_sec']
    assert result['verdict_ratio'] == pytest.approx(model / warm)
    assert result['verdict'] == ('input-bound' if model > warm else 'compute-bound')
    assert result['advice'].startswith(result['verdict'])
    assert min(result['cold_images_per_sec'], warm, model) > 0
    if result['stages']:
      assert sum(stage['share'] for stage in result['stages'].values()) == pytest.approx(1)
      assert list(result['stages'].values())[-1]['images_per_sec'] == warm
    return done, result

  return run


@pytest.fixture
def flags(image_folders):
  return image_flags(image_folders, '**/*.jpeg')[:2] + ['--image_size=16,20']


def contents(folder):
  return {str(path.relative_to(folder)): path.read_bytes()
          for path in folder.rglob('*') if path.is_file()}


def test_image_folder(measure, flags, copied_run, tmp_path, monkeypatch):
  """The run of another model that is in model_dir is left alone, and nothing else is left.

  The model is measured on what the input delivers: float32, and uint8 from a cache.
  """
  make, shapes = building.make_preprocess, []
  monkeypatch.setattr(building, 'make_preprocess', lambda *given: lambda pixels: (
      shapes.append((pixels.shape.as_list(), pixels.dtype)) or make(*given)(pixels)))
  aside, cache = tmp_path / 'aside', tmp_path / 'cache'
  aside.mkdir()
  monkeypatch.setattr('tempfile.tempdir', str(aside))
  before = contents(copied_run)
  done, result = measure('--model_dir', copied_run, *flags)
  assert done.code == 0, done.err
  after = contents(copied_run)
  assert json.loads(after.pop('input_benchmark.json').decode()) == result
  assert after == before and os.listdir(str(aside)) == []
  assert set(result) >= KEYS and list(result['stages']) == ['read', 'decode', 'resize', 'batch']
  assert result['global_batch_size'] == 8 and result['devices'] == ['/cpu:0']
  assert result['model_shares_cores'] and result['cold_mb_per_sec'] > 0
  assert done.out.splitlines()[-2] == result['advice']

  done, result = measure('--cache={}'.format(cache), *flags)
  assert done.code == 0 and list(result['stages']) == ['batch'], done.err
  assert result['prepare_secs'] > 0 and result['cache'] == str(cache)
  assert len(list(cache.glob('images-*.npy'))) == 1
  assert shapes == [([8, 16, 20, 1], tf.float32), ([8, 16, 20, 1], tf.uint8)]


def test_replicas(measure):
  done, result = measure('--cache=none', '--num_cpu_replicas=2')
  assert done.code == 0 and result['num_replicas'] == 2, done.err
  assert result['per_replica_batch_size'] == 4 and result['model_dir'] is None
  assert list(result['stages']) == ['read', 'batch', 'decode']


def test_synthetic(measure):
  done, result = measure('--dataset=synthetic', '--image_size=12,12', '--train_epochs=3')
  assert done.code == 0 and result['stages'] == {}, done.err
  assert result['warm_mb_per_sec'] is None and result['cold_is_from_storage'] is None


def test_what_cannot_be_measured(measure, flags, image_folders, tmp_path):
  bad = image_folders / 'train' / 'A' / 'x.jpeg'
  bad.write_text('no image')
  model_dir = tmp_path / 'model'
  for extra, message in (
      (['--cache_features'], 'reads no images: --cache_features: omit it'),
      (['--batch_size=9', '--num_cpu_replicas=2'], '--batch_size=9 for 2 replicas: use 8 or 10'),
      (['--dataset=fashion_mnist'], '--data_dir is required'), (flags, str(bad))):
    assert fails(measure('--model_dir', model_dir, *extra)[0], message)
    assert not model_dir.exists()
  done, _ = measure('--on_bad_image=skip', '--max_bad_images=0.1', *flags)
  assert done.code == 0, done.err
