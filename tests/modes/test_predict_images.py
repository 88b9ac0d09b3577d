"""Images without labels: pixels as in evaluation, and no more read than needed."""

import itertools

import numpy as np
import pytest
from conftest import batches

from estimator_train.data import DataSet, ImageSplit
from estimator_train.data.batching import Batching
from estimator_train.data.image_source import ImageFileSource
from estimator_train.modes.predict import inputs

SHAPE = (20, 24, 3)


@pytest.mark.parametrize('batch_size', [1, 3, 100])
def test_pixels_are_those_of_evaluation(write_images, awkward_images, tmp_path, batch_size):
  random = np.random.RandomState(1)
  channels = {'a.jpeg': 1, 'b.png': 1, 'c.jpeg': 3, 'd.png': 3, 'e.png': 4, 'f.png': 2, 'g.jpeg': 1}
  write_images({tmp_path / name: random.randint(
      0, 256, (30, 26 + random.randint(9), count)).astype(np.uint8)
                for name, count in channels.items()})
  files = [*sorted(tmp_path.iterdir()), *(awkward_images / (name + '.jpeg') for name in (
      'cmyk', 'exif_orientation_6', 'gif_renamed', 'png16_gray_renamed', 'progressive'))]
  for shape in (SHAPE, SHAPE[:2] + (1,)):
    split = ImageSplit([bytes(path) for path in files], np.zeros(len(files), np.int32))
    source = ImageFileSource(DataSet('any', ('a', 'b'), shape), split)
    expected, _ = batches(source.make_eval_input_fn(Batching(shape, 2, False, batch_size)))
    found = inputs.read_batches(map(bytes, files), 'image/encoded', shape, batch_size, 2)
    for batch, (pixels, _) in itertools.zip_longest(found, expected):
      stacked = np.stack([entry.values[0] for entry in batch])
      assert stacked.dtype == np.float32
      np.testing.assert_array_equal(np.broadcast_to(stacked, pixels.shape), pixels)


def test_no_more_is_read_than_a_batch_ahead(awkward_images):
  numbers = itertools.count()
  files = (bytes(awkward_images / 'progressive.jpeg') for _ in numbers)
  some = inputs.read_batches(files, 'image/encoded', SHAPE, 10, 2)
  assert [len(next(some)) for _ in range(3)] == [10] * 3
  assert next(numbers) <= 40
  some.close()
