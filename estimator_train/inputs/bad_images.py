"""Finds the images that cannot be decoded, with the decoder that training uses."""

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
_FILE = 'skipped_images.json'
_AT_ONCE = 1024  # Files handed to the threads at a time; a million would need a GB of futures.


class Decoder:
  """Decodes images one by one; several threads may share it."""

  def __init__(self) -> None:
    with tf.Graph().as_default() as graph:
      self._contents = tf.placeholder(tf.string, [])
      self._shape = tf.shape(tf.image.decode_jpeg(self._contents))
    self._session = tf.Session(graph=graph, config=tf.ConfigProto(device_count={'GPU': 0}))
    self._fetch = self._session.make_callable(self._shape, [self._contents])

  def shape(self, contents: bytes) -> Tuple[int, int, int]:
    """Returns (height, width, channels); raises a ValueError that says why where it cannot."""
    try:
      height, width, channels = self._fetch(contents)
    except tf.errors.OpError as error:
      raise ValueError(error.message.splitlines()[0].strip()) from error
    return int(height), int(width), int(channels)

  def close(self) -> None:
    self._session.close()


def each_in_threads(function: Callable[[bytes], Any], files: Sequence[bytes],
                    what: str) -> Iterator[Any]:
  """Yields the function of each file, in their order, with progress on standard error."""
  with ThreadPoolExecutor(available_cores()) as threads, \
      tqdm(total=len(files), desc=what, unit='image', disable=None) as bar:
    if bar.disable:
      _LOG.info('%s: %d images', what, len(files))
    for start in range(0, len(files), _AT_ONCE):
      for result in threads.map(function, files[start:start + _AT_ONCE]):
        bar.update()
        yield result


def read(path: bytes) -> bytes:
  """Returns a file's bytes.

  Raises:
    OSError: it cannot be read, or is none: a named pipe would be waited for without end, and a
      device may have no end.
  """
  if not stat.S_ISREG(os.stat(path).st_mode):
    raise OSError('not a regular file')
  with open(path, 'rb') as file:
    return file.read()


def find(files: Sequence[bytes]) -> Iterator[Tuple[int, str]]:
  """Reads and decodes the files; yields the index of each that cannot be, and why."""
  decoder = Decoder()

  def reason(path: bytes) -> Optional[str]:
    try:
      decoder.shape(read(path))
    except OSError as error:
      return error.strerror or str(error)
    except ValueError as error:
      return str(error)
    return None

  try:
    for index, why in enumerate(each_in_threads(reason, files, 'checking images')):
      if why is not None:
        yield index, why
  finally:
    decoder.close()


def skip(split: ImageSplit, name: str, settings: groups.Input,
         model_dir: str) -> Tuple[ImageSplit, List[BadImage]]:
  """Returns the split without the images that cannot be decoded, and those.

  All of them are decoded once, before the first step, so that every step and every epoch is as
  long as it would be without them. `model_dir` remembers the outcome for as long as no file
  changes.

  Raises:
    UserError: more of them are bad than `--max_bad_images`.
  """
  bad = [(index, BadImage(os.fsdecode(split.files[index]), why))
         for index, why in _remembered(split, name, model_dir)]
  if len(bad) > settings.max_bad_images * len(split.files):
    raise UserError('more images cannot be decoded than --max_bad_images allows',
                    '{} of {} with --max_bad_images={:g}, the first is {} ({})'.format(
                        len(bad), len(split.files), settings.max_bad_images,
                        printable(bad[0][1].file), bad[0][1].reason),
                    'mend or remove them, --mode=audit lists all; or give a larger share')
  for _, image in bad:
    _LOG.warning('skipping %s (%s)', printable(image.file), image.reason)
  return _without(split, [index for index, _ in bad]), [image for _, image in bad]


def _without(split: ImageSplit, indexes: Sequence[int]) -> ImageSplit:
  if not indexes:
    return split
  gone = set(indexes)
  return ImageSplit([file for index, file in enumerate(split.files) if index not in gone],
                    np.delete(split.classes, indexes))


def _remembered(split: ImageSplit, name: str, model_dir: str) -> List[Tuple[int, str]]:
  """Returns what `find` does, from `model_dir` where the same files have been checked before."""
  path = os.path.join(model_dir, _FILE)
  try:
    with open(path, encoding='utf-8') as file:
      memory = json.load(file)
  except (OSError, ValueError):
    memory = {}
  files = fingerprint.of_files(split.files)
  if memory.get(name, {}).get('files') != files:
    memory[name] = {'files': files, 'bad': list(find(split.files))}
    atomic.write_json(path, memory)
  return [(index, why) for index, why in memory[name]['bad']]
