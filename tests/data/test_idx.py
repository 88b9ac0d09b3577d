"""MNIST and its kind are the published files; each check names a bad file in one line.

To predict them, the images are read up to a damage.
"""

import collections
import hashlib
import re
import tracemalloc
from gzip import compress

import generated_data
import numpy as np
import pytest
from conftest import real_data
from generated_data import idx_bytes

from estimator_train.data import IdxSplit, idx, mnist
from estimator_train.errors import UserError

IMAGES = np.random.RandomState(1).randint(0, 256, (5, 4, 3)).astype(np.uint8)
LABELS = [0, 1, 2, 1, 0]
PLAIN = idx_bytes(IMAGES)
GOOD_IMAGES, GOOD_LABELS = compress(PLAIN), compress(idx_bytes(LABELS))


def members(content, stop):
  return compress(content[:stop]) + compress(content[stop:])


def damaged(content, at):
  return content[:at] + bytes([content[at] ^ 255]) + content[at + 1:]


def check(folder, images_gz, labels_gz, checksummed=False):
  split = IdxSplit(str(folder / 'images.gz'), str(folder / 'labels.gz'))
  for path, data in zip(split, (images_gz, labels_gz)):
    if data is not None:
      with open(path, 'wb') as file:
        file.write(data)
  return idx.check_split(split._replace(are_verified=checksummed), (4, 3, 1), 3)


def test_files_that_are_accepted(tmp_path):
  assert check(tmp_path, GOOD_IMAGES + bytes(9), GOOD_LABELS) == 5
  assert check(tmp_path, GOOD_IMAGES, GOOD_LABELS + b'more') == 5
  # If the images have been compared with a checksum, they are not decompressed.
  content = damaged(GOOD_IMAGES, len(GOOD_IMAGES) // 2)
  assert check(tmp_path, content, GOOD_LABELS, checksummed=True) == 5


@pytest.mark.parametrize('images_gz, labels_gz, message', [
    (PLAIN, GOOD_LABELS, 'a data file is not in gzip format: .*images.gz: '
     'compress an idx file with gzip, or '),
    (None, GOOD_LABELS, 'cannot read a data file: .*images.gz: No such file .*--mode=download'),
    (GOOD_LABELS, GOOD_IMAGES, 'images.gz: expected at least 16 decompressed bytes, found 13'),
    (compress(idx_bytes(IMAGES, 0x801)), GOOD_LABELS, 'images.gz: magic number 0x801, expected '),
    (compress(idx_bytes(IMAGES.reshape(5, 3, 4))), GOOD_LABELS, '.gz: 3x4, expected 4x3'),
    (compress(PLAIN + b'!'), GOOD_LABELS, 'expected 76 decompressed bytes, found more'),
    # TensorFlow 1.15 reads the first gzip member alone.
    (members(PLAIN, 20), GOOD_LABELS, 'several gzip members .*images.gz'),
    (GOOD_IMAGES, GOOD_LABELS[:-2], 'labels.gz: expected 13 .* found 13 in a truncated file'),
    (GOOD_IMAGES[:10] + b'\xff' * 50, GOOD_LABELS, 'cannot read .*images.gz: .*invalid'),
    (GOOD_IMAGES, GOOD_LABELS[:-8] + bytes(8), 'cannot read .*labels.gz: .*data check'),
    (GOOD_IMAGES, compress(idx_bytes(LABELS[:4])), 'has 5 images, .*labels.gz has 4 label'),
    (compress(idx_bytes(IMAGES[:0])), compress(idx_bytes([])), 'no examples: .*images.gz:'),
    (GOOD_IMAGES, compress(idx_bytes([0, 1, 2, 3, 0])),
     'less than the number of classes, 3: .*labels.gz: label 3 at position 3:'),
], ids=lambda value: value if isinstance(value, str) else '')
def test_files_that_are_refused(tmp_path, images_gz, labels_gz, message):
  with pytest.raises(UserError, match=message) as caught:
    check(tmp_path, images_gz, labels_gz)
  assert '\n' not in str(caught.value)


def test_bomb(tmp_path):
  """60 MB of zeros after the images, in a thousandth of the size."""
  bomb = compress(PLAIN + bytes(60 << 20), 1)
  tracemalloc.start()
  with pytest.raises(UserError, match='expected 76 decompressed bytes, found more than 76'):
    check(tmp_path, bomb, GOOD_LABELS)
  peak = tracemalloc.get_traced_memory()[1]
  tracemalloc.stop()
  assert peak < 20e6


@pytest.mark.parametrize('data, expected', [('real', [60000, 10000]), ('generated', [30, 20])])
def test_published_files(tmp_path, data, expected):
  for name in ('mnist', 'fashion_mnist') + (('kmnist',) if data == 'generated' else ()):
    folder = real_data(name.replace('_', '-')) if data == 'real' else tmp_path
    if data == 'generated':
      generated_data.write_idx_files(folder, *expected)
    found = mnist.describe_data_set(name, str(folder))
    assert found.name == name and found.train[:2] + found.test[:2] == tuple(
        str(folder / file.name) for file in found.files)
    assert found.train.are_verified and found.test.are_verified
    assert found.image_shape == (28, 28, 1) and len(set(found.labels)) == 10
    assert [idx.check_split(split._replace(are_verified=False), found.image_shape, 10)
            for split in (found.train, found.test)] == expected
    for file in found.files:
      assert {url.rpartition('/')[2] for url in file.urls} == {file.name}
      content = (folder / file.name).read_bytes()
      assert data == 'generated' or (len(content), hashlib.md5(content).hexdigest()) == (
          file.size, file.md5)


def test_the_sample_is_balanced():
  sample = mnist.describe_data_set('fashion_mnist_sample')
  assert sample.labels == mnist.describe_data_set('fashion_mnist').labels and not sample.files
  for split, per_class in ((sample.train, 600), (sample.test, 100)):
    assert idx.check_split(split, sample.image_shape, 10) == 10 * per_class
    assert collections.Counter(idx.read_labels(split)) == dict.fromkeys(range(10), per_class)


@pytest.mark.parametrize('content, count, why', [
    (PLAIN, 5, '^$'),
    (GOOD_IMAGES, 5, '^$'),
    (members(PLAIN, 50) + bytes(9), 5, '^$'),
    (PLAIN[:16 + 12 * 3 + 2], 3, 'the file ends early, after 3 images'),
    (PLAIN + b'x', 5, 'longer than its header indicates, after 5 images'),
    (damaged(GOOD_IMAGES, len(GOOD_IMAGES) - 6), 5, 'CRC check failed .*, after 5 images'),
    (PLAIN[:9], 0, 'not an idx file of images$'),
    (GOOD_IMAGES[:4], 0, 'ended before the end-of-stream marker was reached$'),
    (idx_bytes(IMAGES, 0x801), 0, 'not an idx file of images$'),
    (idx_bytes(IMAGES.reshape(5, 3, 4)), 0, '5 images of 3x4, but the model requires 4x3$'),
    (idx_bytes(IMAGES[:0]), 0, '0 images of 4x3'),
], ids=lambda value: value if isinstance(value, str) else '')
def test_images_up_to_a_damage(tmp_path, content, count, why):
  path = tmp_path / 'some.idx'
  path.write_bytes(content)
  assert idx.is_idx_or_gzip(content[:4]) and not idx.is_idx_or_gzip(b'text')
  images, found = [], ''
  try:
    for image in idx.iter_images(bytes(path), 4, 3):
      images.append(image[:, :, 0])
  except ValueError as error:
    found = str(error)
  np.testing.assert_array_equal(np.reshape(images, (-1, 4, 3)), IMAGES[:count])
  assert re.search(why, found)
