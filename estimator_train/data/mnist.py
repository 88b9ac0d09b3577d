"""Describes MNIST, and the data sets that have its format: gzipped idx files of 28x28 images."""

import os
from typing import Tuple

from estimator_train.data import DataFile, DataSet, IdxSplit


def _published_files(base_urls: Tuple[str, ...],
                     *files: Tuple[str, int, str]) -> Tuple[DataFile, ...]:
  """Returns a DataFile for each (name, size, md5), with the URLs `base_url + name`."""
  return tuple(DataFile(name, size, md5, urls=tuple(base_url + name for base_url in base_urls))
               for name, size, md5 in files)


# A tenth of Fashion-MNIST, with 600 training and 100 test images per class. The files ship with the
# package; scripts/make_fashion_mnist_sample.py generates them.
SAMPLE_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)),
                             'fashion_mnist_sample_files')
# Each of these three data sets has 60,000 training and 10,000 test images. They show clothes
# (Fashion-MNIST), handwritten digits (MNIST), and ten hiragana in cursive script (KMNIST, by
# Clanuwat et al., 2018, arXiv:1812.01718).
FASHION_MNIST_FILES = _published_files(
    ('http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/',
     'https://storage.googleapis.com/tensorflow/tf-keras-datasets/'),
    ('train-images-idx3-ubyte.gz', 26421880, '8d4fb7e6c68d591d4c3dfef9ec88bf0d'),
    ('train-labels-idx1-ubyte.gz', 29515, '25c81989df183df01b3e8a0aad5dffbe'),
    ('t10k-images-idx3-ubyte.gz', 4422102, 'bef4ecab320f06d8554ea6380940ec79'),
    ('t10k-labels-idx1-ubyte.gz', 5148, 'bb300cfdad3c16e7a12a480ee83cd310'))
MNIST_FILES = _published_files(
    ('http://yann.lecun.com/exdb/mnist/', 'https://storage.googleapis.com/cvdf-datasets/mnist/'),
    ('train-images-idx3-ubyte.gz', 9912422, 'f68b3c2dcbeaaa9fbdd348bbdeb94873'),
    ('train-labels-idx1-ubyte.gz', 28881, 'd53e105ee54ea40749a09fcbcd1e9432'),
    ('t10k-images-idx3-ubyte.gz', 1648877, '9fb629c4189551a2d022fa330f9573f3'),
    ('t10k-labels-idx1-ubyte.gz', 4542, 'ec29112dd5afa0611ce80d1b7f02629c'))
KMNIST_FILES = _published_files(
    ('http://codh.rois.ac.jp/kmnist/dataset/kmnist/',),
    ('train-images-idx3-ubyte.gz', 18165135, 'bdb82020997e1d708af4cf47b453dcf7'),
    ('train-labels-idx1-ubyte.gz', 29497, 'e144d726b3acfaa3e44228e80efcd344'),
    ('t10k-images-idx3-ubyte.gz', 3041136, '5c965bf0a639b31b8f53240b1b52f4d7'),
    ('t10k-labels-idx1-ubyte.gz', 5120, '7320c461ea6c1c855c0b718fb2a4b134'))
FASHION_MNIST_CLASSES = ('T-shirt/top', 'Trouser', 'Pullover', 'Dress', 'Coat', 'Sandal', 'Shirt',
                         'Sneaker', 'Bag', 'Ankle boot')
# The class names and the published files of each data set.
DATA_SETS = {'fashion_mnist': (FASHION_MNIST_CLASSES, FASHION_MNIST_FILES),
             'fashion_mnist_sample': (FASHION_MNIST_CLASSES, ()),
             'mnist': (tuple('0123456789'), MNIST_FILES),
             'kmnist': (('o', 'ki', 'su', 'tsu', 'na', 'ha', 'ma', 'ya', 're', 'wo'), KMNIST_FILES)}


def describe_data_set(name: str, data_dir: str = '') -> DataSet:
  """Describes one of DATA_SETS, 28x28 grayscale images in four files, which need not exist yet."""
  class_names, files = DATA_SETS[name]
  folder = data_dir if files else SAMPLE_FOLDER

  def make_split(prefix: str) -> IdxSplit:
    return IdxSplit(os.path.join(folder, prefix + '-images-idx3-ubyte.gz'),
                    os.path.join(folder, prefix + '-labels-idx1-ubyte.gz'),
                    are_verified=bool(files))

  return DataSet(name=name, labels=class_names, image_shape=(28, 28, 1),
                 train=make_split('train'), test=make_split('t10k'), files=files)
