"""Describes a tenth of Fashion-MNIST: 600 training and 100 test images per class.

The files ship with the package. `scripts/make_fashion_mnist_sample.py` generates them.
"""

import os
from typing import Any

from estimator_train.datasets import fashion_mnist, mnist_files
from estimator_train.datasets.description import DataSet

CLASS_NAMES = fashion_mnist.CLASS_NAMES
SAMPLE_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)),
                             'fashion_mnist_sample_files')


def describe(unused_settings: Any = None) -> DataSet:
  """Describes the four files of the sample in the installed package."""
  return mnist_files.describe('fashion_mnist_sample', CLASS_NAMES, (), SAMPLE_FOLDER)
