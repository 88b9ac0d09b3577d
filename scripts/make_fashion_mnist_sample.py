"""Makes the Fashion-MNIST sample of the package from the published files.

  python scripts/make_fashion_mnist_sample.py PUBLISHED_FILES SAMPLE_FILES

where both are folders; the package's is estimator_train/data/fashion_mnist_sample_files.

It takes the first 600 training and the first 100 test examples of each class, in the order of the
published files. The same input gives the same files.
"""

import gzip
import os
import struct
import sys
from typing import List

import numpy as np

PER_CLASS = {'train': 600, 't10k': 100}

with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'estimator_train',
                       'data', 'fashion_mnist_sample_files', 'LICENSE'),
          encoding='utf-8') as license_file:
  LICENSE = license_file.read()


def make(source: str, target: str) -> None:
  """Writes the four files and the licence into `target`."""
  os.makedirs(target, exist_ok=True)
  for split, per_class in PER_CLASS.items():
    labels_name = split + '-labels-idx1-ubyte.gz'
    images_name = split + '-images-idx3-ubyte.gz'
    labels = np.frombuffer(_read(os.path.join(source, labels_name)), np.uint8, offset=8)
    images = np.frombuffer(_read(os.path.join(source, images_name)), np.uint8, offset=16)
    images = images.reshape([len(labels), 28, 28])
    chosen = np.sort(np.concatenate(
        [np.flatnonzero(labels == label)[:per_class] for label in range(10)]))
    _write(os.path.join(target, labels_name), [0x801, len(chosen)], labels[chosen])
    _write(os.path.join(target, images_name), [0x803, len(chosen), 28, 28], images[chosen])
  with open(os.path.join(target, 'LICENSE'), 'w', encoding='utf-8') as file:
    file.write(LICENSE)


def _read(path: str) -> bytes:
  with gzip.open(path) as file:
    return file.read()


def _write(path: str, header: List[int], data: np.ndarray) -> None:
  # Without the name and the time, which gzip would store.
  with open(path, 'wb') as raw, gzip.GzipFile('', 'wb', 9, raw, mtime=0) as file:
    file.write(struct.pack('>{}I'.format(len(header)), *header) + data.tobytes())


if __name__ == '__main__':
  if len(sys.argv) != 3:
    sys.exit(__doc__)
  make(*sys.argv[1:])
