"""Finds images that cannot be decoded, with the decoder that training uses."""

import json
import logging
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Iterator, List, Optional, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf
from tqdm import tqdm

from estimator_train.datasets import fingerprint
from estimator_train.datasets.description import ImageSplit
from estimator_train.distribution.threads import available_cores
from estimator_train.errors import UserError, printable
from estimator_train.files import atomic
from estimator_train.inputs.source import BadImage
from estimator_train.settings import groups

_LOG = logging.getLogger('estimator_train')
_CACHE_FILE = 'skipped_images.json'
# The number of files that are submitted to the thread pool at a time. If a million files were
# submitted at once, their futures would take 1 GB.
_FILES_PER_CHUNK = 1024


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


def map_files(function: Callable[[bytes], Any], files: Sequence[bytes],
              description: str) -> Iterator[Any]:
  """Applies a function to files in parallel, and shows the progress on standard error.

  Args:
    function: takes the path of a file.
    files: the paths.
    description: the text in front of the progress bar.

  Yields:
    The result for each file, in order.
  """
  with ThreadPoolExecutor(available_cores()) as threads, \
      tqdm(total=len(files), desc=description, unit='image', disable=None) as bar:
    if bar.disable:
      _LOG.info('%s: %d images', description, len(files))
    for start in range(0, len(files), _FILES_PER_CHUNK):
      for result in threads.map(function, files[start:start + _FILES_PER_CHUNK]):
        bar.update()
        yield result


def read_regular_file(path: bytes) -> bytes:
  """Returns the content of a regular file.

  Raises:
    OSError: the file cannot be read or is not a regular file. Reading a named pipe would block,
      and reading a device might never end.
  """
  if not stat.S_ISREG(os.stat(path).st_mode):
    raise OSError('not a regular file')
  with open(path, 'rb') as file:
    return file.read()


def find_undecodable(files: Sequence[bytes]) -> Iterator[Tuple[int, str]]:
  """Yields (index, reason) for each file that cannot be read or decoded."""
  decoder = Decoder()

  def find_failure_reason(path: bytes) -> Optional[str]:
    try:
      decoder.decode_shape(read_regular_file(path))
    except OSError as error:
      return error.strerror or str(error)
    except ValueError as error:
      return str(error)
    return None

  try:
    for index, reason in enumerate(map_files(find_failure_reason, files, 'checking images')):
      if reason is not None:
        yield index, reason
  finally:
    decoder.close()


def drop_undecodable(split: ImageSplit, split_name: str, settings: groups.Input,
                     model_dir: str) -> Tuple[ImageSplit, List[BadImage]]:
  """Removes the bad images from a split. An image is bad if it cannot be decoded.

  All images are decoded once before the first step, so that the numbers of steps and examples are
  known from the start. The list of bad images is stored and reused until a file changes.

  Args:
    split: the image files.
    split_name: `train` or `test`; the list is stored under this name.
    settings: the input flags of the run; `--max_bad_images` is used.
    model_dir: the folder in which the list is stored.

  Returns:
    The split without the bad images, and the bad images.

  Raises:
    UserError: the fraction of bad images exceeds `--max_bad_images`.
  """
  bad = [(index, BadImage(os.fsdecode(split.files[index]), reason))
         for index, reason in _find_undecodable_cached(split, split_name, model_dir)]
  if len(bad) > settings.max_bad_images * len(split.files):
    raise UserError('the fraction of images that cannot be decoded exceeds --max_bad_images',
                    '{} of {} with --max_bad_images={:g}, the first is {} ({})'.format(
                        len(bad), len(split.files), settings.max_bad_images,
                        printable(bad[0][1].file), bad[0][1].reason),
                    'repair or remove them (--mode=audit lists them), or give a larger fraction')
  for _, image in bad:
    _LOG.warning('skipping %s (%s)', printable(image.file), image.reason)
  return _without_indices(split, [index for index, _ in bad]), [image for _, image in bad]


def _without_indices(split: ImageSplit, indices: Sequence[int]) -> ImageSplit:
  """Returns the split without the files at these indices."""
  if not indices:
    return split
  dropped = set(indices)
  return ImageSplit([file for index, file in enumerate(split.files) if index not in dropped],
                    np.delete(split.classes, indices))


def _find_undecodable_cached(split: ImageSplit, split_name: str,
                             model_dir: str) -> List[Tuple[int, str]]:
  """Like find_undecodable, but reuses the result in `model_dir` if no file has changed."""
  path = os.path.join(model_dir, _CACHE_FILE)
  try:
    with open(path, encoding='utf-8') as file:
      results = json.load(file)
  except (OSError, ValueError):
    results = {}
  files_digest = fingerprint.of_files(split.files)
  if results.get(split_name, {}).get('files') != files_digest:
    results[split_name] = {'files': files_digest, 'bad': list(find_undecodable(split.files))}
    atomic.write_json(path, results)
  return [(index, reason) for index, reason in results[split_name]['bad']]
