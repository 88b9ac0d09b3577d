"""Caches the decoded and resized images of a split, while the training already uses them."""

import hashlib
import logging
import threading
import weakref
from typing import TYPE_CHECKING, Optional, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.data import arrays
from estimator_train.data.batching import Batching, indices_by_first_use
from estimator_train.system.progress import make_progress_bar

if TYPE_CHECKING:  # It imports this module.
  from estimator_train.data.image_source import ImageSource

_LOG = logging.getLogger('estimator_train')
_FILL_BATCH_SIZE = 64
# (images, class indices)
Examples = Tuple[np.ndarray, np.ndarray]


class ImageCache:
  """All images of a source, decoded and resized, with pixel values rounded to integers.

  Rounding changes a pixel value by at most 0.5, which is 0.002 of the range.

  A thread fills the cache in the order in which this worker first reads the images, so that the
  training starts with the first images, and builds its graph, while the others are decoded. The
  thread ends when the cache is full, when this object is garbage-collected, or when Python exits.

  Args:
    source: the images.
    batching: gives the order, the image size and the number of images to decode in parallel.
    cache: `memory`, or the path of a folder. A cache that an earlier run wrote to the folder is
      reused if the paths, sizes and modification times of the files and the image size have not
      changed. If another process is filling the cache, the constructor waits until it is full.

  Raises:
    UserError: there is not enough memory or disk space; the message states the required size.
  """

  def __init__(self, source: 'ImageSource', batching: Batching, cache: str) -> None:
    self._filling = _CacheFiller(source, batching, cache)
    weakref.finalize(self, self._filling.stop)
    self._filling.start()

  def read(self, indices: np.ndarray) -> Examples:
    """Returns images and their class indices, as soon as these images are in the cache.

    Args:
      indices: the indices of the images, int64 [B].

    Returns:
      The images, uint8 [B, height, width, C]; C is 1 if the model takes grey images, or if all
      images that have been cached so far are grey, else 3, so that it can change once. The class
      indices, int64 [B].

    Raises:
      UserError: the cache could not be written to the disk.
      tf.errors.OpError: an image cannot be decoded.
    """
    images, class_indices = self._filling.wait_for(indices)
    return images[indices], class_indices[indices]

  def read_all(self) -> np.ndarray:
    """Returns all images, [N, height, width, C], as soon as the cache is full; see `read`.

    Raises:
      UserError: the cache could not be written to the disk.
      tf.errors.OpError: an image cannot be decoded.
    """
    return self._filling.wait_for(None)[0]


class _CacheFiller:
  """Fills a cache in a thread, which must not keep a reference to the ImageCache."""

  def __init__(self, source: 'ImageSource', batching: Batching, cache: str) -> None:
    self._source, self._cache = source, cache
    self._batching = batching._replace(examples_per_batch=_FILL_BATCH_SIZE, one_hot=False,
                                       pixel_dtype=tf.uint8)
    self._stopping = threading.Event()
    self._thread = threading.Thread(target=self._run, name='fill-cache', daemon=True)
    # Protects the attributes below.
    self._changed = threading.Condition()
    self._examples: Optional[Examples] = None
    self._is_filled = np.zeros(len(source), bool)
    self._is_full = False
    self._error: Optional[BaseException] = None

  def start(self) -> None:
    """Starts the thread, and waits until it decodes images; raises its error if it cannot."""
    self._thread.start()
    with self._changed:
      self._changed.wait_for(lambda: self._examples is not None or self._error is not None)
      if self._error is not None:
        raise self._error

  def stop(self) -> None:
    """Ends the thread."""
    self._stopping.set()
    if self._thread.is_alive() and self._thread is not threading.current_thread():
      self._thread.join()

  def wait_for(self, indices: Optional[np.ndarray]) -> Examples:
    """Returns all examples, as soon as those at `indices` are filled; None: as soon as all are."""
    with self._changed:
      self._changed.wait_for(lambda: self._error is not None or self._is_full or (
          indices is not None and self._is_filled[indices].all()))
      if self._error is not None:
        raise self._error
      assert self._examples is not None
      return self._examples

  def _run(self) -> None:
    """Fills the cache, or finds that it is full."""
    try:
      images = self._load_images()
      with self._changed:
        class_indices = (self._source.class_indices() if self._examples is None
                         else self._examples[1])
        self._examples, self._is_full = (images, class_indices), True
        self._changed.notify_all()
    except BaseException as error:  # pylint: disable=broad-except
      with self._changed:
        self._error = error
        self._changed.notify_all()

  def _load_images(self) -> np.ndarray:
    """Returns the images of all examples, which are read from an earlier cache or decoded."""
    height, width, model_channels = self._batching.image_shape
    # For a model that takes grey images, colour images are converted to grey.
    # In memory, the key would not be used: computing it reads the metadata of all files.
    key = 'memory' if self._cache == 'memory' else hashlib.md5('{} {}x{}{}'.format(
        self._source.cache_key(), height, width,
        '' if model_channels == 3 else ' grey').encode()).hexdigest()
    for channels in ((1,) if model_channels == 1 else (1, 3) if self._source.expects_grey()
                     else (3,)):
      shape = (len(self._source), height, width, channels)
      try:
        return arrays.load_or_fill_array(self._cache, 'images-' + key, shape, np.uint8, self._fill,
                                         self._check_not_stopping)
      except _ColourImageFound:
        _LOG.info('not all images are grey: caching three channels')
    raise AssertionError('every image fits into three channels')

  def _check_not_stopping(self) -> None:
    if self._stopping.is_set():
      raise _Stopped

  def _fill(self, images: np.ndarray) -> None:
    """Decodes all images into an array, uint8 [N, height, width, C].

    Raises:
      _ColourImageFound: C is 1, and an image is not grey.
    """
    class_indices = np.empty(len(images), np.int64)
    fill_order = indices_by_first_use(len(images), self._batching)
    expects_grey = images.shape[-1] < self._batching.image_shape[2]
    # The threads of all other sessions can be waiting for this one.
    config = tf.ConfigProto(device_count={'GPU': 0}, use_per_session_threads=True)
    with tf.Graph().as_default(), tf.Session(config=config) as session, \
        make_progress_bar(total=len(images), desc='caching', unit='image') as bar, \
        arrays.open_writer(images) as write:
      dataset = self._source.make_dataset(fill_order, self._batching, expects_grey)
      next_batch = session.make_callable(tf.data.make_one_shot_iterator(dataset).get_next())
      with self._changed:
        self._examples = images, class_indices
        self._is_filled[:] = False
        self._changed.notify_all()
      for start in range(0, len(images), _FILL_BATCH_SIZE):
        self._check_not_stopping()
        pixels, classes, fit_channels = next_batch()
        if not fit_channels:
          raise _ColourImageFound
        indices = fill_order[start:start + _FILL_BATCH_SIZE]
        write(indices, pixels)  # If the array has three channels, a grey channel is repeated.
        class_indices[indices] = classes
        with self._changed:
          self._is_filled[indices] = True
          self._changed.notify_all()
        bar.update(len(indices))


class _ColourImageFound(Exception):
  """A colour image was found while only one channel of each image was being cached."""


class _Stopped(Exception):
  """The cache is not needed any more."""
