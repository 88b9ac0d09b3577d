"""What MNIST and the sets made in its image have in common: four idx files of the same names."""

import os
from typing import Tuple

from estimator_train.datasets.description import DataFile, DataSet, IdxSplit


def published(addresses: Tuple[str, ...],
              *files: Tuple[str, int, str]) -> Tuple[DataFile, ...]:
  """Returns the files of (name, size, md5), each of which lies under its name at each address."""
  return tuple(DataFile(name, size, md5, urls=tuple(address + name for address in addresses))
               for name, size, md5 in files)


def describe(name: str, labels: Tuple[str, ...], files: Tuple[DataFile, ...],
             folder: str) -> DataSet:
  """Returns a set of 28x28 grey images whose files are, or will be, in a folder."""
  def split(prefix: str) -> IdxSplit:
    return IdxSplit(os.path.join(folder, prefix + '-images-idx3-ubyte.gz'),
                    os.path.join(folder, prefix + '-labels-idx1-ubyte.gz'))

  return DataSet(name=name, labels=labels, image_shape=(28, 28, 1), train=split('train'),
                 test=split('t10k'), files=files)
