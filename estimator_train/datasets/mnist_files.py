"""Descriptions of MNIST and data sets in its format: four idx files with the same names."""

import os
from typing import Tuple

from estimator_train.datasets.description import DataFile, DataSet, IdxSplit


def make_data_files(addresses: Tuple[str, ...],
              *files: Tuple[str, int, str]) -> Tuple[DataFile, ...]:
  """Returns a DataFile for each (name, size, md5), with the URL address + name at each address."""
  return tuple(DataFile(name, size, md5, urls=tuple(address + name for address in addresses))
               for name, size, md5 in files)


def describe(name: str, labels: Tuple[str, ...], files: Tuple[DataFile, ...],
             folder: str) -> DataSet:
  """Describes 28x28 grey images with their files in a folder, which need not exist yet."""
  def split(prefix: str) -> IdxSplit:
    return IdxSplit(os.path.join(folder, prefix + '-images-idx3-ubyte.gz'),
                    os.path.join(folder, prefix + '-labels-idx1-ubyte.gz'))

  return DataSet(name=name, labels=labels, image_shape=(28, 28, 1), train=split('train'),
                 test=split('t10k'), files=files)
