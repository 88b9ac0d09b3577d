"""Images without labels: pixels as in evaluation, one place for every file, and no more read than
needed."""

import os

import numpy as np
import pytest
from conftest import batches

from estimator_train.data import DataSet, ImageSplit
from estimator_train.data.batching import Batching
from estimator_train.data.image_source import ImageFileSource
from estimator_train.modes.predict import inputs

SHAPE = (20, 24, 3)


@pytest.fixture
def images(tmp_path, write_images):
  random = np.random.RandomState(1)
  channels = {'a.jpeg': 1, 'b.png': 1, 'c.jpeg': 3, 'd.png': 3, 'e.png': 4, 'f.png': 2, 'g.jpeg': 1}
  write_images({tmp_path / name: random.randint(
      0, 256, (30, 26 + random.randint(9), count)).astype(np.uint8)
                for name, count in channels.items()})
  return sorted(tmp_path.iterdir())


def read(files, shape=SHAPE, batch_size=3):
  return list(inputs.read_batches((bytes(file) for file in files), 'image/encoded', shape,
                                  batch_size, 2))


@pytest.mark.parametrize('batch_size', [1, 3, 100])
def test_pixels_are_those_of_evaluation(images, awkward_images, batch_size):
  files = images + [awkward_images / (name + '.jpeg') for name in (
      'cmyk', 'exif_orientation_6', 'gif_renamed', 'png16_gray_renamed', 'progressive')]
  for shape in (SHAPE, SHAPE[:2] + (1,)):
    split = ImageSplit([bytes(path) for path in files], np.zeros(len(files), np.int32))
    source = ImageFileSource(DataSet('any', ('a', 'b'), shape), split)
    expected, _ = batches(source.make_eval_input_fn(Batching(shape, 2, False, batch_size)))
    found = read(files, shape, batch_size)
    assert [len(batch) for batch in found] == [len(pixels) for pixels, _ in expected]
    for batch, (pixels, _) in zip(found, expected):
      stacked = np.stack([example.values[0] for example in batch])
      assert stacked.dtype == np.float32 and stacked.shape[3] <= shape[2]
      for one, other in zip(stacked, pixels):
        assert np.array_equal(*np.broadcast_arrays(one, other))


def test_every_file_has_its_place(images, tmp_path, write_idx):
  half = tmp_path / 'b2.png'
  half.write_bytes(images[1].read_bytes()[:100])
  os.mkfifo(str(tmp_path / 'c2.jpeg'))
  (tmp_path / 'd2.jpeg').symlink_to(tmp_path / 'nowhere')
  idx, labels = write_idx(np.arange(5 * 480).reshape(5, 20, 24) % 251, range(5))
  with open(idx, 'rb') as file:
    (tmp_path / 'short.idx').write_bytes(file.read()[:-8])
  files = [images[0], half, tmp_path / 'c2.jpeg', tmp_path / 'd2.jpeg', idx, images[6], labels,
           tmp_path / 'short.idx', images[1]]
  found = [example for batch in read([os.fsencode(str(path)) for path in files], batch_size=2)
           for example in batch]
  assert [os.path.basename(example.name).decode() for example in found] == (
      ['a.jpeg', 'b2.png', 'c2.jpeg', 'd2.jpeg']
      + ['train-images.gz:{}'.format(number) for number in range(5)]
      + ['g.jpeg', 'train-labels.gz'] + ['short.idx:{}'.format(number) for number in range(5)]
      + ['short.idx', 'b.png'])
  bad = {os.path.basename(example.name).decode(): example.values for example in found
         if isinstance(example.values, str)}
  assert list(bad) == ['b2.png', 'c2.jpeg', 'd2.jpeg', 'train-labels.gz', 'short.idx']
  assert 'Invalid PNG' in bad['b2.png'] and bad['c2.jpeg'] == 'not a regular file'
  assert bad['d2.jpeg'] == 'No such file or directory'
  assert found[6].values[0].ravel().tolist() == [value % 251 for value in range(2 * 480, 3 * 480)]


def test_no_more_is_read_than_a_batch_ahead(images):
  taken = []

  def files():
    for number in range(10 ** 9):
      taken.append(number)
      yield bytes(images[number % 7])

  some = inputs.read_batches(files(), 'image/encoded', SHAPE, 10, 2)
  for number in range(1, 4):
    assert len(next(some)) == 10 and len(taken) <= 10 * number + 10
  some.close()


@pytest.mark.parametrize('name', ['[1]*?.png', '-x.png', 'a\nb.png', 'a b"\'.png'])
def test_the_name_of_a_file_is_no_pattern(tmp_path, monkeypatch, name):
  monkeypatch.chdir(str(tmp_path))
  for other in (name, '1x.png'):
    (tmp_path / other).write_text('')
  assert list(inputs.find_files(name)) == [name.encode()]
