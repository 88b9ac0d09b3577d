"""The sample in the package comes from Fashion-MNIST."""

import collections
import gzip
import os
import runpy
from pathlib import Path

import pytest
from conftest import ROOT, real_data

from estimator_train.datasets import fashion_mnist, fashion_mnist_sample, idx


def read_gz(path):
  with gzip.open(str(path)) as file:
    return file.read()


def test_the_sample_is_balanced():
  sample = fashion_mnist_sample.describe()
  assert sample.name == 'fashion_mnist_sample' and sample.labels == fashion_mnist.CLASS_NAMES
  assert not sample.files
  for split, per_class in ((sample.train, 600), (sample.test, 100)):
    assert idx.check_split(split, sample.image_shape, 10, False) == 10 * per_class
    labels = read_gz(split.labels)[idx.LABEL_HEADER_BYTES:]
    assert collections.Counter(labels) == dict.fromkeys(range(10), per_class)


@pytest.mark.slow
def test_the_sample_is_what_the_script_makes(tmp_path):
  script = runpy.run_path(str(ROOT / 'scripts' / 'make_fashion_mnist_sample.py'))
  script['make'](str(real_data('fashion-mnist')), str(tmp_path))
  names = sorted(os.listdir(str(tmp_path)))
  assert names == sorted(os.listdir(fashion_mnist_sample.SAMPLE_FOLDER))
  for name in names:
    # What is in them: another zlib may compress the same bytes to others.
    read = read_gz if name.endswith('.gz') else lambda path: Path(path).read_bytes()
    assert read(tmp_path / name) == read(
        os.path.join(fashion_mnist_sample.SAMPLE_FOLDER, name))
