"""Fashion-MNIST and its sample: what the files are, and that the package's come from the real."""

import collections
import gzip
import hashlib
import importlib.util
import os

import generated_data
import pytest
from conftest import real_data

from estimator_train.datasets import fashion_mnist, fashion_mnist_sample, idx
from estimator_train.settings import Settings

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def read_gz(path):
  with gzip.open(path) as file:
    return file.read()


@pytest.mark.parametrize('file', fashion_mnist.FILES, ids=lambda file: file.name)
def test_published_file(file):
  path = str(real_data('fashion-mnist') / file.name)
  assert os.path.getsize(path) == file.size
  with open(path, 'rb') as data:
    assert hashlib.md5(data.read()).hexdigest() == file.md5


def test_files_pass_the_check(fashion_mnist_dir):
  data_set = fashion_mnist.describe(Settings(data_dir=fashion_mnist_dir))
  counts = [idx.check_split(split, data_set.image_shape, len(data_set.labels), False)
            for split in (data_set.train, data_set.test)]
  assert counts in ([60000, 10000], [60, 20])  # The real ones, and the generated.


def test_addresses():
  for file in fashion_mnist.FILES:
    assert len(file.urls) == 2
    assert all(url.endswith('/' + file.name) for url in file.urls)


def test_describe():
  data_set = fashion_mnist.describe(Settings(data_dir='somewhere'))
  paths = data_set.train + data_set.test
  assert paths == tuple(os.path.join('somewhere', name) for name in (
      'train-images-idx3-ubyte.gz', 'train-labels-idx1-ubyte.gz',
      't10k-images-idx3-ubyte.gz', 't10k-labels-idx1-ubyte.gz'))
  assert data_set.files == fashion_mnist.FILES
  assert data_set.image_shape == (28, 28, 1)
  assert len(data_set.labels) == 10


def test_describe_sample():
  sample = fashion_mnist_sample.describe()
  assert sample.name == 'fashion_mnist_sample'
  assert sample.labels == fashion_mnist.CLASS_NAMES
  assert not sample.files


@pytest.mark.parametrize('split, per_class', [('train', 600), ('test', 100)])
def test_sample_is_balanced(split, per_class):
  data_set = fashion_mnist_sample.describe()
  files = getattr(data_set, split)
  assert idx.check_split(files, data_set.image_shape, 10, False) == 10 * per_class
  labels = read_gz(files.labels)[idx.LABEL_HEADER_BYTES:]
  assert collections.Counter(labels) == dict.fromkeys(range(10), per_class)


@pytest.fixture
def script():
  path = os.path.join(ROOT, 'tests', 'tools', 'make_fashion_mnist_sample.py')
  spec = importlib.util.spec_from_file_location('make_fashion_mnist_sample', path)
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
    assert (read_gz(str(tmp_path / 'made' / labels))
            == read_gz(str(tmp_path / 'first' / labels)))
    made, source = (read_gz(str(tmp_path / folder / images)) for folder in ('made', 'all'))
    assert int.from_bytes(made[4:8], 'big') == count
    assert made[16:] == source[16:16 + 28 * 28 * count]
  assert (tmp_path / 'made' / 'LICENSE').read_text(encoding='utf-8') == script.LICENSE


def test_sample_is_what_the_script_makes(script, tmp_path):
  script.make(str(real_data('fashion-mnist')), str(tmp_path))
  names = sorted(os.listdir(str(tmp_path)))
  assert names == sorted(os.listdir(fashion_mnist_sample.SAMPLE_FOLDER))
  for name in names:
    made, shipped = str(tmp_path / name), os.path.join(fashion_mnist_sample.SAMPLE_FOLDER, name)
    if name == 'LICENSE':
      with open(made, 'rb') as a, open(shipped, 'rb') as b:
        assert a.read() == b.read()
    else:
      # What is in them: another zlib may compress the same bytes to others.
      assert read_gz(made) == read_gz(shipped)
