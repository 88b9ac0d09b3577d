"""The sample in the package comes from Fashion-MNIST."""

import collections
import gzip
import importlib.util
import os

import generated_data
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


@pytest.fixture
def script():
  path = ROOT / 'tests' / 'tools' / 'make_fashion_mnist_sample.py'
  spec = importlib.util.spec_from_file_location('make_fashion_mnist_sample', str(path))
  script = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(script)
  return script


def test_sample_has_the_first_of_each_class(script, tmp_path, monkeypatch):
  monkeypatch.setattr(script, 'PER_CLASS', {'train': 2, 't10k': 1})
  generated_data.write_idx_files(tmp_path / 'all', 50, 30)  # Classes in turn.
  generated_data.write_idx_files(tmp_path / 'first', 20, 10)
  script.make(str(tmp_path / 'all'), str(tmp_path / 'made'))
  for split, count in (('train', 20), ('t10k', 10)):
    images, labels = (split + '-images-idx3-ubyte.gz', split + '-labels-idx1-ubyte.gz')
    assert read_gz(tmp_path / 'made' / labels) == read_gz(tmp_path / 'first' / labels)
    made, source = (read_gz(tmp_path / folder / images) for folder in ('made', 'all'))
    assert int.from_bytes(made[4:8], 'big') == count
    assert made[16:] == source[16:16 + 28 * 28 * count]
  assert (tmp_path / 'made' / 'LICENSE').read_text(encoding='utf-8') == script.LICENSE


@pytest.mark.slow
def test_sample_is_what_the_script_makes(script, tmp_path):
  script.make(str(real_data('fashion-mnist')), str(tmp_path))
  names = sorted(os.listdir(str(tmp_path)))
  assert names == sorted(os.listdir(fashion_mnist_sample.SAMPLE_FOLDER))
  for name in names:
    shipped = os.path.join(fashion_mnist_sample.SAMPLE_FOLDER, name)
    if name == 'LICENSE':
      with open(shipped, 'rb') as file:
        assert (tmp_path / name).read_bytes() == file.read()
    else:  # What is in them: another zlib may compress the same bytes to others.
      assert read_gz(tmp_path / name) == read_gz(shipped)
