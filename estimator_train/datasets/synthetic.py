"""Made-up images, to measure a model without its input."""

from typing import Optional, Tuple

from estimator_train.datasets.description import DataSet, SyntheticSplit

_IMAGE_SIZE = (28, 28)
_EVAL_BATCHES = 10


def describe(image_size: Optional[Tuple[int, int]]) -> DataSet:
  """Returns ten classes of grey images of that (height, width), 28x28 when it is not given."""
  return DataSet(
      name='synthetic',
      labels=tuple('class_{}'.format(index) for index in range(10)),
      image_shape=(image_size or _IMAGE_SIZE) + (1,),
      train=SyntheticSplit(None),
      test=SyntheticSplit(_EVAL_BATCHES),
      files=())
