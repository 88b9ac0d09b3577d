"""Cached images: the right ones, read once, and whole; see test_source_contract.py for order."""

import contextlib
import os
import threading
from unittest import mock

import numpy as np
import pytest
from conftest import batches

from estimator_train.data import (
  DataSet,
  ImageSplit,
  arrays,
  image_cache,
  image_source,
  source as source_lib,
)
from estimator_train.data.batching import Batching, indices_by_first_use
from estimator_train.data.image_source import ImageFileSource
from estimator_train.data.sharding import ExampleOrder, Shard
from estimator_train.errors import UserError

BATCHING = Batching((20, 16, 3), 2, one_hot=False, examples_per_batch=3, num_parallel_calls=2)


@pytest.fixture
def split(image_folders):
  paths = sorted((image_folders / 'train').glob('*/*.jpeg'))
  return ImageSplit([str(path).encode() for path in paths],
                    np.array([path.parent.name == 'B' for path in paths], np.int32))


@pytest.fixture
def filled(monkeypatch):
  """The shapes of the arrays that a cache is filled into."""
  calls, fill = [], image_cache._CacheFiller._fill
  monkeypatch.setattr(image_cache._CacheFiller, '_fill',
                      lambda self, array: calls.append(array.shape) or fill(self, array))
  return calls


@pytest.fixture
def folder(tmp_path):
  return tmp_path / 'cache'


@pytest.fixture(params=['memory', 'folder'])
def cache(request, folder):
  return 'memory' if request.param == 'memory' else str(folder)


def source_of(split):
  return ImageFileSource(DataSet('any', ('a', 'b'), BATCHING.image_shape), split)


def load(split, cache, batching=BATCHING):
  return image_cache.ImageCache(source_of(split), batching, str(cache)).read_all()


def uncached(split, batching=BATCHING):
  found, _ = batches(source_of(split).make_eval_input_fn(batching))
  channels = max(pixels.shape[-1] for pixels, _ in found)
  return np.concatenate([np.broadcast_to(pixels, pixels.shape[:-1] + (channels,))
                         for pixels, _ in found])


@pytest.mark.parametrize('channels', [1, 3])
def test_every_pixel_value_is_rounded_ties_to_even(write_images, tmp_path, cache, channels):
  """Doubling the width of 0 to 255 interpolates all values k + 0.5."""
  path = tmp_path / 'all.png'
  values = np.arange(256, dtype=np.uint8)[np.newaxis, :, np.newaxis]
  write_images({path: np.broadcast_to(values, (2, 256, 1))})
  split = ImageSplit([str(path).encode()] * 3, np.zeros(3, 'i4'))
  batching = BATCHING._replace(image_shape=(2, 512, channels))
  pixels = uncached(split, batching)
  assert {k + .5 for k in range(255)} <= set(pixels.ravel().tolist())
  cached = load(split, cache, batching)
  np.testing.assert_array_equal(cached, np.rint(pixels))
  assert cached.dtype == np.uint8


@pytest.mark.parametrize('sample_size, channels', [(1, [1, 3]), (19, [3])])
def test_a_colour_image_among_grey_ones(split, cache, write_images, tmp_path, filled, monkeypatch,
                                        sample_size, channels):
  monkeypatch.setattr(image_source, '_GREY_SAMPLE_SIZE', sample_size)
  odd = tmp_path / 'odd.jpeg'
  write_images({odd: np.full((9, 9, 3), (250, 0, 9), np.uint8)})
  split = ImageSplit(split.files[:5] + [str(odd).encode()] + split.files[5:], np.zeros(19, 'i4'))
  np.testing.assert_allclose(load(split, cache), uncached(split), atol=0.5001)
  assert [shape[-1] for shape in filled] == channels


def append_in_no_time(path):
  status = os.stat(path)
  with open(path, 'ab') as file:
    file.write(b'\0')
  os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_a_folder_is_filled_once_for_each_content(split, folder, filled):
  files, classes = split
  for number, (change, of_files, shape) in enumerate((
      (None, files, (20, 16, 3)), (None, files, (16, 20, 3)), (None, files[1:], (20, 16, 3)),
      (None, files[::-1], (20, 16, 3)), (append_in_no_time, files, (20, 16, 3)),
      (lambda path: os.utime(path, ns=(0, 0)), files, (20, 16, 3))), 1):
    if change:
      change(files[0])
    first, again = (load(ImageSplit(of_files, classes), folder,
                         BATCHING._replace(image_shape=shape)) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert len(filled) == len(os.listdir(str(folder))) == number
    assert first.shape[:3] == (len(of_files),) + shape[:2]


def test_what_does_not_fit_is_foreseen(split, tmp_path, folder, filled, monkeypatch):
  monkeypatch.setattr(arrays, 'available_bytes', lambda: 5000)
  monkeypatch.setattr(os, 'posix_fallocate', mock.Mock(
      side_effect=OSError(28, 'No space left on device')))
  size = 'for a uint8 array of shape 18x20x16x1 and 5,760 bytes'
  (tmp_path / 'file').write_text('')
  for cache, message in (
      ('memory', 'does not fit into memory: --cache=memory {}, with 5,000 free: give --cache=F'),
      (folder, 'cannot be stored: --cache=.*cache {} .No space left on device.: give a writable'),
      (tmp_path / 'file' / 'below', 'cannot be stored: --cache=.*/file/below for ')):
    with pytest.raises(UserError, match=message.format(size)):
      load(split, cache)
  assert not filled and not list(folder.glob('*.npy'))


@pytest.fixture
def pausing(monkeypatch):
  """Fills in batches of three images, and pauses before the third until `resume` is set."""
  monkeypatch.setattr(image_cache, '_FILL_BATCH_SIZE', 3)
  write, calls, resume = arrays.open_writer, [], threading.Event()

  @contextlib.contextmanager
  def open_writer(array):
    with write(array) as whole:
      def pausing_write(indices, batch):
        calls.append(list(indices))
        assert len(calls) != 3 or resume.wait(60)
        whole(indices, batch)

      yield pausing_write

  monkeypatch.setattr(arrays, 'open_writer', open_writer)
  yield calls, resume
  resume.set()


@pytest.mark.parametrize('shard', [Shard(), Shard(5, 2, 1, 3)], ids=str)
def test_the_first_batches_do_not_wait_for_the_last_images(split, cache, pausing, shard):
  calls, resume = pausing
  batching = BATCHING._replace(seed=3, shard=shard)
  images = image_cache.ImageCache(source_of(split), batching, cache)
  first = ExampleOrder(18, 3, shard).indices(0, 6)
  pixels, class_indices = images.read(first)
  np.testing.assert_allclose(pixels, uncached(split)[first], atol=.5001)
  np.testing.assert_array_equal(class_indices, split.classes[first])
  assert not resume.is_set() and np.concatenate(calls[:2]).tolist() == first.tolist()
  reader = threading.Thread(target=images.read_all)
  reader.start()
  reader.join(.1)
  assert reader.is_alive()
  resume.set()
  reader.join(60)
  assert not reader.is_alive() and sorted(np.concatenate(calls)) == list(range(18))


@pytest.mark.parametrize('fault, message', [
    ('image', 'an image cannot be decoded: .*damaged.jpeg'),
    # The disk reports its error after the last image.
    ('disk', 'the cache cannot be stored: --cache=.*Input/output error.: give')])
def test_an_error_after_the_first_batch(split, tmp_path, folder, pausing, monkeypatch, fault,
                                        message):
  if fault == 'image':
    (tmp_path / 'damaged.jpeg').write_bytes(b'text')
    split.files[indices_by_first_use(18, BATCHING)[-1]] = bytes(tmp_path / 'damaged.jpeg')
  else:
    monkeypatch.setattr(os, 'fsync', mock.Mock(side_effect=OSError(5, 'Input/output error')))
  pausing[1].set()
  source = source_of(split)
  with pytest.raises(UserError, match=message), source_lib.translate_errors(source):
    batches(source.make_train_input_fn(BATCHING, str(folder)), 10000)
  assert not list(folder.glob('*'))
