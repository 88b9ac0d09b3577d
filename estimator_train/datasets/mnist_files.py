"""Describes MNIST and data sets in the same format: four idx files with the same names."""

import os
from typing import Tuple

from estimator_train.datasets.description import DataFile, DataSet, IdxSplit


def make_data_files(base_urls: Tuple[str, ...],
                    *files: Tuple[str, int, str]) -> Tuple[DataFile, ...]:
  """Returns a DataFile for each (name, size, md5), with the URLs `base_url + name`."""
  return tuple(DataFile(name, size, md5, urls=tuple(base_url + name for base_url in base_urls))
               for name, size, md5 in files)


def describe(name: str, class_names: Tuple[str, ...], files: Tuple[DataFile, ...],
             folder: str) -> DataSet:
  """Describes a data set of 28x28 grayscale images. Its four files need not exist yet."""
  def make_split(prefix: str) -> IdxSplit:
    return IdxSplit(os.path.join(folder, prefix + '-images-idx3-ubyte.gz'),
                    os.path.join(folder, prefix + '-labels-idx1-ubyte.gz'))

  return DataSet(name=name, labels=class_names, image_shape=(28, 28, 1),
                 train=make_split('train'), test=make_split('t10k'), files=files)
