"""What a data set is: its files, where they come from, its classes and the shape of an image."""

from typing import Any, NamedTuple, Optional, Sequence, Tuple, Union

from estimator_train.errors import UserError
from estimator_train.settings import groups

TOP_K = 5  # Classes that a prediction tells, the most probable first; all where there are fewer.


class DataFile(NamedTuple):
  """A published file.

  Attributes:
    name: its name in `data_dir`, and at the end of each address.
    size: its length in bytes.
    md5: its MD5 checksum as 32 hexadecimal digits.
    urls: where to get it, the publisher's address first.
  """
  name: str
  size: int
  md5: str
  urls: Tuple[str, ...]


class IdxSplit(NamedTuple):
  """One split (train or test) of a data set in two gzipped idx files.

  Attributes:
    images: path of the images, uint8 [examples, height, width].
    labels: path of the labels, uint8 [examples].
  """
  images: str
  labels: str


class ImageSplit(NamedTuple):
  """One split of a data set in image files.

  Attributes:
    files: their paths, as bytes.
    classes: the class number of each, an int32 array [examples].
  """
  files: Sequence[bytes]
  classes: Any


class ArraySplit(NamedTuple):
  """One split of a data set in NumPy arrays, which may be mapped to files (`np.load(mmap_mode)`).

  Attributes:
    images: uint8 [examples, height, width, channels].
    classes: the class number of each, an integer array [examples].
  """
  images: Any
  classes: Any


class SyntheticSplit(NamedTuple):
  """Synthetic images.

  Attributes:
    num_batches: how many; None: without end.
  """
  num_batches: Optional[int]


Split = Union[IdxSplit, ImageSplit, ArraySplit, SyntheticSplit]


class DataSet(NamedTuple):
  """A data set as the rest of the package sees it.

  Attributes:
    name: its value of `--dataset`.
    labels: the class names, in the order of the model's outputs.
    image_shape: (height, width, channels) of an image.
    train: where the training examples are; None where this mode does not read them.
    test: where the test examples are; the same.
    files: what `--mode=download` gets; empty where there is nothing to get.
  """
  name: str
  labels: Tuple[str, ...]
  image_shape: Tuple[int, int, int]
  train: Optional[Split] = None
  test: Optional[Split] = None
  files: Tuple[DataFile, ...] = ()

  @property
  def is_synthetic(self) -> bool:
    """Whether training examples are made, not read."""
    return type(self.train) is SyntheticSplit


def required_data_dir(settings: groups.Data) -> str:
  """Returns `--data_dir`, or raises a UserError where it is not given."""
  if not settings.data_dir:
    raise UserError('--data_dir is required for this data set',
                    '--dataset={} without --data_dir'.format(settings.dataset),
                    'give --data_dir=FOLDER; --mode=download fills it')
  return settings.data_dir
