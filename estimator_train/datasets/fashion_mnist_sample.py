"""A tenth of Fashion-MNIST that ships with the package: 600 training and 100 test images a class.

`tests/tools/make_fashion_mnist_sample.py` made its files.
"""

import os
from typing import Any

from estimator_train.datasets import fashion_mnist, mnist_files
from estimator_train.datasets.description import DataSet

LABELS = fashion_mnist.LABELS
FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'fashion_mnist_sample_files')


def describe(unused_settings: Any = None) -> DataSet:
  """The sample in the installed package; there is nothing to download."""
  return mnist_files.describe('fashion_mnist_sample', LABELS, (), FOLDER)
