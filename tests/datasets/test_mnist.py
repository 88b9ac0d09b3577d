"""MNIST and Fashion-MNIST are the published files."""

import hashlib
import os

import generated_data
import pytest
from conftest import real_data

from estimator_train.datasets import fashion_mnist, idx, mnist
from estimator_train.settings import Settings

MODULES = {'mnist': mnist, 'fashion-mnist': fashion_mnist}


def test_published_files():
  for name, module in MODULES.items():
    folder = real_data(name)
    for file in module.FILES:
      content = (folder / file.name).read_bytes()
      assert (len(content), hashlib.md5(content).hexdigest()) == (file.size, file.md5)


def test_addresses():
  for module in MODULES.values():
    for file in module.FILES:
      assert [url.rpartition('/')[2] for url in file.urls] == [file.name] * len(file.urls) != []
  assert all(len(file.urls) == 2 for file in fashion_mnist.FILES)


def test_describe():
  for name, module in MODULES.items():
    data_set = module.describe(Settings(data_dir='somewhere'))
    assert data_set.train + data_set.test == tuple(os.path.join('somewhere', file) for file in (
        'train-images-idx3-ubyte.gz', 'train-labels-idx1-ubyte.gz', 't10k-images-idx3-ubyte.gz',
        't10k-labels-idx1-ubyte.gz'))
    assert data_set.files == module.FILES and data_set.name == name.replace('-', '_')
    assert data_set.image_shape == (28, 28, 1) and len(set(data_set.labels)) == 10


@pytest.mark.parametrize('data, expected', [('real', [60000, 10000]), ('generated', [30, 20])])
def test_files_pass_the_check(tmp_path, data, expected):
  for name, module in MODULES.items():
    if data == 'generated':
      generated_data.write_idx_files(tmp_path, *expected)
    data_set = module.describe(Settings(
        data_dir=real_data(name) if data == 'real' else tmp_path))
    assert [idx.check_split(split, data_set.image_shape, 10, checksummed=False)
            for split in (data_set.train, data_set.test)] == expected
