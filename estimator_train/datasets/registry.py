"""Finds the data set of --dataset: a module of this package, or a function of the user.

Each module has a function `describe(settings)`, which returns a DataSet. If `describe` lists image
files, the module also has `describe_classes(settings)`, which does not list files. A module can
have a function `get(settings)`, which replaces the download of the `files` of the DataSet.
"""

import importlib
from typing import Any, List

from estimator_train.datasets import download, own, transfer
from estimator_train.datasets.description import DataSet, require_data_dir
from estimator_train.settings import Settings, choices, groups, user_code


def describe(settings: Settings) -> DataSet:
  """Describes the data set of the settings.

  Raises:
    UserError: there is no such data set, a required folder or pattern is not given, image files are
      missing, or the user's function does not return a valid DataSet.
  """
  dataset: DataSet = _dataset_module(settings.dataset).describe(settings)
  if dataset.files:
    require_data_dir(settings[groups.Data])
  return dataset


def describe_classes(settings: Settings) -> DataSet:
  """Describes the data set without its splits, which are not required to build the model.

  Raises:
    UserError: neither the settings nor `model_dir` determines the classes.
  """
  module = _dataset_module(settings.dataset)
  dataset: DataSet = getattr(module, 'describe_classes', module.describe)(settings)
  return dataset._replace(train=None, test=None, files=())


def get(settings: Settings) -> List[transfer.DownloadResult]:
  """Downloads the missing files of the data set.

  Returns:
    The published files, or the folder of the images of oct2017; [] if nothing is published.

  Raises:
    UserError: the files cannot be downloaded or stored.
  """
  module = _dataset_module(settings.dataset)
  if hasattr(module, 'get'):
    results: List[transfer.DownloadResult] = module.get(settings)
    return results
  files = describe(settings).files
  return download.download_files(files, require_data_dir(settings[groups.Data])) if files else []


def _dataset_module(name: str) -> Any:
  """Returns the module of a data set; for a function of the user, the module `own`."""
  if user_code.is_function_name(name):
    return own
  user_code.check_built_in_name('dataset', name, choices.DATASETS)
  return importlib.import_module('estimator_train.datasets.' + name)
