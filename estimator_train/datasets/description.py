"""What a data set is: its files, where they come from, its classes and the shape of an image."""

from typing import NamedTuple, Optional, Tuple


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


class DataSet(NamedTuple):
  """A data set as the rest of the package sees it.

  Attributes:
    name: its value of `--dataset`.
    labels: the class names, in the order of the model's outputs.
    image_shape: (height, width, channels) of an image.
    train: where the training examples are; None where they are made up.
    test: where the test examples are; None where they are made up.
    files: what `--mode=download` gets; empty where there is nothing to get.
  """
  name: str
  labels: Tuple[str, ...]
  image_shape: Tuple[int, int, int]
  train: Optional[IdxSplit]
  test: Optional[IdxSplit]
  files: Tuple[DataFile, ...]
