"""MNIST's files are the published ones."""

import hashlib

import pytest
from conftest import REAL_DATA

from estimator_train.datasets import idx, mnist


def test_real_files():
  folder = REAL_DATA / 'mnist'
  if not folder.is_dir():
    pytest.skip('the real files are not beside the checkout: {}'.format(folder))
  for file in mnist.FILES:
    content = (folder / file.name).read_bytes()
    assert (len(content), hashlib.md5(content).hexdigest()) == (file.size, file.md5)
    assert [url.rpartition('/')[2] for url in file.urls] == [file.name] * len(file.urls)
  data_set = mnist.describe(str(folder))
  counts = [idx.check_split(split, data_set.image_shape, len(data_set.labels), True)
            for split in (data_set.train, data_set.test)]
  assert counts == [60000, 10000]
