"""Decoded, resized images as uint8, kept in memory or in a file: read and decoded once."""

import hashlib
import logging
import os
from typing import BinaryIO, Callable, Tuple

import numpy as np
import tensorflow.compat.v1 as tf
from tqdm import tqdm

from estimator_train.datasets import fingerprint
from estimator_train.datasets.description import ImageSplit
from estimator_train.errors import UserError
from estimator_train.files.atomic import open_locked
from estimator_train.inputs import image_files
from estimator_train.inputs.batching import Batching
from estimator_train.process.memory import available_bytes

_LOG = logging.getLogger('estimator_train')
_FILL_BATCH = 64
Fill = Callable[[np.ndarray], None]


class _NotGrey(Exception):
  """An image in colour among grey ones."""


def images(split: ImageSplit, batching: Batching, cache: str) -> np.ndarray:
  """Returns all images of a split, rounded to whole grey levels.

  The rounding takes a pixel at most half a level, 0.002 of the scale, from where it was.

  Args:
    split: the files.
    batching: says their size, and how many to decode at once.
    cache: `memory`, or a folder, in which other files, sizes, times of change or image sizes make
      another cache.

  Returns:
    uint8 [N, height, width, C] in the order of the list; C is 1 where all of them are grey.

  Raises:
    UserError: memory or disk do not suffice; it says how much would.
    tf.errors.OpError: an image cannot be decoded.
  """
  height, width, _ = batching.image_shape
  key = hashlib.md5('{} {}x{}'.format(
      fingerprint.of_files(split.files), height, width).encode()).hexdigest()

  def fill(array: np.ndarray) -> None:
    _fill(array, split, batching)

  channels = (1, 3) if image_files.is_grey(split.files) else (3,)
  for number in channels:
    try:
      return keep(cache, 'images-' + key, (len(split.files), height, width, number), np.uint8, fill)
    except _NotGrey:
      _LOG.info('not all images are grey: caching three channels')
  raise AssertionError('three channels hold every image')


def keep(cache: str, name: str, shape: Tuple[int, ...], dtype: type, fill: Fill) -> np.ndarray:
  """Returns an array that is filled once: in memory, or in `NAME.npy` in a folder.

  A file that a killed run has left half-filled has no final name, and is filled anew. Of several
  processes one fills it, and the others wait.

  Args:
    cache: `memory`, or a folder.
    name: of the file, different for different contents.
    shape: of the array.
    dtype: of its elements.
    fill: fills it.

  Raises:
    UserError: memory or disk do not suffice, or the folder cannot be written to.
  """
  size = _num_bytes(shape, dtype)
  what = '{} {} of {}'.format(np.dtype(dtype).name, 'x'.join(map(str, shape)), _readable(size))
  if cache == 'memory':
    free = available_bytes()
    if size > free:
      raise UserError('the cache does not fit into memory',
                      '--cache=memory for {}, {} are free'.format(what, _readable(free)),
                      'give --cache=FOLDER, or a smaller --image_size')
    _LOG.info('caching %s in memory', what)
    array = np.empty(shape, dtype)
    fill(array)
    return array
  path = os.path.join(cache, name + '.npy')
  try:
    os.makedirs(cache, exist_ok=True)
    if not _is_whole(path, shape, dtype):
      with open_locked(path + '.part') as part:
        if not _is_whole(path, shape, dtype):
          _LOG.info('caching %s in %s', what, path)
          _fill_file(part, shape, dtype, fill)
          os.replace(part.name, path)
        elif os.path.exists(part.name):
          os.remove(part.name)
    return np.load(path, mmap_mode='r', allow_pickle=False)
  except OSError as error:
    raise UserError('the cache cannot be stored',
                    '--cache={} for {} ({})'.format(cache, what, error.strerror or error),
                    'give a folder that can be written to and has as much free') from error


def fill_in_batches(array: np.ndarray, following: Callable[[], np.ndarray], what: str) -> None:
  """Fills an array, in its order, with the batches of one pass, and shows progress.

  Args:
    array: [N, ...].
    following: returns the next batch, [B, ...].
    what: to call it.
  """
  with tqdm(total=len(array), desc=what, unit='image', disable=None) as bar:
    done = 0
    while done < len(array):
      batch = following()
      array[done:done + len(batch)] = batch
      done += len(batch)
      bar.update(len(batch))


def _num_bytes(shape: Tuple[int, ...], dtype: type) -> int:
  return int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize


def _is_whole(path: str, shape: Tuple[int, ...], dtype: type) -> bool:
  if not os.path.exists(path):
    return False
  try:
    array = np.load(path, mmap_mode='r', allow_pickle=False)
  except ValueError:  # Cut, or something else under that name.
    return False
  return array.shape == shape and array.dtype == dtype


def _fill_file(part: BinaryIO, shape: Tuple[int, ...], dtype: type, fill: Fill) -> None:
  part.truncate(0)
  np.lib.format.write_array_header_1_0(part, {
      'descr': np.lib.format.dtype_to_descr(np.dtype(dtype)), 'fortran_order': False,
      'shape': shape})
  part.flush()
  start = part.tell()
  try:
    # Takes the space now: a disk that fills up under a mapped file would kill the process.
    os.posix_fallocate(part.fileno(), start, _num_bytes(shape, dtype))
  except OSError:
    part.truncate(0)  # What there was of it is for others.
    raise
  array = np.memmap(part.name, dtype, 'r+', start, shape)
  fill(array)
  array.flush()
  os.fsync(part.fileno())


def _fill(array: np.ndarray, split: ImageSplit, batching: Batching) -> None:
  """Fills uint8 [N, height, width, C]; raises _NotGrey where C is 1 and does not do."""
  input_fn = image_files.make_eval_input_fn(split, batching._replace(
      batch_size=_FILL_BATCH, one_hot=False))
  with tf.Graph().as_default(), tf.Session(
      config=tf.ConfigProto(device_count={'GPU': 0})) as session:
    pixels, _ = tf.data.make_one_shot_iterator(input_fn()).get_next()
    following = session.make_callable(tf.cast(tf.round(pixels), tf.uint8))

    def next_images() -> np.ndarray:
      batch = following()
      if batch.shape[-1] > array.shape[-1]:
        raise _NotGrey
      return batch  # Where it alone is grey, it goes into all channels.

    fill_in_batches(array, next_images, 'caching')


def _readable(size: float) -> str:
  for unit in ('bytes', 'kB', 'MB'):
    if size < 1000:
      return '{:.2f} {}'.format(size, unit)
    size /= 1000
  return '{:.2f} GB'.format(size)
