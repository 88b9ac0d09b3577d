"""Cached images: the right ones, read once, and whole; see test_source_contract.py for order."""

import os
import threading
from concurrent import futures
from unittest import mock

import numpy as np
import pytest
from conftest import batches
from input_plans import plan

from estimator_train import ImageSplit
from estimator_train.data import DataSpec, cache as cache_lib, image_source
from estimator_train.data.image_source import ImageFileSource
from estimator_train.data.order import ExampleOrder, Shard
from estimator_train.data.source import translate_errors
from estimator_train.errors import UserError

PLAN = plan((20, 16, 3), 2, 3, num_parallel_calls=2)


@pytest.fixture
def split(image_folders):
  paths = sorted((image_folders / 'train').glob('*/*.jpeg'))
  return ImageSplit(list(map(bytes, paths)),
                    np.array([path.parent.name == 'B' for path in paths], np.int32))


@pytest.fixture
def folder(tmp_path):
  return tmp_path / 'cache'


@pytest.fixture(params=['memory', 'folder'])
def cache(request, folder):
  return 'memory' if request.param == 'memory' else str(folder)


def source_of(split):
  return ImageFileSource(DataSpec('any', ('a', 'b'), PLAN.pixels.image_shape), split)


def load(split, cache, plan=PLAN):
  return source_of(split).open_cache(*plan, str(cache)).read_all_images()


def uncached(split, plan=PLAN):
  found, _ = batches(source_of(split).make_eval_input_fn(*plan.evaluation))
  channels = max(pixels.shape[-1] for pixels, _ in found)
  return np.concatenate([np.broadcast_to(pixels, pixels.shape[:-1] + (channels,))
                         for pixels, _ in found])


@pytest.mark.parametrize('channels', [1, 3])
def test_every_pixel_value_is_rounded_ties_to_even(write_images, tmp_path, cache, channels):
  """Doubling the width of 0 to 255 interpolates all values k + 0.5."""
  path = tmp_path / 'all.png'
  values = np.arange(256, dtype=np.uint8)[np.newaxis, :, np.newaxis]
  write_images({path: np.broadcast_to(values, (2, 256, 1))})
  split = ImageSplit([bytes(path)] * 3, np.zeros(3, 'i4'))
  wide = PLAN.given(image_shape=(2, 512, channels))
  pixels = uncached(split, wide)
  assert {k + .5 for k in range(255)} <= set(pixels.ravel().tolist())
  cached = load(split, cache, wide)
  np.testing.assert_array_equal(cached, np.rint(pixels))
  assert cached.dtype == np.uint8


@pytest.mark.parametrize('sample_size, is_unexpected', [(1, True), (19, False)])
def test_a_color_image_among_gray_ones(split, cache, write_images, tmp_path, caplog, monkeypatch,
                                       sample_size, is_unexpected):
  caplog.set_level('INFO')
  monkeypatch.setattr(image_source, '_GRAY_SAMPLE_SIZE', sample_size)
  odd = tmp_path / 'odd.jpeg'
  write_images({odd: np.full((9, 9, 3), (250, 0, 9), np.uint8)})
  split = ImageSplit(split.files[:5] + [bytes(odd)] + split.files[5:], np.zeros(19, 'i4'))
  np.testing.assert_allclose(load(split, cache), uncached(split), atol=0.5001)
  assert ('not all images are gray' in caplog.text) == is_unexpected


def test_a_folder_is_filled_once_for_each_content(split, folder):
  """test_source_contract.py has files with other times of modification."""
  files, classes = split
  for number, (of_files, shape, appended) in enumerate((
      (files, (20, 16, 3), b''), (files, (16, 20, 3), b''), (files[1:], (20, 16, 3), b''),
      (files[::-1], (20, 16, 3), b''), (files, (20, 16, 3), b'\0')), 1):
    with open(files[0], 'ab') as file:
      file.write(appended)
    os.utime(files[0], ns=(1, 1))
    caches = []
    for _ in range(2):
      images = load(ImageSplit(of_files, classes), folder, PLAN.given(image_shape=shape))
      assert images.shape[:3] == (len(of_files),) + shape[:2]
      caches.append({path: path.stat().st_ino for path in folder.iterdir()})
    assert caches[0] == caches[1] and len(caches[0]) == number


def test_what_does_not_fit_is_foreseen(split, tmp_path, folder, monkeypatch):
  monkeypatch.setattr(cache_lib, 'available_bytes', lambda: 5000)
  monkeypatch.setattr(os, 'posix_fallocate', mock.Mock(
      side_effect=OSError(28, 'No space left on device')))
  size = 'for a uint8 array of shape 18x20x16x1 and 5.76 kB'
  (tmp_path / 'file').write_text('')
  for cache, message in (
      ('memory', 'does not fit into memory: --cache=memory {}, with 5.00 kB free: give --cache=F'),
      (folder, 'cannot be stored: --cache=.*cache {} .No space left on device.: give a writable'),
      (tmp_path / 'file' / 'below', 'cannot be stored: --cache=.*/file/below for ')):
    with pytest.raises(UserError, match=message.format(size)):
      load(split, cache)
  assert not list(folder.glob('*.npy'))


@pytest.mark.parametrize('shard', [Shard(), Shard(5, 2, 1, 3)], ids=str)
def test_the_first_batches_do_not_wait_for_the_last_images(split, cache, monkeypatch, shard):
  filled, resume = [], threading.Event()

  def update(unused_bar, count):  # After each batch; stops before the third one.
    filled.append(count)
    assert len(filled) != 2 or resume.wait(60)

  monkeypatch.setattr(cache_lib, '_FILL_BATCH_SIZE', 3)
  monkeypatch.setattr('estimator_train.system.progress.ProgressBar.update', update)
  images = source_of(split).open_cache(*PLAN.given(seed=3, shard=shard), cache)
  first, expected = ExampleOrder(18, 3, shard).compute_indices(0, 6), uncached(split)
  pixels, class_indices = images.read_examples(first)
  np.testing.assert_allclose(pixels, expected[first], atol=.5001)
  np.testing.assert_array_equal(class_indices, split.classes[first])
  with futures.ThreadPoolExecutor(1) as threads:
    every_image = threads.submit(images.read_all_images)
    with pytest.raises(futures.TimeoutError):
      every_image.result(.1)
    resume.set()
    np.testing.assert_allclose(every_image.result(60), expected, atol=.5001)


@pytest.mark.parametrize('fault, message', [
    ('image', 'an image cannot be decoded: .*damaged.jpeg'),
    # The disk reports its error after the last image.
    ('disk', 'the cache cannot be stored: --cache=.*Input/output error.: give')])
def test_an_error_after_the_first_batch(split, tmp_path, folder, monkeypatch, fault, message):
  monkeypatch.setattr(cache_lib, '_FILL_BATCH_SIZE', 3)
  if fault == 'image':
    (tmp_path / 'damaged.jpeg').write_bytes(b'text')
    split.files[PLAN.order.indices_by_first_use(18)[-1]] = bytes(tmp_path / 'damaged.jpeg')
  else:
    monkeypatch.setattr(os, 'fsync', mock.Mock(side_effect=OSError(5, 'Input/output error')))
  source = source_of(split)
  with pytest.raises(UserError, match=message), translate_errors(source):
    batches(source.make_train_input_fn(*PLAN, str(folder)), 10000)
  assert not list(folder.glob('*'))
