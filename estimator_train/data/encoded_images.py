"""Defines the interface to encoded images, and finds those that cannot be decoded.

The decoder is that of the training.
"""

import abc
import fractions
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Iterator, List, Optional, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.data import images
from estimator_train.data.batching import Batching
from estimator_train.data.source import BadExample, BadImage, Source, WrongSchema
from estimator_train.distribution.threads import available_cores
from estimator_train.errors import UserError, printable
from estimator_train.settings import groups
from estimator_train.system import stored
from estimator_train.system.progress import make_progress_bar

_LOG = logging.getLogger('estimator_train')
_CACHE_FILE = 'skipped_images.json'
# The number of examples that are submitted to the thread pool at a time. If a million examples were
# submitted at once, their futures would take 1 GB.
_EXAMPLES_PER_CHUNK = 1024
_GREY_SAMPLE_SIZE = 16  # The maximum number of images that expects_grey decodes.


class EncodedImages(Source):
  """Images that are read in any order, by their indices. A subclass reads one format."""
  _expects_grey: Optional[bool] = None  # The result of expects_grey, once it has been called.

  @abc.abstractmethod
  def __len__(self) -> int:
    """Returns the number of images."""

  @abc.abstractmethod
  def references(self, chunks: tf.data.Dataset) -> tf.data.Dataset:
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


class Decoder:
  """Decodes single images. Several threads can share a decoder."""

  def __init__(self) -> None:
    with tf.Graph().as_default() as graph:
      self._contents = tf.placeholder(tf.string, [])
      self._shape = tf.shape(tf.image.decode_jpeg(self._contents))
    self._session = tf.Session(graph=graph, config=tf.ConfigProto(device_count={'GPU': 0}))
    self._fetch_shape = self._session.make_callable(self._shape, [self._contents])

  def decode_shape(self, contents: bytes) -> Tuple[int, int, int]:
    """Decodes an image and returns (height, width, channels).

    Raises:
      ValueError: the image cannot be decoded.
    """
    try:
      height, width, channels = self._fetch_shape(contents)
    except tf.errors.OpError as error:
      raise ValueError(error.message.splitlines()[0].strip()) from error
    return int(height), int(width), int(channels)

  def close(self) -> None:
    self._session.close()


def map_examples(function: Callable[[int], Any], count: int, description: str) -> Iterator[Any]:
  """Applies a function to the indices of examples in parallel, and shows the progress.

  Args:
    function: takes the index of an example.
    count: the number of examples.
    description: the text in front of the progress bar.

  Yields:
    The result for each example, in order.
  """
  with ThreadPoolExecutor(available_cores()) as threads, \
      make_progress_bar(total=count, desc=description, unit='image') as bar:
    if bar.disable:
      _LOG.info('%s: %d images', description, count)
    for start in range(0, count, _EXAMPLES_PER_CHUNK):
      for result in threads.map(function, range(start, min(start + _EXAMPLES_PER_CHUNK, count))):
        bar.update()
        yield result


def find_undecodable(source: EncodedImages) -> Iterator[Tuple[int, str]]:
  """Yields (index, reason) for each image that cannot be read or decoded.

  Raises:
    UserError: an example has other features or labels than the flags state.
  """
  decoder = Decoder()

  def find_failure_reason(index: int) -> Optional[str]:
    try:
      decoder.decode_shape(source.read_content(index))
    except OSError as error:
      return error.strerror or str(error)
    except WrongSchema as error:
      raise error.to_user_error() from error
    except BadExample as error:
      return error.reason
    except ValueError as error:
      return str(error)
    return None

  try:
    for index, reason in enumerate(
        map_examples(find_failure_reason, len(source), 'checking images')):
      if reason is not None:
        yield index, reason
  finally:
    decoder.close()


def find_bad(source: EncodedImages, split_name: str,
             model_dir: str) -> List[Tuple[int, BadImage]]:
  """Returns the indices of the bad images, which cannot be decoded, and the bad images.

  All images are decoded once before the first step, so that the numbers of steps and examples are
  known from the start. The list of bad images is stored and reused until a file changes.

  Args:
    source: the images.
    split_name: `train` or `test`; the list is stored under this name.
    model_dir: the folder in which the list is stored.
  """
  return [(index, BadImage(source.name_of(index), reason))
          for index, reason in _find_undecodable_cached(source, split_name, model_dir)]


def check_fraction(bad: Sequence[BadImage], count: int, settings: groups.Input) -> None:
  """Logs the bad images, which are skipped.

  Args:
    bad: the bad images.
    count: the number of all images.
    settings: the input flags of the run.

  Raises:
    UserError: the fraction of bad images exceeds `--max_bad_images`.
  """
  # The fraction as it was given: 0.29 * 100 is less than 29.
  if len(bad) > fractions.Fraction(str(settings.max_bad_images)) * count:
    raise UserError('the fraction of images that cannot be decoded exceeds --max_bad_images',
                    '{} of {} with --max_bad_images={:g}, the first is {} ({})'.format(
                        len(bad), count, settings.max_bad_images, printable(bad[0].file),
                        bad[0].reason),
                    'repair or remove them (--mode=audit lists them), or give a larger fraction')
  for image in bad:
    _LOG.warning('skipping %s (%s)', printable(image.file), image.reason)


def _find_undecodable_cached(source: EncodedImages, split_name: str,
                             model_dir: str) -> List[Tuple[int, str]]:
  """Like find_undecodable, but reuses the result in `model_dir` if no file has changed."""
  path = os.path.join(model_dir, _CACHE_FILE)
  results = stored.load_or_warn(path, stored.parse_json_with_digest) or {}
  files_digest = source.cache_key()
  if results.get(split_name, {}).get('files') != files_digest:
    results[split_name] = {'files': files_digest, 'bad': list(find_undecodable(source))}
    stored.write_json_with_digest(path, results)
  return [(index, reason) for index, reason in results[split_name]['bad']]


def evenly_spaced(count: int, max_count: int) -> List[int]:
  """Returns up to `max_count` indices, evenly spaced from 0 to `count` - 1."""
  sample_size = min(max_count, count)
  return [index * count // sample_size for index in range(sample_size)]
