"""Fashion-MNIST and its sample: what the files are, and that the package's come from the real."""

import collections
import gzip
import hashlib
import importlib.util
import os

import pytest

from estimator_train.datasets import fashion_mnist, fashion_mnist_sample, idx

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
REAL = os.path.join(os.path.dirname(ROOT), 'shared', 'data', 'fashion-mnist')
needs_real_files = pytest.mark.skipif(
    not os.path.isdir(REAL), reason='the published files are not in ' + REAL)


def read_gz(path):
  with gzip.open(path) as file:
    return file.read()


@needs_real_files
@pytest.mark.parametrize('file', fashion_mnist.FILES, ids=lambda file: file.name)
def test_published_file(file):
  path = os.path.join(REAL, file.name)
  assert os.path.getsize(path) == file.size
  with open(path, 'rb') as data:
    assert hashlib.md5(data.read()).hexdigest() == file.md5


@needs_real_files
def test_published_files_pass_the_check():
  data_set = fashion_mnist.describe(REAL)
  assert idx.check_split(data_set.train, data_set.image_shape, len(data_set.labels), False) == 60000
  assert idx.check_split(data_set.test, data_set.image_shape, len(data_set.labels), False) == 10000


def test_addresses():
  for file in fashion_mnist.FILES:
    assert len(file.urls) == 2
    assert all(url.endswith('/' + file.name) for url in file.urls)


def test_describe():
  data_set = fashion_mnist.describe('somewhere')
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
  assert sample.labels == fashion_mnist.LABELS
  assert not sample.files


@pytest.mark.parametrize('split, per_class', [('train', 600), ('test', 100)])
def test_sample_is_balanced(split, per_class):
  data_set = fashion_mnist_sample.describe()
  files = getattr(data_set, split)
  assert idx.check_split(files, data_set.image_shape, 10, False) == 10 * per_class
  labels = read_gz(files.labels)[idx.LABEL_HEADER_BYTES:]
  assert collections.Counter(labels) == dict.fromkeys(range(10), per_class)


@needs_real_files
def test_sample_is_what_the_script_makes(tmp_path):
  path = os.path.join(ROOT, 'tests', 'tools', 'make_fashion_mnist_sample.py')
  spec = importlib.util.spec_from_file_location('make_fashion_mnist_sample', path)
  script = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(script)
  script.make(REAL, str(tmp_path))
  names = sorted(os.listdir(str(tmp_path)))
  assert names == sorted(os.listdir(fashion_mnist_sample.FOLDER))
  for name in names:
    made, shipped = str(tmp_path / name), os.path.join(fashion_mnist_sample.FOLDER, name)
    if name == 'LICENSE':
      with open(made, 'rb') as a, open(shipped, 'rb') as b:
        assert a.read() == b.read()
    else:
      # What is in them: another zlib may compress the same bytes to others.
      assert read_gz(made) == read_gz(shipped)
