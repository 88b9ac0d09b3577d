"""The data sets by name: those of --dataset, which are modules of this package, and the user's own.

A module has the function `describe(settings)`, which returns a DataSet. It may have two more:
`describe_classes(settings)`, where describing all would list files, and `get(settings)`, where
getting the data is more than downloading its `files`.
"""

import importlib
from typing import Any, List

from estimator_train.datasets import download, own, transfer
from estimator_train.datasets.description import DataSet, required_data_dir
from estimator_train.settings import Settings, choices, groups, user_code


def describe(settings: Settings) -> DataSet:
  """Returns the description of the data set that the settings name.

  Raises:
    UserError: there is no such data set; it needs a folder or patterns that are not given, or image
      files are missing; or the user's own function does not return one.
  """
  dataset: DataSet = _module(settings.dataset).describe(settings)
  if dataset.files:
    required_data_dir(settings[groups.Data])
  return dataset


def describe_classes(settings: Settings) -> DataSet:
  """Describes the data set as far as a model needs it, without any of its examples.

  Raises:
    UserError: the classes are told neither by the settings nor by `model_dir`.
  """
  module = _module(settings.dataset)
  dataset: DataSet = getattr(module, 'describe_classes', module.describe)(settings)
  return dataset._replace(train=None, test=None, files=())


def get(settings: Settings) -> List[transfer.Fetched]:
  """Gets what is missing of the data set's files; nothing where there is nothing to get.

  Raises:
    UserError: they cannot be had, or cannot be stored.
  """
  module = _module(settings.dataset)
  if hasattr(module, 'get'):
    fetched: List[transfer.Fetched] = module.get(settings)
    return fetched
  files = describe(settings).files
  return download.fetch(files, required_data_dir(settings[groups.Data])) if files else []


def _module(name: str) -> Any:
  if user_code.is_own(name):
    return own
  user_code.check_name('dataset', name, choices.DATASETS)
  return importlib.import_module('estimator_train.datasets.' + name)
