"""Made-up images, to measure a model without its input."""

from typing import Tuple

from estimator_train.datasets.description import DataSet


def describe(image_size: Tuple[int, int]) -> DataSet:
  """Returns ten classes of grey images of that (height, width)."""
  height, width = image_size
  return DataSet(
      name='synthetic',
      labels=tuple('class_{}'.format(index) for index in range(10)),
      image_shape=(height, width, 1),
      train=None,
      test=None,
      files=())
