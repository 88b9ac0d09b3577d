"""The data sets by name."""

from typing import Callable, Dict, Optional, Tuple

from estimator_train.datasets import fashion_mnist, fashion_mnist_sample, mnist, synthetic
from estimator_train.datasets.description import DataSet
from estimator_train.errors import UserError

_DESCRIBE_IN_DATA_DIR: Dict[str, Callable[[str], DataSet]] = {
    'fashion_mnist': fashion_mnist.describe,
    'mnist': mnist.describe,
}

NAMES = ('fashion_mnist_sample',) + tuple(_DESCRIBE_IN_DATA_DIR) + ('synthetic',)


def describe(name: str, data_dir: Optional[str], image_size: Tuple[int, int]) -> DataSet:
  """Returns the description of the data set of that name.

  Args:
    name: one of NAMES.
    data_dir: where its files are or will be; only for those that do not ship with the package.
    image_size: (height, width) of synthetic images.

  Raises:
    UserError: when data_dir is needed and not given.
  """
  if name == 'fashion_mnist_sample':
    return fashion_mnist_sample.describe()
  if name == 'synthetic':
    return synthetic.describe(image_size)
  if not data_dir:
    raise UserError('--data_dir is required for this data set',
                    '--dataset={} without --data_dir'.format(name),
                    'give --data_dir=FOLDER; what is missing there is downloaded')
  return _DESCRIBE_IN_DATA_DIR[name](data_dir)
