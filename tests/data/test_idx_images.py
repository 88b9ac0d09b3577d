"""idx files image by image: whole, plain, and every way in which they break off."""

import gzip
import re
import struct

import numpy as np
import pytest

from estimator_train.data import binary_files, record_index

IMAGES = np.random.RandomState(1).randint(0, 256, (40, 3, 5)).astype(np.uint8)
CONTENT = struct.pack('>4I', 0x803, *IMAGES.shape) + IMAGES.tobytes()
PACKED = gzip.compress(CONTENT)


def damaged(content, at):
  return content[:at] + bytes([content[at] ^ 255]) + content[at + 1:]


@pytest.mark.parametrize('content, count, why', [
    (CONTENT, 40, None),
    (PACKED, 40, None),
    (gzip.compress(CONTENT[:100]) + gzip.compress(CONTENT[100:]), 40, None),
    (PACKED + b'\0' * 9, 40, None),
    (CONTENT[:16 + 15 * 7 + 3], 7, 'the file ends early, after 7 of 40 images'),
    (CONTENT[:16], 0, 'the file ends early, after 0 of 40 images'),
    (CONTENT + b'x', 40, 'longer than its header indicates, after 40 of 40 images'),
    (damaged(PACKED, len(PACKED) - 6), 40, 'CRC check failed .*, after 40 of 40'),
    (PACKED[:-4], 40, 'ended before .*, after 40 of 40 images'),
    (PACKED[:len(PACKED) // 2], None, r', after \d\d of 40 images$'),
    (CONTENT[:9], 0, 'the file ends within its header$'),
    (PACKED[:4], 0, 'ended before the end-of-stream marker was reached$'),
    (gzip.compress(b'some text'), 0, 'not an idx file of images: it starts with 0x736f6d65, e'),
    (gzip.compress(record_index.frame(b'any')), 0, 'a compressed TFRecord file: decompress it'),
    (struct.pack('>2I', 0x801, 4) + b'1234', 0, 'starts with 0x00000801, expected 0x00000803$'),
    (struct.pack('>4I', 0x803, 2, 28, 28), 0, 'images are 28x28, but the model requires 3x5$'),
    (struct.pack('>4I', 0x803, 0, 3, 5), 0, 'the file has no images$'),
], ids=lambda value: value if isinstance(value, str) else '')
def test_images_up_to_a_damage(tmp_path, content, count, why):
  path = tmp_path / 'some.idx'
  path.write_bytes(content)
  assert binary_files.is_idx_or_gzip(content[:4]) and not binary_files.is_idx_or_gzip(b'text')
  images, found = [], None
  try:
    for image in binary_files.iter_images(bytes(path), 3, 5):
      images.append(image[:, :, 0])
  except ValueError as error:
    found = str(error)
  assert count == len(images) or count is None and 10 < len(images) < 30
  assert np.array_equal(np.reshape(images, (-1, 3, 5)), IMAGES[:len(images)])
  assert re.search(why, found) if why else found is None
