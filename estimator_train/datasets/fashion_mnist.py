"""Describes Fashion-MNIST: 60,000 training and 10,000 test images of clothes, in ten classes."""

from estimator_train.datasets import mnist_files
from estimator_train.datasets.description import DataSet
from estimator_train.settings import groups

CLASS_NAMES = ('T-shirt/top', 'Trouser', 'Pullover', 'Dress', 'Coat', 'Sandal', 'Shirt', 'Sneaker',
               'Bag', 'Ankle boot')

_BASE_URLS = ('http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/',
              'https://storage.googleapis.com/tensorflow/tf-keras-datasets/')

FILES = mnist_files.make_data_files(
    _BASE_URLS,
    ('train-images-idx3-ubyte.gz', 26421880, '8d4fb7e6c68d591d4c3dfef9ec88bf0d'),
    ('train-labels-idx1-ubyte.gz', 29515, '25c81989df183df01b3e8a0aad5dffbe'),
    ('t10k-images-idx3-ubyte.gz', 4422102, 'bef4ecab320f06d8554ea6380940ec79'),
    ('t10k-labels-idx1-ubyte.gz', 5148, 'bb300cfdad3c16e7a12a480ee83cd310'),
)


def describe(settings: groups.Data) -> DataSet:
  """Describes the four files of Fashion-MNIST in `--data_dir`, which need not exist yet."""
  return mnist_files.describe('fashion_mnist', CLASS_NAMES, FILES, settings.data_dir or '')
