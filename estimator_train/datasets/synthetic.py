"""Made-up images, to measure a model without its input."""

from typing import Tuple

from estimator_train.datasets.description import DataSet, SyntheticSplit
from estimator_train.settings import groups

_IMAGE_SHAPE = (28, 28, 1)
_EVAL_BATCHES = 10


def describe(settings: groups.Data) -> DataSet:
  """Returns images of the size and the classes asked for: ten, of grey 28x28, unless they are."""
  size: Tuple[int, ...] = settings.image_size or ()
  height, width, channels = size + _IMAGE_SHAPE[len(size):]
  return DataSet(
      name='synthetic',
      labels=settings.labels or tuple('class_{}'.format(index) for index in range(10)),
      image_shape=(height, width, channels),
      train=SyntheticSplit(None),
      test=SyntheticSplit(_EVAL_BATCHES),
      files=())
