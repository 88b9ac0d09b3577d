"""Finds the data set of --dataset: a built-in one, or a function of the user.

A built-in data set NAME is the module estimator_train.data.NAME, unless _BUILT_IN has it. The
module has a function `describe`, which takes the settings and returns the DataSet. It may also have
a function `describe_classes`, which does so without listing the files of the splits.
"""

import importlib
from typing import Callable, Dict, List, Tuple

from estimator_train.data import idx, oct2017, own
from estimator_train.data.description import DataSet, SyntheticSplit, require_data_dir
from estimator_train.data.download import DownloadResult, download_files
from estimator_train.settings import Settings, user_code

_NUM_SYNTHETIC_EVAL_BATCHES = 10
_Functions = Tuple[Callable[[Settings], DataSet], Callable[[Settings], DataSet]]


def describe(settings: Settings) -> DataSet:
  """Describes the data set of the settings.

  Raises:
    UserError: a required folder or pattern is not given, image files are
      missing, or the user's function does not return a valid DataSet.
  """
  dataset = _find_functions(settings.data.dataset)[0](settings)
  if dataset.files:
    require_data_dir(settings.data)
  return dataset


def describe_classes(settings: Settings) -> DataSet:
  """Describes the data set without its splits, which are not required to build the model.

  Raises:
    UserError: neither the settings nor `model_dir` determines the classes.
  """
  dataset = _find_functions(settings.data.dataset)[1](settings)
  return dataset._replace(train=None, test=None, files=())


def download_missing_files(settings: Settings) -> List[DownloadResult]:
  """Downloads the missing files of the data set.

  Returns:
    The published files, or the folder of the images of oct2017; [] if nothing is published.

  Raises:
    UserError: the files cannot be downloaded or stored.
  """
  if settings.data.dataset == 'oct2017':
    return oct2017.download_images(require_data_dir(settings.data))
  if settings.data.dataset in ('image_folder', 'tfrecord'):  # The user provides the files.
    return []
  files = describe(settings).files
  return download_files(files, require_data_dir(settings.data)) if files else []


def _describe_idx(settings: Settings) -> DataSet:
  return idx.describe(settings.data.dataset, settings.data.data_dir or '')


def _describe_synthetic(settings: Settings) -> DataSet:
  """Describes synthetic images, to measure the speed of a model without an input pipeline.

  They have the size of `--image_size` (default: 28x28x1) and the classes of `--labels` (default:
  ten classes).
  """
  height, width, channels = (*(settings.data.image_size or (28, 28)), 1)[:3]
  return DataSet(
      name='synthetic',
      labels=settings.data.labels or tuple('class_{}'.format(index) for index in range(10)),
      image_shape=(height, width, channels),
      train=SyntheticSplit(None),
      test=SyntheticSplit(_NUM_SYNTHETIC_EVAL_BATCHES))


_BUILT_IN: Dict[str, Callable[[Settings], DataSet]] = {
    'synthetic': _describe_synthetic, **dict.fromkeys(idx.DATA_SETS, _describe_idx)}


def _find_functions(name: str) -> _Functions:
  """Returns the functions that describe a data set with its splits, and only its classes."""
  if user_code.is_function_name(name):
    return own.describe, own.describe_classes
  if name in _BUILT_IN:
    return _BUILT_IN[name], _BUILT_IN[name]
  module = importlib.import_module('estimator_train.data.' + name)
  return module.describe, getattr(module, 'describe_classes', module.describe)
