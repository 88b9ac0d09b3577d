"""Describes MNIST: 60,000 training and 10,000 test images of handwritten digits."""

from estimator_train.datasets import mnist_files
from estimator_train.datasets.description import DataSet
from estimator_train.settings import groups

CLASS_NAMES = tuple(str(digit) for digit in range(10))

_BASE_URLS = ('http://yann.lecun.com/exdb/mnist/',
              'https://storage.googleapis.com/cvdf-datasets/mnist/')

FILES = mnist_files.make_data_files(
    _BASE_URLS,
    ('train-images-idx3-ubyte.gz', 9912422, 'f68b3c2dcbeaaa9fbdd348bbdeb94873'),
    ('train-labels-idx1-ubyte.gz', 28881, 'd53e105ee54ea40749a09fcbcd1e9432'),
    ('t10k-images-idx3-ubyte.gz', 1648877, '9fb629c4189551a2d022fa330f9573f3'),
    ('t10k-labels-idx1-ubyte.gz', 4542, 'ec29112dd5afa0611ce80d1b7f02629c'),
)


def describe(settings: groups.Data) -> DataSet:
  """Describes the four files of MNIST in `--data_dir`, which need not exist yet."""
  return mnist_files.describe('mnist', CLASS_NAMES, FILES, settings.data_dir or '')
