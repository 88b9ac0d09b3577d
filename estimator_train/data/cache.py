"""Caches arrays, in memory or in a file, such as the decoded and resized images of a split."""

import contextlib
import logging
import os
import threading
import weakref
from typing import BinaryIO, Callable, Iterator, Optional, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.distribution import devices
from estimator_train.errors import UserError
from estimator_train.system import storage
from estimator_train.system.formatting import format_bytes
from estimator_train.system.machine import available_bytes
from estimator_train.system.progress import make_bar

_LOG = logging.getLogger('estimator_train')
_FILL_BATCH_SIZE = 64
FillArray = Callable[[np.ndarray], None]
# (images, class indices)
Examples = Tuple[np.ndarray, np.ndarray]
# Takes image indices, int64 [N], the number of channels, and the batch size; see CacheFiller.
MakeImageBatches = Callable[[np.ndarray, int, int], tf.data.Dataset]


class ImageCache:
  """All images of a source, decoded and resized, with pixel values rounded to integers.

  Rounding changes a pixel value by at most 0.5, which is 0.002 of the range from 0 to 255.

  A thread fills the cache in the order in which this worker first reads the images. Training builds
  its graph and uses the first images while the thread decodes the others. The thread ends when the
  cache is full, when this object is garbage-collected, or when Python exits.

  Args:
    filler: fills the cache. It must not refer to this object. Otherwise, its thread would keep this
      object from being garbage-collected.

  Raises:
    UserError: there is not enough memory or disk space; the message states the required size.
  """

  def __init__(self, filler: 'CacheFiller') -> None:
    self._filler = filler
    weakref.finalize(self, filler.stop)
    filler.start()

  def read_examples(self, indices: np.ndarray) -> Examples:
    """Waits until the images at `indices`, int64 [B], are in the cache, and returns them.

    Returns:
      The images, uint8 [B, height, width, C], and the class indices, int64 [B]. C is 1 if the model
      takes gray images, or if all images that have been cached so far are gray. Otherwise, C is 3.
      C can therefore change once.

    Raises:
      UserError: the cache could not be written to the disk.
      tf.errors.OpError: an image cannot be decoded.
    """
    images, class_indices = self._filler.wait_until_filled(indices)
    return images[indices], class_indices[indices]

  def read_all_images(self) -> np.ndarray:
    """Waits until the cache is full, and returns all images, uint8 [N, height, width, C]."""
    return self._filler.wait_until_filled(None)[0]


class CacheFiller:
  """Fills a cache in a thread.

  Args:
    cache: `memory`, or the path of a folder.
    name: the name of the file without `.npy`, which must identify the content of the images.
    shapes: the possible shapes of the array, (N, height, width, C), in order of increasing C. If an
      image has more than C channels, the cache is filled again with the next shape.
    fill_order: the indices of all images, int64 [N].
    make_batches: returns a dataset of batches (images, class indices, fits). The boolean `fits` is
      False if an image of the batch has more channels than requested.
    load_class_indices: returns the class indices of all images, [N].
  """

  def __init__(self, cache: str, name: str, shapes: Sequence[Tuple[int, ...]],
               fill_order: np.ndarray, make_batches: MakeImageBatches,
               load_class_indices: Callable[[], np.ndarray]) -> None:
    self._cache, self._name, self._shapes, self._fill_order = cache, name, shapes, fill_order
    self._make_batches, self._load_class_indices = make_batches, load_class_indices
    self._stopping = threading.Event()
    self._thread = threading.Thread(target=self._fill_in_thread, name='fill-cache', daemon=True)
    # Protects the attributes below.
    self._state_changed = threading.Condition()
    self._examples: Optional[Examples] = None
    self._is_example_filled = np.zeros(len(fill_order), bool)
    self._is_full = False
    self._error: Optional[BaseException] = None

  def start(self) -> None:
    """Starts the thread, and waits until it has made the arrays. Raises an error of the thread."""
    self._thread.start()
    with self._state_changed:
      self._state_changed.wait_for(lambda: self._examples is not None or self._error is not None)
      if self._error is not None:
        raise self._error

  def stop(self) -> None:
    """Stops the thread, and waits for its end."""
    self._stopping.set()
    if self._thread.is_alive() and self._thread is not threading.current_thread():
      self._thread.join()

  def wait_until_filled(self, indices: Optional[np.ndarray]) -> Examples:
    """Waits until the examples at `indices` are in the cache, and returns the arrays of the cache.

    If `indices` is None, this method waits for all examples.
    """
    with self._state_changed:
      self._state_changed.wait_for(lambda: self._error is not None or self._is_full or (
          indices is not None and self._is_example_filled[indices].all()))
      if self._error is not None:
        raise self._error
      assert self._examples is not None
      return self._examples

  def _fill_in_thread(self) -> None:
    try:
      images = self._load_images()
      with self._state_changed:
        class_indices = (self._load_class_indices() if self._examples is None
                         else self._examples[1])
        self._examples, self._is_full = (images, class_indices), True
        self._state_changed.notify_all()
    except BaseException as error:  # pylint: disable=broad-except
      with self._state_changed:
        self._error = error
        self._state_changed.notify_all()

  def _load_images(self) -> np.ndarray:
    """Returns all images, from an existing cache or after decoding them."""
    for shape in self._shapes:
      try:
        return load_or_fill_array(self._cache, self._name, shape, np.uint8, self._fill_array,
                                  self._raise_if_stopping)
      except _ColorImageFound:
        _LOG.info('not all images are gray: caching three channels')
    raise AssertionError('every image fits into three channels')

  def _raise_if_stopping(self) -> None:
    if self._stopping.is_set():
      raise _FillingStopped

  def _fill_array(self, images: np.ndarray) -> None:
    """Decodes all images into an array, uint8 [N, height, width, C].

    Raises:
      _ColorImageFound: an image has more channels than the array.
    """
    class_indices = np.empty(len(images), np.int64)
    # This session needs threads of its own. All threads that sessions share may be waiting for it.
    config = devices.make_cpu_config(use_per_session_threads=True)
    with tf.Graph().as_default(), tf.Session(config=config) as session, \
        make_bar('caching', len(images), 'images') as bar, \
        _open_row_writer(images) as write_rows:
      dataset = self._make_batches(self._fill_order, images.shape[-1], _FILL_BATCH_SIZE)
      get_next_batch = session.make_callable(tf.data.make_one_shot_iterator(dataset).get_next())
      with self._state_changed:
        self._examples = images, class_indices
        self._is_example_filled[:] = False
        self._state_changed.notify_all()
      for start in range(0, len(images), _FILL_BATCH_SIZE):
        self._raise_if_stopping()
        batch_images, batch_class_indices, fits_channels = get_next_batch()
        if not fits_channels:
          raise _ColorImageFound
        indices = self._fill_order[start:start + _FILL_BATCH_SIZE]
        # If the array has three channels, `write_rows` repeats the channel of gray images.
        write_rows(indices, batch_images)
        class_indices[indices] = batch_class_indices
        with self._state_changed:
          self._is_example_filled[indices] = True
          self._state_changed.notify_all()
        bar.update(len(indices))


class _ColorImageFound(Exception):
  """A color image was found while only one channel of each image was being cached."""


class _FillingStopped(Exception):
  """The cache is no longer needed, so that its thread stops."""


def load_or_fill_array(cache: str, name: str, shape: Tuple[int, ...], dtype: type,
                       fill: FillArray,
                       check_while_waiting: Callable[[], None] = lambda: None) -> np.ndarray:
  """Fills and returns an array in memory, or in the file `NAME.npy` of a folder.

  A complete file of an earlier run is reused. If several processes call this function for the same
  file, one process fills the file while the other processes wait.

  Args:
    cache: `memory`, or the path of a folder.
    name: the name of the file without `.npy`, which must identify the content of the array.
    fill: writes the content into an uninitialized array.
    check_while_waiting: called repeatedly while another process fills the file. It raises an
      exception to end the wait.

  Raises:
    UserError: there is not enough memory or disk space, or the folder is not writable.
  """
  num_bytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
  description = 'a {} array of shape {} and {}'.format(
      np.dtype(dtype).name, 'x'.join(map(str, shape)), format_bytes(num_bytes))
  if cache == 'memory':
    free_bytes = available_bytes()
    if num_bytes > free_bytes:
      raise UserError('the cache does not fit into memory',
                      '--cache=memory for {}, with {} free'.format(
                          description, format_bytes(free_bytes)),
                      'give --cache=FOLDER, or a smaller --image_size')
    _LOG.info('caching %s in memory', description)
    array = np.empty(shape, dtype)
    fill(array)
    return array
  path = os.path.join(cache, name + '.npy')

  def map_file(file: BinaryIO) -> np.ndarray:
    array = np.load(file.name, mmap_mode='r', allow_pickle=False)
    if array.shape != shape or array.dtype != dtype:
      raise ValueError('it contains another array')
    return array

  try:
    os.makedirs(cache, exist_ok=True)
    array = storage.load_or_warn(path, map_file)
    if array is None:
      with _open_part_file(path, check_while_waiting) as part_file:
        # Another process may have completed the cache while this process waited for the lock.
        with contextlib.suppress(storage.DamagedFile):
          array = storage.load(path, map_file)
        if array is None:
          _LOG.info('caching %s in %s', description, path)
          new_array = np.lib.format.open_memmap(part_file.name, 'w+', dtype, shape)
          # Without this allocation, writing to the mapped memory would kill the process if the disk
          # were full.
          os.posix_fallocate(part_file.fileno(), 0, new_array.offset + new_array.nbytes)
          fill(new_array)
          new_array.flush()
          os.fsync(part_file.fileno())
          # An interrupted run leaves no file with the final name, which would be reused.
          os.replace(part_file.name, path)
          array = np.load(path, mmap_mode='r', allow_pickle=False)
    return array
  except OSError as error:
    raise UserError('the cache cannot be stored',
                    '--cache={} for {} ({})'.format(cache, description, error.strerror or error),
                    'give a writable folder on a disk with enough free space') from error


@contextlib.contextmanager
def _open_part_file(path: str, check_while_waiting: Callable[[], None]) -> Iterator[BinaryIO]:
  """Opens and locks a partial file. At the end, removes the file unless it has been renamed."""
  with storage.open_locked(path + '.part', check_while_waiting) as part_file:
    try:
      yield part_file
    finally:
      with contextlib.suppress(FileNotFoundError):
        os.remove(part_file.name)


def fill_in_batches(array: np.ndarray, get_next_batch: Callable[[], np.ndarray],
                    description: str) -> None:
  """Fills an array, [N, ...], with consecutive batches, [B, ...], and shows the progress.

  Args:
    array: an array in memory, or mapped from a file.
    description: the text in front of the progress bar.
  """
  with make_bar(description, len(array), 'images') as bar, \
      _open_row_writer(array) as write_rows:
    num_filled = 0
    while num_filled < len(array):
      batch = get_next_batch()
      write_rows(np.arange(num_filled, num_filled + len(batch)), batch)
      num_filled += len(batch)
      bar.update(len(batch))


@contextlib.contextmanager
def _open_row_writer(array: np.ndarray) -> Iterator[Callable[[np.ndarray, np.ndarray], None]]:
  """Yields a function that takes the indices of rows, [B], and writes a batch to these rows."""
  if not isinstance(array, np.memmap):
    yield array.__setitem__
    return
  # Writing to the mapped memory would cause a page fault per page, which takes longer than copying
  # the page.
  with open(array.filename, 'r+b') as file:
    def write_rows(indices: np.ndarray, batch: np.ndarray) -> None:
      rows = np.broadcast_to(batch, (len(batch),) + array.shape[1:]).astype(array.dtype, copy=False)
      for index, row in zip(indices, np.ascontiguousarray(rows)):
        file.seek(array.offset + int(index) * array.strides[0])
        file.write(row.data)
      file.flush()

    yield write_rows

