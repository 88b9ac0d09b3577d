"""MNIST and its kind are the published files; each check names a bad file in one line.

To predict them, the images are read up to a damage.
"""

import collections
import gzip
import hashlib
import re
import struct
import tracemalloc

import generated_data
import numpy as np
import pytest
from conftest import real_data

from estimator_train.data import IdxSplit, idx
from estimator_train.errors import UserError

HEIGHT, WIDTH = 4, 3
EXAMPLES = 5
PIXELS = bytes(range(EXAMPLES * HEIGHT * WIDTH))
LABELS = bytes([0, 1, 2, 1, 0])


def images(count=EXAMPLES, pixels=PIXELS, magic=0x803, height=HEIGHT, width=WIDTH):
  return struct.pack('>IIII', magic, count, height, width) + pixels


def labels(count=EXAMPLES, values=LABELS, magic=0x801):
  return struct.pack('>II', magic, count) + values


GOOD_IMAGES, GOOD_LABELS = gzip.compress(images()), gzip.compress(labels())


def members(content, *stops):
  return b''.join(gzip.compress(content[start:stop])
                  for start, stop in zip((0,) + stops, stops + (None,)))


def check(folder, images_gz, labels_gz, checksummed=False):
  split = IdxSplit(str(folder / 'images.gz'), str(folder / 'labels.gz'))
  for path, data in zip(split, (images_gz, labels_gz)):
    if data is not None:
      with open(path, 'wb') as file:
        file.write(data)
  return idx.check_split(split, (HEIGHT, WIDTH, 1), 3, checksummed)


def test_good(tmp_path):
  assert check(tmp_path, GOOD_IMAGES, GOOD_LABELS) == EXAMPLES
  assert check(tmp_path, GOOD_IMAGES + bytes(9), GOOD_LABELS) == EXAMPLES
  assert check(tmp_path, GOOD_IMAGES, GOOD_LABELS + b'more') == EXAMPLES
  # If the images have been compared with a checksum, they are not decompressed.
  content = damaged(GOOD_IMAGES, len(GOOD_IMAGES) // 2)
  assert check(tmp_path, content, GOOD_LABELS, checksummed=True) == EXAMPLES


@pytest.mark.parametrize('images_gz, labels_gz, message', [
    (None, GOOD_LABELS, 'cannot read a data file: .*images.gz: No such file .*--mode=download'),
    (GOOD_LABELS, GOOD_IMAGES, 'images.gz: expected at least 16 decompressed bytes, found 13'),
    (gzip.compress(images(magic=0x801)), GOOD_LABELS, '.*images.gz: magic number 0x801, expected '),
    (GOOD_IMAGES, GOOD_IMAGES, 'of labels: .*labels.gz: magic number 0x803, expected 0x801'),
    (gzip.compress(images(height=3, width=4)), GOOD_LABELS, 'wrong size: .*.gz: 3x4, expected 4x3'),
    (gzip.compress(images() + b'!'), GOOD_LABELS, 'expected 76 decompressed bytes, found more'),
    # TensorFlow 1.15 reads the first gzip member alone.
    (members(images(), 20), GOOD_LABELS, 'several gzip members .*images.gz'),
    (GOOD_IMAGES, members(labels(), 10), 'several gzip members .*labels.gz'),
    (GOOD_IMAGES[:-9], GOOD_LABELS, r'expected 76 .* bytes, found \d+ in a truncated file'),
    (GOOD_IMAGES, GOOD_LABELS[:-2], 'labels.gz: expected 13 .* found 13 in a truncated file'),
    (GOOD_IMAGES[:10] + b'\xff' * 50, GOOD_LABELS, 'cannot read .*images.gz: .*invalid'),
    (GOOD_IMAGES, GOOD_LABELS[:-8] + bytes(8), 'cannot read .*labels.gz: .*data check'),
    (GOOD_IMAGES, gzip.compress(labels(4, LABELS[:4])), 'has 5 images, .*labels.gz has 4 label'),
    (gzip.compress(images(0, b'')), gzip.compress(labels(0, b'')), 'no examples: .*images.gz:'),
    (GOOD_IMAGES, gzip.compress(labels(values=b'\x00\x01\x02\x03\x00')),
     'less than the number of classes, 3: .*labels.gz: label 3 at position 3:'),
], ids=lambda value: value if isinstance(value, str) else '')
def test_bad(tmp_path, images_gz, labels_gz, message):
  with pytest.raises(UserError) as caught:
    check(tmp_path, images_gz, labels_gz)
  assert re.search(message, str(caught.value)) and '\n' not in str(caught.value)


def test_bomb(tmp_path):
  """60 MB of zeros after the header, in a thousandth of the size."""
  bomb = gzip.compress(images(EXAMPLES, bytes(60 << 20)), 1)
  tracemalloc.start()
  with pytest.raises(UserError, match='expected 76 decompressed bytes, found more than 76'):
    check(tmp_path, bomb, GOOD_LABELS)
  peak = tracemalloc.get_traced_memory()[1]
  tracemalloc.stop()
  assert peak < 20e6


@pytest.mark.parametrize('data, expected', [('real', [60000, 10000]), ('generated', [30, 20])])
def test_published_files(tmp_path, data, expected):
  for name in ('mnist', 'fashion_mnist'):
    folder = real_data(name.replace('_', '-')) if data == 'real' else tmp_path
    if data == 'generated':
      generated_data.write_idx_files(folder, *expected)
    found = idx.describe(name, str(folder))
    assert found.name == name and found.train + found.test == tuple(
        str(folder / file.name) for file in found.files)
    assert found.image_shape == (28, 28, 1) and len(set(found.labels)) == 10
    assert [idx.check_split(split, found.image_shape, 10, checksummed=False)
            for split in (found.train, found.test)] == expected
    for file in found.files:
      assert [url.rpartition('/')[2] for url in file.urls] == [file.name] * 2
      content = (folder / file.name).read_bytes()
      assert data == 'generated' or (len(content), hashlib.md5(content).hexdigest()) == (
          file.size, file.md5)


def test_the_sample_is_balanced():
  sample = idx.describe('fashion_mnist_sample')
  assert sample.labels == idx.describe('fashion_mnist').labels and not sample.files
  for split, per_class in ((sample.train, 600), (sample.test, 100)):
    assert idx.check_split(split, sample.image_shape, 10, False) == 10 * per_class
    assert collections.Counter(idx.read_labels(split)) == dict.fromkeys(range(10), per_class)


NUMBERED = np.random.RandomState(1).randint(0, 256, (40, 3, 5)).astype(np.uint8)
PLAIN = struct.pack('>4I', 0x803, *NUMBERED.shape) + NUMBERED.tobytes()
GZIPPED = gzip.compress(PLAIN)


def damaged(content, at):
  return content[:at] + bytes([content[at] ^ 255]) + content[at + 1:]


@pytest.mark.parametrize('content, count, why', [
    (PLAIN, 40, None),
    (GZIPPED, 40, None),
    (gzip.compress(PLAIN[:100]) + gzip.compress(PLAIN[100:]) + b'\0' * 9, 40, None),
    (PLAIN[:16 + 15 * 7 + 3], 7, 'the file ends early, after 7 images'),
    (PLAIN + b'x', 40, 'longer than its header indicates, after 40 images'),
    (damaged(GZIPPED, len(GZIPPED) - 6), 40, 'CRC check failed .*, after 40 images'),
    (PLAIN[:9], 0, 'not an idx file of images$'),
    (GZIPPED[:4], 0, 'ended before the end-of-stream marker was reached$'),
    (struct.pack('>4I', 0x801, 4, 3, 5) + b'1234', 0, 'not an idx file of images$'),
    (struct.pack('>4I', 0x803, 2, 28, 28), 0, '2 images of 28x28, but the model requires 3x5$'),
    (struct.pack('>4I', 0x803, 0, 3, 5), 0, '0 images of 3x5'),
], ids=lambda value: value if isinstance(value, str) else '')
def test_images_up_to_a_damage(tmp_path, content, count, why):
  path = tmp_path / 'some.idx'
  path.write_bytes(content)
  assert idx.is_idx_or_gzip(content[:4]) and not idx.is_idx_or_gzip(b'text')
  images, found = [], None
  try:
    for image in idx.iter_images(bytes(path), 3, 5):
      images.append(image[:, :, 0])
  except ValueError as error:
    found = str(error)
  assert count == len(images)
  assert np.array_equal(np.reshape(images, (-1, 3, 5)), NUMBERED[:len(images)])
  assert re.search(why, found) if why else found is None
