"""MNIST's files are the published ones."""

import hashlib

import generated_data
import pytest
from conftest import real_data

from estimator_train.datasets import idx, mnist
from estimator_train.settings import Settings


def test_published_files():
  folder = real_data('mnist')
  for file in mnist.FILES:
    content = (folder / file.name).read_bytes()
    assert (len(content), hashlib.md5(content).hexdigest()) == (file.size, file.md5)


def test_addresses():
  for file in mnist.FILES:
    assert [url.rpartition('/')[2] for url in file.urls] == [file.name] * len(file.urls) != []


@pytest.mark.parametrize('data, expected', [('real', [60000, 10000]), ('generated', [30, 20])])
def test_files_pass_the_check(tmp_path, data, expected):
  folder = tmp_path
  if data == 'real':
    folder = real_data('mnist')
  else:
    generated_data.write_idx_files(folder, *expected)
  data_set = mnist.describe(Settings(data_dir=folder))
  counts = [idx.check_split(split, data_set.image_shape, len(data_set.labels), True)
            for split in (data_set.train, data_set.test)]
  assert counts == expected
