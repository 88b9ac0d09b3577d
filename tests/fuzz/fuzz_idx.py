"""Fuzzes the check of idx files: what it lets pass is what the headers say, to the byte.

    .venv/bin/python tests/fuzz/fuzz_idx.py --secs=300 [--seed=1]
"""

import gzip
import struct
import zlib

import fuzzing

from estimator_train.datasets import idx
from estimator_train.datasets.description import IdxSplit

HEIGHT, WIDTH, CLASSES = 4, 3, 10


def _good(count):
  pixels = bytes(index % 251 for index in range(count * HEIGHT * WIDTH))
  return (struct.pack('>IIII', 0x803, count, HEIGHT, WIDTH) + pixels,
          struct.pack('>II', 0x801, count) + bytes(index % CLASSES for index in range(count)))


GOOD = [_good(count) for count in (1, 5, 300)]
CONTENTS = [content for pair in GOOD for content in pair]
FILES = [gzip.compress(content) for content in CONTENTS]


def make(rng):
  """Returns the bytes of both files: changed inside of gzip, outside of it, both, or not at all."""
  files = []
  for good in rng.choice(GOOD):
    content = fuzzing.mutate(rng, good, CONTENTS) if rng.random() < 0.4 else good
    file = gzip.compress(content, rng.choice((0, 1, 9)))
    if rng.random() < 0.1:
      file += gzip.compress(rng.choice(CONTENTS))  # Another member.
    files.append(fuzzing.mutate(rng, file, FILES) if rng.random() < 0.3 else file)
  return files


def check(files, folder):
  """Checks the files, and that the ones that pass hold what TensorFlow would take them for."""
  split = IdxSplit(*(fuzzing.write(folder, name, data) for name, data in zip('il', files)))
  count = idx.check_split(split, (HEIGHT, WIDTH, 1), CLASSES, checksummed=False)
  images, labels = (zlib.decompressobj(31).decompress(data) for data in files)
  assert images[:16] == struct.pack('>IIII', 0x803, count, HEIGHT, WIDTH)
  assert labels[:8] == struct.pack('>II', 0x801, count)
  assert len(images) == 16 + count * HEIGHT * WIDTH and len(labels) == 8 + count
  assert count > 0 and max(labels[8:]) < CLASSES


if __name__ == '__main__':
  fuzzing.main(make, check)
