"""Describes synthetic images, to measure the speed of a model without an input pipeline."""

from typing import Tuple

from estimator_train.datasets.description import DataSet, SyntheticSplit
from estimator_train.settings import groups

_DEFAULT_IMAGE_SHAPE = (28, 28, 1)
_NUM_EVAL_BATCHES = 10


def describe(settings: groups.Data) -> DataSet:
  """Describes images of `--image_size` (default: 28x28x1) and `--labels` (default: ten classes)."""
  size: Tuple[int, ...] = settings.image_size or ()
  height, width, channels = size + _DEFAULT_IMAGE_SHAPE[len(size):]
  return DataSet(
      name='synthetic',
      labels=settings.labels or tuple('class_{}'.format(index) for index in range(10)),
      image_shape=(height, width, channels),
      train=SyntheticSplit(None),
      test=SyntheticSplit(_NUM_EVAL_BATCHES),
      files=())
