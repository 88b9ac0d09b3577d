"""Defines the interface to images that are decoded from the content of JPEG, PNG or GIF files."""

import abc
from typing import List, Optional

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.inputs import images
from estimator_train.inputs.batching import Batching
from estimator_train.inputs.source import BadExample

_GREY_SAMPLE_SIZE = 16  # The maximum number of images that expects_grey decodes.


class EncodedImages(abc.ABC):
  """Images that are read in any order, by their indices. A subclass reads one format."""
  _expects_grey: Optional[bool] = None  # The result of expects_grey, once it has been called.

  @abc.abstractmethod
  def __len__(self) -> int:
    """Returns the number of images."""

  @abc.abstractmethod
  def look_up(self, chunks: tf.data.Dataset) -> tf.data.Dataset:
    """Returns a dataset of (reference, class index), scalars, for a dataset of indices, int64 [n].

    The references are the arguments of `read`.
    """

  @staticmethod
  @abc.abstractmethod
  def read(reference: tf.Tensor) -> tf.Tensor:
    """Returns the content of an image, a scalar string."""

  @abc.abstractmethod
  def read_content(self, index: int) -> bytes:
    """Reads the content of an image.

    Raises:
      OSError: the file cannot be read.
      BadExample: the example is damaged.
    """

  @abc.abstractmethod
  def name_of(self, index: int) -> str:
    """Returns the file of an image and, if the file has several examples, the place in the file.

    Bytes of a path that cannot be decoded become surrogate escapes, as in `os.fsdecode`.
    """

  @abc.abstractmethod
  def cache_key(self) -> str:
    """Returns a fingerprint of the images; see Source.cache_key."""

  @abc.abstractmethod
  def class_indices(self) -> np.ndarray:
    """Returns the class index of each image, integer [N]."""

  @abc.abstractmethod
  def make_dataset(self, indices: np.ndarray, batching: Batching,
                   expect_grey: bool) -> tf.data.Dataset:
    """Returns a dataset of the images at `indices`, in this order, in batches.

    The batches are those of images.make_examples.
    """

  def expects_grey(self) -> bool:
    """Returns whether all images of a sample are grey.

    The result only selects the faster of two code paths; each code path reads grey and colour
    images correctly. The sample is decoded once: filling a cache asks twice.
    """
    if self._expects_grey is None:
      self._expects_grey = images.are_all_grey(
          content for index in evenly_spaced(len(self), _GREY_SAMPLE_SIZE)
          for content in self._read_if_readable(index))
    return self._expects_grey

  def _read_if_readable(self, index: int) -> List[bytes]:
    try:
      return [self.read_content(index)]
    except (OSError, BadExample):  # The error is reported when the image is read for training.
      return []


def evenly_spaced(count: int, max_count: int) -> List[int]:
  """Returns up to `max_count` indices, evenly spaced from 0 to `count` - 1."""
  sample_size = min(max_count, count)
  return [index * count // sample_size for index in range(sample_size)]
