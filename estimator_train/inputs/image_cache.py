"""Caches arrays, such as the decoded and resized images of a split, in memory or in a file."""

import contextlib
import hashlib
import logging
import os
import threading
from typing import BinaryIO, Callable, Iterator, List, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.errors import UserError
from estimator_train.files.atomic import open_locked
from estimator_train.inputs.batching import Batching
from estimator_train.inputs.encoded_images import EncodedImages
from estimator_train.process.memory import available_bytes
from estimator_train.process.progress_bar import make_progress_bar

_LOG = logging.getLogger('estimator_train')
_FILL_BATCH_SIZE = 64
_WRITE_INTERVAL_SECS = .1
FillFunction = Callable[[np.ndarray], None]


class _ColourImageFound(Exception):
  """A colour image was found while only one channel of each image was being cached."""


def load_images(source: EncodedImages, batching: Batching, cache: str) -> np.ndarray:
  """Decodes, resizes and caches all images of a source, with pixel values rounded to integers.

  Rounding changes a pixel value by at most 0.5, which is 0.002 of the range.

  Args:
    source: the images.
    batching: gives the image size and the number of images to decode in parallel.
    cache: `memory`, or the path of a folder. A cache that an earlier run wrote to the folder is
      reused if the paths, sizes and modification times of the files and the image size have not
      changed.

  Returns:
    uint8 [N, height, width, C], in the order of the images; C is 1 if the model takes grey images,
    or if all images are grey, else 3.

  Raises:
    UserError: there is not enough memory or disk space; the message states the required size.
    tf.errors.OpError: an image cannot be decoded.
  """
  height, width, model_channels = batching.image_shape
  # For a model that takes grey images, colour images are converted to grey.
  # In memory, the key would not be used: computing it reads the metadata of all files.
  key = 'memory' if cache == 'memory' else hashlib.md5('{} {}x{}{}'.format(
      source.cache_key(), height, width,
      '' if model_channels == 3 else ' grey').encode()).hexdigest()

  def fill(array: np.ndarray) -> None:
    _fill_with_images(array, source, batching)

  for channels in (1,) if model_channels == 1 else (1, 3) if source.expects_grey() else (3,):
    shape = (len(source), height, width, channels)
    try:
      return load_array(cache, 'images-' + key, shape, np.uint8, fill)
    except _ColourImageFound:
      _LOG.info('not all images are grey: caching three channels')
  raise AssertionError('every image fits into three channels')


def load_array(cache: str, name: str, shape: Tuple[int, ...], dtype: type,
               fill: FillFunction) -> np.ndarray:
  """Fills and returns an array in memory, or in the file `NAME.npy` of a folder.

  A complete file of an earlier run is reused. A file gets its final name only when it is complete;
  the incomplete file of a killed run is filled again. If several processes call this function for
  the same file, one process fills the file and the other processes wait.

  Args:
    cache: `memory`, or the path of a folder.
    name: the name of the file without `.npy`, which must identify the content of the array.
    shape: the shape of the array.
    dtype: the dtype of the array.
    fill: a function that writes the content into an empty array.

  Raises:
    UserError: there is not enough memory or disk space, or the folder is not writable.
  """
  num_bytes = _num_bytes(shape, dtype)
  description = 'a {} array of shape {} and size {}'.format(
      np.dtype(dtype).name, 'x'.join(map(str, shape)), _format_bytes(num_bytes))
  if cache == 'memory':
    free_bytes = available_bytes()
    if num_bytes > free_bytes:
      raise UserError('the cache does not fit into memory',
                      '--cache=memory for {}, with {} free'.format(
                          description, _format_bytes(free_bytes)),
                      'give --cache=FOLDER, or a smaller --image_size')
    _LOG.info('caching %s in memory', description)
    array = np.empty(shape, dtype)
    fill(array)
    return array
  path = os.path.join(cache, name + '.npy')
  try:
    os.makedirs(cache, exist_ok=True)
    if not _is_complete(path, shape, dtype):
      with open_locked(path + '.part') as part_file:
        if not _is_complete(path, shape, dtype):
          _LOG.info('caching %s in %s', description, path)
          _fill_file(part_file, shape, dtype, fill)
          os.replace(part_file.name, path)
        elif os.path.exists(part_file.name):
          # Another process completed the cache while this process waited for the lock. Remove the
          # new, empty partial file that open_locked created.
          os.remove(part_file.name)
    return np.load(path, mmap_mode='r', allow_pickle=False)
  except OSError as error:
    raise UserError('the cache cannot be stored',
                    '--cache={} for {} ({})'.format(cache, description, error.strerror or error),
                    'give a writable folder on a disk with enough free space') from error


def fill_in_batches(array: np.ndarray, next_batch: Callable[[], np.ndarray],
                    description: str) -> None:
  """Fills an array with consecutive batches, and shows the progress.

  Args:
    array: the array to fill, [N, ...], in memory or mapped from a file.
    next_batch: returns the next batch, [B, ...].
    description: the text in front of the progress bar.
  """
  with make_progress_bar(total=len(array), desc=description, unit='image') as bar, \
      _open_writer(array) as write:
    num_filled = 0
    while num_filled < len(array):
      batch = next_batch()
      write(num_filled, batch)
      num_filled += len(batch)
      bar.update(len(batch))


@contextlib.contextmanager
def _open_writer(array: np.ndarray) -> Iterator[Callable[[int, np.ndarray], None]]:
  """Yields a function that takes a position, and a batch to copy into the array from there on."""
  def copy(start: int, batch: np.ndarray) -> None:
    array[start:start + len(batch)] = batch

  if not isinstance(array, np.memmap):
    yield copy
    return
  # Each mapped page that is changed would cause a page fault, which takes longer than the copy.
  with open(array.filename, 'r+b') as file:
    def write(start: int, batch: np.ndarray) -> None:
      rows = np.broadcast_to(batch, (len(batch),) + array.shape[1:]).astype(array.dtype, copy=False)
      file.seek(array.offset + start * array.strides[0])
      file.write(np.ascontiguousarray(rows).data)

    yield write


def _num_bytes(shape: Tuple[int, ...], dtype: type) -> int:
  return int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize


def _is_complete(path: str, shape: Tuple[int, ...], dtype: type) -> bool:
  """Returns whether the file exists and contains an array of this shape and dtype."""
  if not os.path.exists(path):
    return False
  try:
    array = np.load(path, mmap_mode='r', allow_pickle=False)
  except ValueError:  # The file is truncated, or contains no array.
    return False
  return array.shape == shape and array.dtype == dtype


def _fill_file(file: BinaryIO, shape: Tuple[int, ...], dtype: type, fill: FillFunction) -> None:
  """Writes an array to an .npy file: the header, and the content that `fill` writes."""
  file.truncate(0)
  np.lib.format.write_array_header_1_0(file, {
      'descr': np.lib.format.dtype_to_descr(np.dtype(dtype)), 'fortran_order': False,
      'shape': shape})
  file.flush()
  header_bytes = os.fstat(file.fileno()).st_size
  try:
    # Allocate the space first. On a full disk, writing to the mapped memory would kill the process.
    os.posix_fallocate(file.fileno(), header_bytes, _num_bytes(shape, dtype))
  except OSError:
    file.truncate(0)  # Release the space that was allocated.
    raise
  array = np.memmap(file.name, dtype, 'r+', header_bytes, shape)
  with _write_in_background(file):
    fill(array)
  array.flush()
  os.fsync(file.fileno())


@contextlib.contextmanager
def _write_in_background(file: BinaryIO) -> Iterator[None]:
  """Writes changed pages of a mapped file to the disk while the `with` block changes other pages.

  Otherwise, the run would wait until the final fsync has written all pages.

  Raises:
    OSError: pages cannot be written. The kernel reports such an error only once, so that the final
      fsync would not raise it again.
  """
  finished = threading.Event()
  errors: List[OSError] = []

  def write_pages() -> None:
    while not errors and not finished.wait(_WRITE_INTERVAL_SECS):
      try:
        os.fdatasync(file.fileno())
      except OSError as error:
        errors.append(error)

  thread = threading.Thread(target=write_pages, name='write-cache', daemon=True)
  thread.start()
  try:
    yield
  finally:
    finished.set()
    thread.join()
  if errors:
    raise errors[0]


def _fill_with_images(array: np.ndarray, source: EncodedImages, batching: Batching) -> None:
  """Writes the images of a source to an array, uint8 [N, height, width, C].

  Raises:
    _ColourImageFound: C is 1, and an image is not grey.
  """
  batching = batching._replace(
      examples_per_batch=_FILL_BATCH_SIZE, one_hot=False, pixel_dtype=tf.uint8)
  is_first_channel = array.shape[-1] < batching.image_shape[2]
  make_input_fn = (source.make_first_channels_input_fn if is_first_channel
                   else source.make_eval_input_fn)
  with tf.Graph().as_default(), tf.Session(
      config=tf.ConfigProto(device_count={'GPU': 0})) as session:
    element = tf.data.make_one_shot_iterator(make_input_fn(batching)()).get_next()
    get_next = session.make_callable(element)

    def next_images() -> np.ndarray:
      pixels, are_grey = get_next()
      if is_first_channel and not are_grey:
        raise _ColourImageFound
      return pixels  # If the array has three channels, the channel of a grey batch is repeated.

    fill_in_batches(array, next_images, 'caching')


def _format_bytes(count: float) -> str:
  for unit in ('bytes', 'kB', 'MB'):
    if count < 1000:
      return '{:.2f} {}'.format(count, unit)
    count /= 1000
  return '{:.2f} GB'.format(count)
