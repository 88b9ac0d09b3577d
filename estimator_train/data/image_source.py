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
  make_ordered_chunks,
  map_python_function,
  split_into_chunks,
  without_autograph,
)
from estimator_train.data.cache import CacheFiller, ImageCache
from estimator_train.data.order import evenly_spaced_indices
from estimator_train.data.source import FilePath, InputFn, Source, preserve_user_errors
from estimator_train.errors import BadExample, UserError
from estimator_train.settings.flags import InputFlags
from estimator_train.system import storage

_GRAY_SAMPLE_SIZE = 16  # The maximum number of images that is_sample_gray decodes.
# The number of examples that one call of a Python function looks up. If each call looked up one
# image, the overhead of the calls would be a tenth of the time for decoding.
CHUNK_SIZE = 64
_READAHEAD_THREADS = 4  # Several, because opening a file on a network file system is slow.


class ImageSource(Source):
  """A source of encoded images, which are read in any order, decoded, and resized.

  A subclass reads one format. A worker without a cache reads only the images of its shard, and the
  small sample of is_sample_gray.

  Attributes:
    read_in_graph: takes a reference that look_up_references has returned, as a scalar string
      tensor, and returns the content of the image.
  """
  read_in_graph: Any  # decoding.ReadContent, as a static method.
  can_augment = True
  can_cache_in_folder = True
  _parallel_lookups: Optional[int] = None  # The number of chunks that are looked up in parallel.
  # The cache of the training images. The `input_fn` keeps the cache alive. The reference is weak,
  # because the cache refers to this source: a strong reference would make a cycle.
  _cache_ref: 'Optional[weakref.ReferenceType[ImageCache]]' = None
  _is_sample_gray: Optional[bool] = None  # The result of is_sample_gray, once it has been called.

  @abc.abstractmethod
  def __len__(self) -> int:
    """Returns the number of images."""

  @abc.abstractmethod
  def look_up_references(self, indices: np.ndarray) -> Tuple[List[bytes], np.ndarray]:
    """Returns references to the images at these indices, and the class indices of the images.

    A reference is what `read_in_graph` takes: the path of a file, or the content of the image.

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
    (content,), _ = self.look_up_references(np.array([index]))
    return content

  @abc.abstractmethod
  def image_name(self, index: int) -> str:
    """Returns the path of an image file, or the path of a TFRecord file and the record's number.

    Bytes of a path that cannot be decoded become surrogate escapes, as in `os.fsdecode`.
    """

  def identify_example(self, index: int) -> Dict[str, Any]:
    return {'file': self.image_name(index)}

  def split_without_images(self, indices: List[int]) -> Any:
    """Returns the split without the images at these indices and without unreadable parts."""
    return self.split.take(np.delete(np.arange(len(self)), indices))

  def read_class_indices_or_minus_one(self) -> np.ndarray:
    """Returns the class index of each image, integer [N]. It is -1 if the label is invalid."""
    return self.read_class_indices()

  def unreadable_file_parts(self) -> List[Tuple[str, str]]:
    """Returns (name, reason) of each part of a file whose records cannot be found."""
    return []

  def check_and_count_examples(self) -> Optional[int]:
    return len(self)

  def make_references(self, chunks: tf.data.Dataset) -> tf.data.Dataset:
    """Returns a dataset of scalars (reference, class index).

    Args:
      chunks: the dataset of the indices of the images, int64 [n] each.
    """
    @preserve_user_errors
    def look_up_arrays(indices: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
      references, class_indices = self.look_up_references(indices)
      return np.array(references, object), np.asarray(class_indices, np.int64)

    # Prefetching a chunk is cheap. The kernel reads its files ahead while the previous chunk is
    # decoded.
    return map_python_function(
        chunks, look_up_arrays, [(tf.string, [None]), (tf.int64, [None])],
        self._parallel_lookups).prefetch(1).apply(tf.data.experimental.unbatch())

  def is_sample_gray(self) -> bool:
    """Returns whether all images of a small sample are gray.

    The result only selects the faster of two ways to read the images. Both are correct for gray and
    color images.
    """
    def read_sample() -> Iterator[bytes]:
      for index in evenly_spaced_indices(len(self), _GRAY_SAMPLE_SIZE):
        # An error is reported when the image is read for training.
        with contextlib.suppress(OSError, BadExample):
          yield self.read_content(index)

    if self._is_sample_gray is None:
      self._is_sample_gray = decoding.are_all_gray(read_sample())
    return self._is_sample_gray

  def make_train_input_fn(self, order: OrderSettings, pixels: PixelSettings, batch: BatchSettings,
                          cache: str) -> InputFn:
    if cache == 'none':
      if pixels.augment == 'none':
        return lambda: decoding.make_batches(
            self._make_training_references(order), self.read_in_graph, self.is_sample_gray(),
            pixels, batch)
      return lambda: augmentation.decode_augment_and_prefetch(
          self._make_training_references(order), self.read_in_graph, order, pixels, batch)
    image_cache = self.open_cache(order, pixels, batch, cache)
    self._cache_ref = weakref.ref(image_cache)
    # A thread that reads from the cache waits for images that have not been decoded yet. With a
    # private thread pool, the threads of the model do not wait.
    num_threads = 1 if pixels.augment == 'none' else batch.num_parallel_calls
    batch_with_threads = batch._replace(private_threads=max(num_threads, batch.private_threads))
    return lambda: augmentation.augment_and_prefetch(arrays.gather_batches(
        order.make_index_chunks(len(self), batch.size, self.is_sequential),
        preserve_user_errors(image_cache.read_examples), np.uint8,
        pixels.image_shape[:2] + (None,), batch), order, pixels, batch_with_threads)

  def open_cache(self, order: OrderSettings, pixels: PixelSettings, batch: BatchSettings,
                 cache: str) -> ImageCache:
    """Opens the cache of all images. A thread fills it in the order in which training uses them.

    A cache in a folder is reused unless the image size, or the path, size or modification time of a
    file has changed.

    Args:
      cache: `memory`, or the path of a folder.
    """
    height, width, model_channels = pixels.image_shape
    cached_pixels = PixelSettings(pixels.image_shape, dtype=tf.uint8)

    def decode(indices: np.ndarray, channels: int, batch_size: int) -> tf.data.Dataset:
      return decoding.make_batches_to_cache(
          self.make_references(split_into_chunks(indices, CHUNK_SIZE)), self.read_in_graph,
          channels < model_channels, cached_pixels, batch._replace(size=batch_size))

    # A cache in memory needs no key, and computing one reads the metadata of all files.
    key = 'memory' if cache == 'memory' else hashlib.md5('{} {}x{}{}'.format(
        self.files_fingerprint(), height, width, '' if model_channels == 3 else ' grey'
    ).encode()).hexdigest()
    # For a model that takes gray images, color images are converted to gray.
    channel_counts = (1,) if model_channels == 1 else (1, 3) if self.is_sample_gray() else (3,)
    shapes = [(len(self), height, width, channels) for channels in channel_counts]
    fill_order = order.indices_by_first_use(len(self))
    return ImageCache(CacheFiller(
        cache, 'images-' + key, shapes, fill_order, decode, self.read_class_indices))

  def wait_until_cached(self) -> None:
    image_cache = self._cache_ref and self._cache_ref()
    if image_cache:
      image_cache.read_all_images()

  def make_eval_input_fn(self, pixels: PixelSettings, batch: BatchSettings) -> InputFn:
    return lambda: decoding.make_batches(
        self.make_references(make_ordered_chunks(len(self), CHUNK_SIZE)), self.read_in_graph,
        self.is_sample_gray(), pixels, batch)

  def make_stage_input_fns(self, order: OrderSettings, pixels: PixelSettings,
                           batch: BatchSettings) -> Dict[str, InputFn]:
    expect_gray = self.is_sample_gray()
    channels = 0 if expect_gray or pixels.image_shape[2] == 1 else 3
    load_image = decoding.make_load_image(self.read_in_graph, expect_gray, pixels)

    def make_input_fn(stage: Callable[..., tf.Tensor]) -> InputFn:
      return lambda: batch.use_private_threads(self._make_training_references(order).apply(
          tf.data.experimental.map_and_batch(
              without_autograph(stage), batch.size, num_parallel_calls=batch.num_parallel_calls)))

    # Each stage computes its complete result, but returns only a scalar, because images of
    # different sizes cannot be batched, and copying images would add to the measured time.
    return {
        'read': make_input_fn(
            lambda reference, _: tf.strings.length(self.read_in_graph(reference))),
        'decode': make_input_fn(
            lambda reference, _: decoding.decode(self.read_in_graph(reference), channels)[0, 0, 0]),
        'resize': make_input_fn(
            lambda reference, class_index: load_image(reference, class_index)[0][0, 0, 0])}

  def exclude_bad_images(self, flags: InputFlags, folder: str) -> Tuple[Any, List[BadImage]]:
    # All images are decoded once before the first step, because the number of steps depends on the
    # number of good images.
    bad = bad_images.load_or_find_undecodable_images(
        self.read_content, len(self), folder, 'train' if self.role is Role.TRAIN else 'test',
        self.files_fingerprint())
    skipped = [BadImage(self.image_name(index), reason) for index, reason in bad]
    skipped += [BadImage(name, reason) for name, reason in self.unreadable_file_parts()]
    bad_images.check_and_log_skipped(skipped, len(self), flags.max_bad_images)
    split = self.split_without_images([index for index, _ in bad])
    if self.role is Role.TRAIN and isinstance(split, ImageSplit):
      image_folder.check_no_class_missing(self.spec.labels, split)
    return type(self)(self.spec, split, self.role), skipped

  def find_example_error(self) -> Optional[UserError]:
    # The images are decoded again, because TensorFlow's error does not name the file.
    for index, reason in bad_images.iter_undecodable_images(self.read_content, len(self)):
      return bad_images.make_undecodable_error(self.image_name(index), reason)
    return None

  def _make_training_references(self, order: OrderSettings) -> tf.data.Dataset:
    return self.make_references(order.make_index_chunks(len(self), CHUNK_SIZE, self.is_sequential))


class ImageFileSource(ImageSource):
  split: ImageSplit
  format_name = 'image_files'
  class_indices_are_known = True
  read_in_graph = staticmethod(tf.read_file)

  def __init__(self, spec: DataSpec, split: ImageSplit, role: Role = Role.TRAIN) -> None:
    super().__init__(spec, split, role)
    self._threads = ThreadPoolExecutor(_READAHEAD_THREADS)

  def __len__(self) -> int:
    return len(self.split.files)

  def look_up_references(self, indices: np.ndarray) -> Tuple[List[bytes], np.ndarray]:
    paths = [self.split.files[index] for index in indices]
    self._threads.submit(storage.advise_kernel, paths, os.POSIX_FADV_WILLNEED)
    return paths, self.split.classes[indices]

  def read_content(self, index: int) -> bytes:
    with storage.open_regular_file(self.split.files[index]) as file:
      return file.read()

  def image_name(self, index: int) -> str:
    return os.fsdecode(self.split.files[index])

  def describe_content(self) -> str:
    return identity.digest_image_files(self.split.files, self.read_class_indices())

  def make_published_input_fn(self, order: OrderSettings, pixels: PixelSettings,
                              batch: BatchSettings) -> InputFn:
    return lambda: decoding.make_published_batches(
        decoding.shuffle_files(self.split.files, order, self.split.classes.astype(np.int64)),
        lambda path, class_index: (tf.read_file(path), class_index), order, pixels, batch)

  def read_class_indices(self) -> np.ndarray:
    return np.asarray(self.split.classes)

  def list_files(self) -> List[FilePath]:
    return list(self.split.files)

