"""Reads JPEG, PNG and GIF images from files, whose names may have any extension.

ImageSource is also the base class of the source that reads images from TFRecord files.
"""

import abc
import contextlib
import hashlib
import os
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.data import (
  DataSpec,
  ImageSplit,
  Role,
  arrays,
  augmentation,
  bad_images,
  decoding,
  identity,
  image_folder,
)
from estimator_train.data.bad_images import BadImage
from estimator_train.data.batching import (
  BatchSettings,
  OrderSettings,
  PixelSettings,
  chunks_in_order,
  chunks_of,
  map_in_python,
  without_autograph,
)
from estimator_train.data.cache import CacheFiller, ImageCache
from estimator_train.data.order import evenly_spaced
from estimator_train.data.source import FilePath, InputFn, Source, carry_user_errors
from estimator_train.errors import BadExample, UserError
from estimator_train.settings.flags import InputFlags
from estimator_train.system import storage

_GRAY_SAMPLE_SIZE = 16  # The maximum number of images that expects_gray decodes.
# The number of examples that one call of a Python function looks up. If each call looked up one
# image, the overhead of the calls would be a tenth of the time for decoding.
CHUNK_SIZE = 64
_READAHEAD_THREADS = 4  # Several, because opening a file on a network file system is slow.


class ImageSource(Source):
  """A source of encoded images, which are read in any order, decoded, and resized.

  A subclass reads one format. A worker without a cache reads only the images of its shard and, in
  expects_gray, a small sample of all images.

  Attributes:
    read: takes a scalar string that look_up has returned, and returns the content of the image.
  """
  read: Any  # decoding.ReadContent, as a static method.
  can_augment = True
  can_cache_in_folder = True
  _parallel_lookups: Optional[int] = None  # The number of chunks that are looked up in parallel.
  # The cache of the training images. The `input_fn` keeps the cache alive. The reference is weak,
  # because the cache refers to this source: a strong reference would make a cycle.
  _cache_ref: 'Optional[weakref.ReferenceType[ImageCache]]' = None
  _expects_gray: Optional[bool] = None  # The result of expects_gray, once it has been called.

  @abc.abstractmethod
  def __len__(self) -> int:
    """Returns the number of images."""

  @abc.abstractmethod
  def look_up(self, indices: np.ndarray) -> Tuple[List[bytes], np.ndarray]:
    """Returns the arguments of `read` for the images at these indices, and their class indices.

    Raises:
      OSError: a file cannot be read.
      BadExample: an example is damaged.
    """

  def read_content(self, index: int) -> bytes:
    """Reads the content of an image, outside of TensorFlow.

    Raises:
      OSError: the file cannot be read.
      BadExample: the example is damaged.
    """
    (content,), _ = self.look_up(np.array([index]))
    return content

  @abc.abstractmethod
  def name_of(self, index: int) -> str:
    """Returns the path of an image file, or the path of a file of records and the record number.

    Bytes of a path that cannot be decoded become surrogate escapes, as in `os.fsdecode`.
    """

  def split_without(self, indices: List[int]) -> Any:
    """Returns the split without the images at these indices and without unreadable parts."""
    return self.split.take(np.delete(np.arange(len(self)), indices))

  def class_indices_or_minus_one(self) -> np.ndarray:
    """Returns the class index of each image, integer [N]. It is -1 if the label is invalid."""
    return self.class_indices()

  def unreadable_parts(self) -> List[Tuple[str, str]]:
    """Returns (name, reason) of each part of a file whose records cannot be found."""
    return []

  def check_and_count(self) -> Optional[int]:
    return len(self)

  def look_up_chunks(self, chunks: tf.data.Dataset) -> tf.data.Dataset:
    """Returns a dataset of scalars (argument of `read`, class index).

    Args:
      chunks: the dataset of the indices of the images, int64 [n] each.
    """
    @carry_user_errors
    def look_up(indices: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
      read_arguments, class_indices = self.look_up(indices)
      return np.array(read_arguments, object), np.asarray(class_indices, np.int64)

    # Prefetching a chunk is cheap. The kernel reads its files ahead while the previous chunk is
    # decoded.
    return map_in_python(chunks, look_up, [(tf.string, [None]), (tf.int64, [None])],
                         self._parallel_lookups).prefetch(1).apply(tf.data.experimental.unbatch())

  def expects_gray(self) -> bool:
    """Returns whether all images of a small sample are gray.

    The result only selects the faster of two code paths. Both code paths read gray and color images
    correctly.
    """
    def read_sample() -> Iterator[bytes]:
      for index in evenly_spaced(len(self), _GRAY_SAMPLE_SIZE):
        # An error is reported when the image is read for training.
        with contextlib.suppress(OSError, BadExample):
          yield self.read_content(index)

    if self._expects_gray is None:
      self._expects_gray = decoding.are_all_gray(read_sample())
    return self._expects_gray

  def make_train_input_fn(self, order: OrderSettings, pixels: PixelSettings, batch: BatchSettings,
                          cache: str) -> InputFn:
    if cache == 'none':
      if pixels.augment == 'none':
        return lambda: decoding.make_batches(self._look_up_training_chunks(order), self.read,
                                             self.expects_gray(), pixels, batch)
      return lambda: augmentation.decode_augment_and_prefetch(
          self._look_up_training_chunks(order), self.read, order, pixels, batch)
    image_cache = self.open_cache(order, pixels, batch, cache)
    self._cache_ref = weakref.ref(image_cache)
    # A thread that reads from the cache waits for images that have not been decoded yet. With a
    # private thread pool, the threads of the model do not wait.
    num_threads = 1 if pixels.augment == 'none' else batch.num_parallel_calls
    batch_with_threads = batch._replace(private_threads=max(num_threads, batch.private_threads))
    return lambda: augmentation.augment_and_prefetch(arrays.gather_batches(
        order.index_chunks(len(self), batch.size, self.is_sequential),
        carry_user_errors(image_cache.read), np.uint8, pixels.image_shape[:2] + (None,), batch),
        order, pixels, batch_with_threads)

  def open_cache(self, order: OrderSettings, pixels: PixelSettings, batch: BatchSettings,
                 cache: str) -> ImageCache:
    """Opens the cache of all images. A thread fills it in the order in which training uses them.

    A cache in a folder is reused if neither the image size has changed nor the path, size or
    modification time of any file.

    Args:
      order, pixels, batch: the settings of the training dataset.
      cache: `memory`, or the path of a folder.
    """
    height, width, model_channels = pixels.image_shape
    cached_pixels = PixelSettings(pixels.image_shape, dtype=tf.uint8)

    def decode(indices: np.ndarray, channels: int, batch_size: int) -> tf.data.Dataset:
      return decoding.make_batches_to_cache(
          self.look_up_chunks(chunks_of(indices, CHUNK_SIZE)), self.read, channels < model_channels,
          cached_pixels, batch._replace(size=batch_size))

    # A cache in memory needs no key, and computing one reads the metadata of all files.
    key = 'memory' if cache == 'memory' else hashlib.md5('{} {}x{}{}'.format(
        self.files_fingerprint(), height, width, '' if model_channels == 3 else ' grey'
    ).encode()).hexdigest()
    # For a model that takes gray images, color images are converted to gray.
    channel_counts = (1,) if model_channels == 1 else (1, 3) if self.expects_gray() else (3,)
    shapes = [(len(self), height, width, channels) for channels in channel_counts]
    fill_order = order.indices_by_first_use(len(self))
    return ImageCache(CacheFiller(
        cache, 'images-' + key, shapes, fill_order, decode, self.class_indices))

  def wait_until_cached(self) -> None:
    image_cache = self._cache_ref and self._cache_ref()
    if image_cache:
      image_cache.read_all()

  def make_eval_input_fn(self, pixels: PixelSettings, batch: BatchSettings) -> InputFn:
    return lambda: decoding.make_batches(
        self.look_up_chunks(chunks_in_order(len(self), CHUNK_SIZE)), self.read, self.expects_gray(),
        pixels, batch)

  def input_fns_of_earlier_stages(self, order: OrderSettings, pixels: PixelSettings,
                                  batch: BatchSettings) -> Dict[str, InputFn]:
    expect_gray = self.expects_gray()
    channels = 0 if expect_gray or pixels.image_shape[2] == 1 else 3
    load_image = decoding.make_load_image(self.read, expect_gray, pixels)

    def make_input_fn(stage: Callable[..., tf.Tensor]) -> InputFn:
      return lambda: batch.use_private_threads(self._look_up_training_chunks(order).apply(
          tf.data.experimental.map_and_batch(
              without_autograph(stage), batch.size, num_parallel_calls=batch.num_parallel_calls)))

    # Each stage computes its complete result, but returns only a scalar, because images of
    # different sizes cannot be batched, and copying images would add to the measured time.
    return {
        'read': make_input_fn(lambda reference, _: tf.strings.length(self.read(reference))),
        'decode': make_input_fn(
            lambda reference, _: decoding.decode(self.read(reference), channels)[0, 0, 0]),
        'resize': make_input_fn(
            lambda reference, class_index: load_image(reference, class_index)[0][0, 0, 0])}

  def without_bad_images(self, flags: InputFlags, folder: str) -> Tuple[Any, List[BadImage]]:
    # All images are decoded once before the first step, because the number of steps depends on the
    # number of good images.
    bad = bad_images.find_undecodable_once(
        self.read_content, len(self), folder, 'train' if self.role is Role.TRAIN else 'test',
        self.files_fingerprint())
    skipped = [BadImage(self.name_of(index), reason) for index, reason in bad]
    skipped += [BadImage(name, reason) for name, reason in self.unreadable_parts()]
    bad_images.check_and_log_skipped(skipped, len(self), flags.max_bad_images)
    split = self.split_without([index for index, _ in bad])
    if self.role is Role.TRAIN and isinstance(split, ImageSplit):
      image_folder.check_no_class_missing(self.spec.labels, split)
    return type(self)(self.spec, split, self.role), skipped

  def scan_for_error(self) -> Optional[UserError]:
    # The images are decoded again, because TensorFlow's error does not name the file.
    for index, reason in bad_images.find_undecodable(self.read_content, len(self)):
      return bad_images.undecodable_error(self.name_of(index), reason)
    return None

  def _look_up_training_chunks(self, order: OrderSettings) -> tf.data.Dataset:
    return self.look_up_chunks(order.index_chunks(len(self), CHUNK_SIZE, self.is_sequential))


class ImageFileSource(ImageSource):
  """The source of an ImageSplit."""
  split: ImageSplit
  format_name = 'image_files'
  class_indices_are_known = True
  read = staticmethod(tf.read_file)

  def __init__(self, spec: DataSpec, split: ImageSplit, role: Role = Role.TRAIN) -> None:
    super().__init__(spec, split, role)
    self._threads = ThreadPoolExecutor(_READAHEAD_THREADS)

  def __len__(self) -> int:
    return len(self.split.files)

  def look_up(self, indices: np.ndarray) -> Tuple[List[bytes], np.ndarray]:
    paths = [self.split.files[index] for index in indices]
    self._threads.submit(storage.advise_kernel, paths, os.POSIX_FADV_WILLNEED)
    return paths, self.split.classes[indices]

  def read_content(self, index: int) -> bytes:
    with storage.open_regular_file(self.split.files[index]) as file:
      return file.read()

  def name_of(self, index: int) -> str:
    return os.fsdecode(self.split.files[index])

  def describe_content(self) -> str:
    return identity.of_image_files(self.split.files, self.class_indices())

  def make_published_input_fn(self, order: OrderSettings, pixels: PixelSettings,
                              batch: BatchSettings) -> InputFn:
    return lambda: decoding.make_published_batches(
        decoding.shuffle_files(self.split.files, order, self.split.classes.astype(np.int64)),
        lambda path, class_index: (tf.read_file(path), class_index), order, pixels, batch)

  def class_indices(self) -> np.ndarray:
    return np.asarray(self.split.classes)

  def files(self) -> List[FilePath]:
    return list(self.split.files)

