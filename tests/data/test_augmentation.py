"""Augmented images: which crops and flips there are, and on what they depend."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from conftest import batches

from estimator_train.data import images as images_lib
from estimator_train.data.batching import Batching, Shard
from estimator_train.data.description import DataSet, ImageSplit
from estimator_train.data.image_source import ImageFileSource

SHAPE = (10, 12, 3)
COUNT = 9


@pytest.fixture
def make_source(tmp_path, write_images):
  """Makes a source of images whose pixels encode their place and their number."""
  def make_source(format_of):
    rows, columns = np.mgrid[0:40, 0:60]
    images = {tmp_path / '{}.{}'.format(number, format_of(number)): np.stack(
        [rows * 4, columns * 4, np.full((40, 60), 20 * number)], -1).astype(np.uint8)
              for number in range(COUNT)}
    write_images(images)
    split = ImageSplit([bytes(path) for path in images], np.arange(COUNT, dtype=np.int32))
    return ImageFileSource(DataSet('any', tuple(map(str, range(COUNT))), SHAPE, split), split)

  return make_source


@pytest.fixture
def source(make_source):
  return make_source(lambda number: 'jpeg' if number % 2 else 'png')


def read(source, num_batches, augment='crop_flip', **given):
  batching = Batching(SHAPE, COUNT, **dict(
      {'one_hot': False, 'examples_per_batch': 4, 'augment': augment}, **given))
  pairs, _ = batches(source.make_train_input_fn(batching, 'none'), num_batches)
  return [np.concatenate(part) for part in zip(*pairs)]


def test_the_same_whatever_the_threads_resumptions_and_workers(source):
  whole, labels = read(source, 6)
  again, same_labels = read(source, 6, num_parallel_calls=3, prefetch=4)
  assert whole.shape == (24,) + SHAPE and labels.tolist() == same_labels.tolist()
  np.testing.assert_array_equal(whole, again)
  np.testing.assert_array_equal(read(source, 4, shard=Shard(first_example=8))[0], whole[8:])
  assert not np.array_equal(whole, read(source, 6, seed=2)[0])
  plain, plain_labels = read(source, 6, 'none')
  assert plain_labels.tolist() == labels.tolist() and not np.array_equal(whole, plain)
  for rank in range(2):
    # Each of the steps has four examples, two for each worker.
    part, _ = read(source, 6, examples_per_batch=2, shard=Shard(0, 2, rank, 2))
    expected = whole.reshape((6, 2, 2) + SHAPE)[:, rank]
    np.testing.assert_array_equal(part, expected.reshape((12,) + SHAPE))


def test_flips(source):
  plain, labels = read(source, 50, 'none')
  flipped, same_labels = read(source, 50, 'flip')
  assert labels.tolist() == same_labels.tolist()
  is_flipped = [not np.array_equal(image, original) for image, original in zip(flipped, plain)]
  assert 70 < sum(is_flipped) < 130
  for image, original, flip in zip(flipped, plain, is_flipped):
    np.testing.assert_array_equal(image, original[:, ::-1] if flip else original)
  for augment in ('none', 'flip'):  # Evaluation is never augmented.
    found, _ = batches(source.make_eval_input_fn(Batching(SHAPE, COUNT, False, 9, augment=augment)))
    np.testing.assert_array_equal(found[0][0][labels[:9]], plain[:9])


def test_crops():
  """Within the image, of the documented areas and ratios, or the whole image."""
  random = np.random.RandomState(0)
  with tf.Graph().as_default(), tf.Session() as session:
    shape, numbers = tf.placeholder(tf.int32, [3]), tf.placeholder(tf.float32, [23])
    chosen = images_lib.choose_crop(shape, numbers)
    for height, width in ((40, 60), (600, 20), (1, 1), (3000, 4000)):
      crops = np.array([session.run(chosen, {
          shape: (height, width, 3), numbers: random.uniform(size=23)}) for _ in range(300)])
      tops, lefts, heights, widths = crops.T
      assert min(tops.min(), lefts.min(), heights.min() - 1, widths.min() - 1) >= 0
      assert (tops + heights <= height).all() and (lefts + widths <= width).all()
      is_whole = (heights == height) & (widths == width)
      if height == 40:
        areas, ratios = heights * widths / 2400., widths / heights.astype(float)
        assert is_whole.mean() < .05 and len(set(tops)) > 10 and len(set(lefts)) > 10
        assert areas.min() > .07 and areas[~is_whole].max() < 1 and .35 < areas.mean() < .6
        assert ratios[~is_whole].min() > .68 and ratios[~is_whole].max() < 1.5
      # No crop of at least 8 % of the area of the second shape is less than 20 pixels wide.
      assert height != 600 or is_whole.all()


def test_a_crop_is_a_part_of_the_image(make_source):
  """Rows and columns increase (or decrease, if flipped) linearly, from PNG and JPEG files."""
  pngs, labels = read(make_source(lambda number: 'png'), 10)
  jpegs, _ = read(make_source(lambda number: 'jpeg'), 10)
  assert np.abs(jpegs - pngs).mean() < 2 and np.abs(jpegs - pngs).max() < 40
  for images, tolerance in ((pngs, 1.5), (jpegs, 6)):  # JPEG is lossy.
    for image, label in zip(images, labels):
      rows, columns, number = image[..., 0], image[..., 1], image[..., 2]
      assert np.abs(number - 20 * label).max() < 4 * tolerance
      assert (np.diff(rows.mean(1)) >= -tolerance).all()
      slopes = np.sign(columns[:, -1].mean() - columns[:, 0].mean()) * np.diff(columns.mean(0))
      assert (slopes >= -tolerance).all()
