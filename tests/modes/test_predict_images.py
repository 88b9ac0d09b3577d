"""Images without labels: pixels as in evaluation, and no more read than needed."""

import gzip
import itertools
import zlib

import numpy as np
import pytest
from conftest import batches, record_of, write_records

from estimator_train.data import DataSpec, ImageSplit
from estimator_train.data.batching import BatchSettings, PixelSettings
from estimator_train.data.image_source import ImageFileSource
from estimator_train.modes.predict import images

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
    source = ImageFileSource(DataSpec('any', ('a', 'b'), shape), split)
    expected, _ = batches(source.make_eval_input_fn(
        PixelSettings(shape), BatchSettings(batch_size, 2, False)))
    found = images.read_batches(map(bytes, files), 'image/encoded', shape, batch_size, 2)
    for batch, (pixels, _) in itertools.zip_longest(found, expected):
      stacked = np.stack([entry.arrays_or_error[0] for entry in batch])
      assert stacked.dtype == np.float32
      np.testing.assert_array_equal(np.broadcast_to(stacked, pixels.shape), pixels)


def test_no_more_is_read_than_a_batch_ahead(awkward_images):
  numbers = itertools.count()
  files = (bytes(awkward_images / 'progressive.jpeg') for _ in numbers)
  some = images.read_batches(files, 'image/encoded', SHAPE, 10, 2)
  assert [len(next(some)) for _ in range(3)] == [10] * 3
  assert next(numbers) <= 40
  some.close()


def test_compressed_records_and_their_folder(awkward_images, tmp_path):
  """They are recognized by their content, and read up to a damage."""
  image = (awkward_images / 'progressive.jpeg').read_bytes()
  write_records(tmp_path / 'plain', [record_of(image, 0)] * 3)
  content = (tmp_path / 'plain').read_bytes()
  wrong = content[:-1] + bytes([content[-1] ^ 1])
  size = len(content) // 3
  for name, data in (
      ('b.gz', gzip.compress(content[:size + 9]) + gzip.compress(content[size + 9:])),
      ('c', zlib.compress(content)), ('d', gzip.compress(content)[:-9]),
      ('e', gzip.compress(wrong + content)), ('f', gzip.compress(content[:-5])),
      ('labels.txt', b'0:A'), ('no_records.gz', gzip.compress(b'x' * 99)), ('x', b'x\x9c' * 9)):
    (tmp_path / name).write_bytes(data)
  files = images.find_files([str(tmp_path)])
  (entries,) = images.read_batches(files, 'image/encoded', SHAPE, 100, 2)
  found = [(entry.name[len(bytes(tmp_path)) + 1:].decode(),
            entry.arrays_or_error if isinstance(entry.arrays_or_error, str) else '')
           for entry in entries]
  ends = {'d': 'truncated', 'f': 'truncated'}
  assert found[:6] + found[-3:] == [
      *(('{}:{}'.format(name, index), '') for name in ('b.gz', 'c') for index in range(3)),
      *(('plain:{}'.format(index), '') for index in range(3))]
  rest = dict(found[6:-3])
  assert {name: reason for name, reason in rest.items() if reason and name[0] in ends} == {
      'd:3': 'truncated', 'f:2': 'truncated'}
  assert [name for name in rest if name[0] == 'e'] == ['e:{}'.format(n) for n in range(6)]
  assert {name for name, reason in rest.items() if 'wrong checksum' in reason} == {'e:2'}
  (tmp_path / 'a.png').write_bytes(image)  # Of a folder with images, only these.
  assert list(images.find_files([str(tmp_path)])) == [bytes(tmp_path / 'a.png')]
