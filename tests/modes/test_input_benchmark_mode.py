"""`--mode=input_benchmark`, end to end, also with an input or a model known to be slow."""

import json
import os
import time

import pytest
import tensorflow.compat.v1 as tf

from estimator_train.benchmarking import input_rate, model_rate
from estimator_train.inputs import factory
from estimator_train.training import building

KEYS = {'mode', 'cold_images_per_sec', 'warm_images_per_sec', 'model_images_per_sec', 'verdict',
        'verdict_ratio', 'advice', 'stages', 'expected_images_per_sec', 'spread',
        'cold_mb_per_sec', 'warm_mb_per_sec', 'cold_is_from_storage', 'dataset', 'model', 'devices'}
# Long enough to outweigh everything else on a slow and busy machine.
DELAY = 0.2
COMMON = ('--mode=input_benchmark', '--batch_size=8', '--model=own_models:two_layers')


@pytest.fixture(autouse=True)
def short(monkeypatch):
  for module, name, value in (
      (input_rate, '_COLD_PASS_SECS', 0.02), (input_rate, '_WARM_PASS_SECS', 0.02),
      (model_rate, '_MIN_TIMED_SECS', 0.1), (model_rate, '_MAX_WARMUP_SECS', 0.1)):
    monkeypatch.setattr(module, name, value)


def is_consistent(result):
  warm, model = result['warm_images_per_sec'], result['model_images_per_sec']
  assert result['verdict_ratio'] == pytest.approx(model / warm)
  assert result['verdict'] == ('input-bound' if model > warm else 'compute-bound')
  assert result['advice'].startswith(result['verdict'])
  assert min(result['cold_images_per_sec'], warm, model) > 0
  if result['stages']:
    assert sum(stage['share'] for stage in result['stages'].values()) == pytest.approx(1)
    assert list(result['stages'].values())[-1]['images_per_sec'] == warm
  return True


def contents(folder):
  return {str(path.relative_to(folder)): path.read_bytes()
          for path in folder.rglob('*') if path.is_file()}


@pytest.fixture
def flags(image_folders):
  return [*COMMON, '--dataset=image_folder', '--image_size=16,20',
          '--train_pattern={}/train/**/*.jpeg'.format(image_folders)]


def test_image_folder(run_program, flags, tmp_path, monkeypatch):
  """The run of another model that is in model_dir is left alone, and nothing else is left."""
  aside, model_dir = tmp_path / 'aside', tmp_path / 'model'
  aside.mkdir()
  monkeypatch.setattr('tempfile.tempdir', str(aside))
  trained = run_program('--mode=train', '--train_steps=1', '--batch_size=8',
                        '--model_dir', model_dir)
  assert trained.code == 0, trained.err
  before = contents(model_dir)
  done = run_program('--model_dir', model_dir, *flags)
  assert done.code == 0, done.err
  after = contents(model_dir)
  assert json.loads(after.pop('input_benchmark.json').decode()) == done.result
  assert after == before and os.listdir(str(aside)) == []
  assert set(done.result) >= KEYS and is_consistent(done.result)
  assert list(done.result['stages']) == ['read', 'decode', 'resize', 'batch']
  assert done.result['global_batch_size'] == 8 and done.result['devices'] == ['/cpu:0']
  assert done.result['model_shares_cores'] and done.result['cold_mb_per_sec'] > 0
  assert done.out.splitlines()[-2] == done.result['advice']


@pytest.mark.parametrize('cache', ['memory', 'folder'])
def test_with_a_cache(run_program, flags, tmp_path, cache):
  given = tmp_path / 'cache' if cache == 'folder' else cache
  done = run_program('--cache={}'.format(given), *flags)
  assert done.code == 0, done.err
  assert list(done.result['stages']) == ['batch'] and is_consistent(done.result)
  assert done.result['prepare_secs'] > 0 and done.result['cache'] == str(given)
  if cache == 'folder':
    assert len(list(given.glob('images-*.npy'))) == 1


def test_replicas(run_program):
  done = run_program(*COMMON, '--num_cpu_replicas=2', '--cache=none')
  assert done.code == 0, done.err
  assert done.result['num_replicas'] == 2 and done.result['per_replica_batch_size'] == 4
  assert done.result['dataset'] == 'fashion_mnist_sample' and done.result['model_dir'] is None
  assert list(done.result['stages']) == ['read', 'batch', 'decode']
  assert is_consistent(done.result)


def test_small_files_are_held_in_memory(run_program):
  done = run_program(*COMMON)
  assert done.code == 0, done.err
  assert done.result['cache'] == 'memory' and list(done.result['stages']) == ['batch']
  assert is_consistent(done.result)


def test_synthetic(run_program):
  done = run_program(*COMMON, '--dataset=synthetic', '--image_size=12,12', '--train_epochs=3')
  assert done.code == 0, done.err
  assert done.result['stages'] == {} and done.result['warm_mb_per_sec'] is None
  assert done.result['cold_is_from_storage'] is None and is_consistent(done.result)


def slow(*tensors):
  """Returns the tensors, DELAY seconds later."""
  def wait(*arrays):
    time.sleep(DELAY)
    return arrays

  passed = tf.numpy_function(wait, tensors, [tensor.dtype for tensor in tensors])
  for tensor, later in zip(tensors, passed):
    later.set_shape(tensor.shape)
  return passed


def test_a_slow_input(run_program, monkeypatch):
  whole = factory.make_train_input_fn_of
  # A step of the model takes a few ms.
  monkeypatch.setattr(factory, 'make_train_input_fn_of',
                      lambda *given: lambda: whole(*given)().map(
                          tf.autograph.experimental.do_not_convert(slow)))
  done = run_program(*COMMON, '--cache=none')
  assert done.code == 0, done.err
  assert done.result['verdict'] == 'input-bound' and is_consistent(done.result)
  assert done.result['warm_images_per_sec'] <= 8 / DELAY
  assert done.result['cold_images_per_sec'] <= 8 / DELAY
  assert done.result['stages']['decode']['share'] > 0.5


def test_a_slow_model(run_program, monkeypatch):
  def make_preprocess(*given):
    return lambda pixels: slow(make(*given)(pixels))[0]

  make = building.make_preprocess
  monkeypatch.setattr(building, 'make_preprocess', make_preprocess)
  done = run_program(*COMMON)
  assert done.code == 0, done.err
  assert done.result['verdict'] == 'compute-bound' and is_consistent(done.result)
  assert done.result['model_images_per_sec'] <= 8 / DELAY


def test_the_model_is_measured_on_what_the_input_delivers(run_program, flags, monkeypatch):
  seen = []
  make = building.make_preprocess

  def make_preprocess(*given):
    def preprocess(pixels):
      seen.append((pixels.shape.as_list(), pixels.dtype))
      return make(*given)(pixels)
    return preprocess

  monkeypatch.setattr(building, 'make_preprocess', make_preprocess)
  assert run_program(*flags).code == 0
  assert run_program('--cache=memory', *flags).code == 0
  assert seen == [([8, 16, 20, 1], tf.float32), ([8, 16, 20, 1], tf.uint8)]


@pytest.mark.parametrize('extra, message', [
    (['--cache_features'], 'reads no images: --cache_features: omit it'),
    (['--batch_size=9', '--num_cpu_replicas=2'], '--batch_size=9 for 2 replicas: use 8 or 10'),
    (['--dataset=fashion_mnist'], '--data_dir is required'),
])
def test_what_cannot_be_measured(run_program, tmp_path, extra, message):
  done = run_program(*COMMON, '--model_dir', tmp_path, *extra)
  assert done.code == 2 and done.out == ''
  assert message in done.err.splitlines()[-1] and list(tmp_path.iterdir()) == []


def test_a_bad_image_is_named(run_program, flags, image_folders, tmp_path):
  bad = image_folders / 'train' / 'A' / 'x.jpeg'
  bad.write_text('no image')
  done = run_program('--model_dir', tmp_path / 'model', *flags)
  assert done.code == 2 and str(bad) in done.err.splitlines()[-1]
  assert not (tmp_path / 'model').exists()
  skipped = run_program('--on_bad_image=skip', '--max_bad_images=0.1', *flags)
  assert skipped.code == 0, skipped.err
