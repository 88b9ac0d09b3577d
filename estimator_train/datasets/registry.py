"""The data sets by name."""

import glob
import os
from typing import Callable, Dict, List

from estimator_train.datasets import (
  download,
  fashion_mnist,
  fashion_mnist_sample,
  image_folder,
  mnist,
  oct2017,
  own,
  synthetic,
  transfer,
)
from estimator_train.datasets.description import DataSet
from estimator_train.errors import UserError
from estimator_train.settings import Settings, choices, user_code

_DESCRIBE_IN_DATA_DIR: Dict[str, Callable[[str], DataSet]] = {
    'fashion_mnist': fashion_mnist.describe,
    'mnist': mnist.describe,
}


def describe(settings: Settings) -> DataSet:
  """Returns the description of the data set that the settings name.

  Raises:
    UserError: there is no such data set; it needs a folder or patterns that are not given, or image
      files are missing; or the user's own function does not return one.
  """
  name = settings.dataset
  if user_code.is_own(name):
    dataset = own.describe(settings)
    if dataset.files:
      _data_dir(settings)
    return dataset
  if name == 'fashion_mnist_sample':
    return fashion_mnist_sample.describe()
  if name == 'synthetic':
    return synthetic.describe(settings)
  if name == 'image_folder':
    return image_folder.describe(settings)
  _check_name(name)
  data_dir = _data_dir(settings)
  if name == 'oct2017':
    root = oct2017.find(data_dir)
    train, test = (os.path.join(glob.escape(folder), '*', '*.jpeg') for folder in (
        os.path.join(root, 'train'), oct2017.eval_folder(root)))
    return image_folder.describe_patterns(settings, train, test, oct2017.LABELS)
  return _DESCRIBE_IN_DATA_DIR[name](data_dir)


def describe_classes(settings: Settings) -> DataSet:
  """Describes the data set as far as a model needs it, without any of its examples.

  Raises:
    UserError: the classes are told neither by the settings nor by `model_dir`.
  """
  name = settings.dataset
  if name == 'oct2017':
    dataset = image_folder.describe_classes(settings, oct2017.LABELS)
  elif name == 'image_folder':
    dataset = image_folder.describe_classes(settings, settings.labels)
  elif name in _DESCRIBE_IN_DATA_DIR:
    dataset = _DESCRIBE_IN_DATA_DIR[name](settings.data_dir or '')
  else:
    dataset = describe(settings)
  return dataset._replace(train=None, test=None, files=())


def get(settings: Settings) -> List[transfer.Fetched]:
  """Gets what is missing of the data set's files; nothing where there is nothing to get.

  Raises:
    UserError: they cannot be had, or cannot be stored.
  """
  if settings.dataset in ('fashion_mnist_sample', 'image_folder', 'synthetic'):
    return []
  if user_code.is_own(settings.dataset):
    files = describe(settings).files
    return download.fetch(files, _data_dir(settings)) if files else []
  _check_name(settings.dataset)
  data_dir = _data_dir(settings)
  if settings.dataset == 'oct2017':
    return oct2017.download(data_dir)
  return download.fetch(_DESCRIBE_IN_DATA_DIR[settings.dataset](data_dir).files, data_dir)


def _check_name(name: str) -> None:
  if name not in choices.DATASETS:
    raise UserError('there is no such data set', '--dataset=' + name,
                    'choose from {}, or give package.module:function'.format(
                        ', '.join(choices.DATASETS)))


def _data_dir(settings: Settings) -> str:
  if not settings.data_dir:
    raise UserError('--data_dir is required for this data set',
                    '--dataset={} without --data_dir'.format(settings.dataset),
                    'give --data_dir=FOLDER; --mode=download fills it')
  return settings.data_dir
