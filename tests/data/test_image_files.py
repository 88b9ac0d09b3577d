"""The pixels that image files become, whatever the mixture of gray and color, and the audit of
their headers for that."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from conftest import batches
from input_plans import plan

from estimator_train.data import DataSpec, ImageSplit, image_source
from estimator_train.data.image_source import ImageFileSource

SIZE = (40, 32)
PLAN = plan(SIZE + (3,), 4, 6, num_parallel_calls=2)


def source_of(paths):
  split = ImageSplit([str(path).encode() for path in paths], np.arange(len(paths), dtype=np.int32))
  return ImageFileSource(DataSpec('any', ('a', 'b'), SIZE + (3,)), split)


def evaluate(paths, **given):
  """Returns the batches of pixels, of which each image must have those of the article."""
  found, _ = batches(source_of(paths).make_eval_input_fn(*PLAN.given(**given).evaluation))
  assert np.concatenate([classes for _, classes in found]).tolist() == list(range(len(paths)))
  expected, _ = batches(lambda: tf.data.Dataset.from_tensor_slices(list(map(bytes, paths))).map(
      lambda path: tf.image.resize_images(tf.image.convert_image_dtype(
          tf.image.decode_jpeg(tf.read_file(path), channels=3), tf.float32), SIZE)))
  for batch, numbers in found:
    assert batch.dtype == np.float32
    np.testing.assert_allclose(np.broadcast_to(batch, batch.shape[:3] + (3,)) / 255,
                               np.stack(expected)[numbers], atol=1e-6)
  return [batch for batch, _ in found]


@pytest.fixture
def images(tmp_path, write_images):
  """Five gray images and a color one, of several sizes; the last is a PNG by another name."""
  random = np.random.RandomState(3)
  paths = [tmp_path / '{} \'".jpeg'.format(index) for index in range(6)]
  png = tmp_path / 'x.png'
  pixels = {path: random.randint(0, 256, (30 + 7 * index, 50, 3 if index == 4 else 1))
            for index, path in enumerate(paths)}
  pixels[png] = random.randint(0, 256, (20, 20, 1))
  write_images({path: image.astype(np.uint8) for path, image in pixels.items()})
  png.rename(paths[5])
  return paths


def test_gray_and_color_images(images, monkeypatch):
  """Where color is not expected, a batch with it is decoded again, in the same order."""
  assert not source_of(images).is_sample_gray()
  assert [batch.shape for batch in evaluate(images)] == [(6,) + SIZE + (3,)]
  monkeypatch.setattr(image_source, '_GRAY_SAMPLE_SIZE', 1)
  assert [batch.shape[-1] for batch in evaluate(images, size=2)] == [1, 1, 3]
  assert [batch.shape[-1] for batch in evaluate(images)] == [3]


def test_a_model_of_gray_images_gets_one_channel(images):
  """The fourth of the images is in color."""
  ((pixels, _),), _ = batches(source_of(images).make_eval_input_fn(
      *PLAN.given(image_shape=SIZE + (1,)).evaluation))
  assert pixels.shape == (6,) + SIZE + (1,)
  ((color, _),), _ = batches(source_of(images).make_eval_input_fn(*PLAN.evaluation))
  assert pixels[4, :, :, 0] == pytest.approx(color[4].dot([0.2989, 0.587, 0.114]), abs=0.01)
