"""Augmented images: which crops and flips there are, and on what they depend."""


import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from conftest import batches
from input_plans import plan
from PIL import Image

from estimator_train.data import DataSpec, ImageSplit, augmentation
from estimator_train.data.image_source import ImageFileSource

SHAPE = (10, 12, 3)
COUNT = 9


@pytest.fixture
def read(tmp_path, write_images):
  """Returns the first examples of training on images whose pixels encode their place and number."""
  def read(augment, *formats):
    rows, columns = np.mgrid[0:40, 0:60]
    images = {tmp_path / '{}.{}'.format(number, formats[number % len(formats)]): np.stack(
        [rows * 4, columns * 4, np.full((40, 60), 20 * number)], -1).astype(np.uint8)
              for number in range(COUNT)}
    write_images(images)
    split = ImageSplit([bytes(path) for path in images], np.arange(COUNT, dtype=np.int32))
    source = ImageFileSource(DataSpec('any', tuple(map(str, range(COUNT))), SHAPE), split)
    found, _ = batches(source.make_train_input_fn(
        *plan(SHAPE, COUNT, 4, augment=augment), 'none'), 3)
    return np.concatenate([pixels for pixels, _ in found])

  return read


def test_crops():
  """Within the image, of the documented areas and ratios, or the whole image."""
  random = np.random.RandomState(0)
  with tf.Graph().as_default(), tf.Session() as session:
    shape, numbers = tf.placeholder(tf.int32, [3]), tf.placeholder(tf.float32, [22])
    chosen = augmentation.choose_crop(shape, numbers)
    for height, width in ((40, 60), (600, 20), (1, 1), (3000, 4000)):
      crops = np.array([session.run(chosen, {
          shape: (height, width, 3), numbers: random.uniform(size=22)}) for _ in range(300)])
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


def apply(name, image, numbers):
  with tf.Graph().as_default(), tf.Session() as session:
    return session.run(augmentation.AUGMENTATIONS[name].apply(
        tf.constant(image[np.newaxis]), tf.constant(np.array([numbers], np.float32))))[0]


def augmented(image, names, position):
  """Applies augmentations in turn, with the random numbers of the example at a position."""
  columns = {'flip': [0], 'crop': range(1, 23), 'cutout': [29, 30]}
  for name in names.split(','):
    (numbers,) = augmentation.draw_random_numbers(1, np.array([position]), np.array(columns[name]))
    image = apply(name, image, numbers)
  return image


def test_augmentations_are_applied_in_the_order_given(read):
  """And are the same alone and with others; before `crop`, to the whole image."""
  plain, seen = read('none', 'png', 'jpeg'), {}
  for names in ('flip,cutout', 'cutout,flip'):
    seen[names] = read(names, 'png', 'jpeg')
    np.testing.assert_allclose(seen[names], [
        augmented(image, names, position) for position, image in enumerate(plain)], atol=1e-3)
  assert not np.array_equal(*seen.values())
  jpegs = read('crop_flip', 'jpeg')  # Only the crop is decoded.
  np.testing.assert_array_equal(read('crop,flip', 'jpeg'), jpegs)
  difference = np.abs(jpegs - read('crop_flip', 'png'))
  assert difference.mean() < 2 and difference.max() < 40
  whole = np.stack(np.broadcast_arrays(*np.mgrid[0:40, 0:60] * 4, 0), -1).astype(np.float32)
  for position, image in enumerate(read('flip,crop', 'png')):
    crop = augmented(whole, 'flip,crop', position)
    with tf.Graph().as_default(), tf.Session() as session:
      resized = session.run(tf.image.resize_bilinear(crop[np.newaxis], SHAPE[:2]))[0]
    np.testing.assert_allclose(image[..., :2], resized[..., :2], atol=1e-3)


@pytest.mark.parametrize('channels', [1, 3])
def test_the_effect_of_each_augmentation(channels):
  image = np.random.RandomState(0).uniform(0, 255, (20, 28, channels)).astype(np.float32)
  padded = np.pad(image, ((4, 4), (4, 4), (0, 0)), 'constant')
  central, corner = image.copy(), image.copy()
  central[5:15, 9:19] = corner[:5, 22:] = image.mean((0, 1))
  for name, numbers, expected in (
      ('flip', [.49], image[:, ::-1]), ('flip', [.51], image),
      ('pad_crop', [0., .999], padded[:20, 8:]), ('pad_crop', [.5, .5], image),
      ('pad_crop', [.2, .7], padded[1:21, 6:34]),
      ('color', [.5, .5, .5], image), ('color', [0, .5, .5], image * .6),
      ('color', [1, .5, .5], image * 1.4), ('color', [.5, 0, .5], .6 * image + .4 * image.mean()),
      ('color', [.5, .5, 1], 1.4 * image - .4 * image.mean(-1, keepdims=True)),
      ('rotate', [.5], image), ('cutout', [.5, .5], central), ('cutout', [0, .999], corner)):
    np.testing.assert_allclose(apply(name, image, numbers), expected.clip(0, 255), atol=1e-2)
  for number, degrees in ((0., -15), (.8, 9)):
    rotated = apply('rotate', image, [number])
    for channel in range(channels):
      expected = np.asarray(Image.fromarray(image[..., channel]).rotate(degrees, Image.BILINEAR))
      # At the edges, Pillow interpolates in another way.
      np.testing.assert_allclose(rotated[4:-4, 5:-5, channel], expected[4:-4, 5:-5], atol=.1)
    assert not rotated[0, 0].any() and not rotated[-1, -1].any()


@pytest.mark.parametrize('count', [6, 7, 3])
def test_images_are_augmented_in_groups_also_of_a_prime_batch(monkeypatch, count):
  """The groups do not change the images, and their size need not divide that of the batch."""
  flips = plan(SHAPE, 2, count, one_hot=True, augment='flip,cutout')
  images = np.random.RandomState(0).uniform(0, 255, (3 * count, *SHAPE)).astype(np.float32)
  labels = np.arange(3 * count)
  apply_all, sizes, found = augmentation._apply_augmentations, [], []
  monkeypatch.setattr(augmentation, '_apply_augmentations', lambda names, images, *given: (
      sizes.append(images.shape[0]) or apply_all(names, images, *given)))
  for size in (1, 4):
    monkeypatch.setattr(augmentation, '_MAX_GROUP_VALUES', size * int(np.prod(SHAPE)))
    found.append(batches(lambda: augmentation.augment_and_prefetch(
        tf.data.Dataset.from_tensor_slices((images, labels)).batch(count), *flips))[0])
  assert [int(size) for size in sizes] == [1, 4 if count == 7 else 3]
  for single, grouped in zip(*found):
    np.testing.assert_allclose(grouped[0], single[0], atol=1e-4)
  assert [label for _, some in found[1] for label in some] == list(labels)
