"""Makes `input_fn`s of NumPy arrays and of one random batch, and caches arrays.

The graph does not contain the examples. A cache, in memory or in a file, is an array, for example
of the decoded and resized images of a split.
"""

import contextlib
import functools
import logging
import os
from typing import Any, BinaryIO, Callable, Iterator, Optional, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.data import identity
from estimator_train.data.augmentation import augment_and_prefetch
from estimator_train.data.batching import Batching, evaluation_index_chunks
from estimator_train.data.source import InputFn, Source
from estimator_train.errors import UserError
from estimator_train.system import storage
from estimator_train.system.machine import available_bytes
from estimator_train.system.progress import make_progress_bar

_LOG = logging.getLogger('estimator_train')
FillFunction = Callable[[np.ndarray], None]


class ArraySource(Source):
  """The source of an ArraySplit."""
  format_name = 'arrays'
  class_indices_are_known = True
  can_augment = True
  is_in_memory = True

  def arrays(self) -> Tuple[np.ndarray, np.ndarray]:
    """Returns the images, [N, ...], and the class indices, integer [N]."""
    return self.split.images, np.asarray(self.split.classes)

  def check_and_count(self) -> Optional[int]:
    return len(self.class_indices())

  def make_train_input_fn(self, batching: Batching, cache: str) -> InputFn:
    return make_train_input_fn(self, *self.arrays(), batching)

  def make_eval_input_fn(self, batching: Batching) -> InputFn:
    examples, class_indices = self.arrays()
    return lambda: _gather(
        evaluation_index_chunks(len(examples), batching.examples_per_batch), examples,
        class_indices, batching._replace(augment='none'))

  def class_indices(self) -> np.ndarray:
    return self.arrays()[1]

  def cache_key(self) -> str:
    return storage.fingerprint_arrays(self.split)

  def identity(self) -> str:
    return identity.of_arrays(*self.arrays())


def make_train_input_fn(source: Source, examples: np.ndarray, class_indices: np.ndarray,
                        batching: Batching) -> InputFn:
  """Makes the `input_fn` of training: shuffled, infinite, with full batches.

  A Python function copies the examples of each batch from the arrays. With `from_tensor_slices`,
  the graph and the meta graph of each checkpoint would contain the arrays.

  Args:
    source: the source of the examples, which determines their order.
    examples: [N, ...], any numeric dtype.
    class_indices: integer [N].
    batching: how the examples are combined into batches.

  Returns:
    A function that returns a dataset of (examples, labels). The examples are [B, ...] with the
    dtype of `examples`; the labels are float32 [B, num_classes] or int64 [B].
  """
  return lambda: _gather(
      source.training_index_chunks(len(examples), batching, batching.examples_per_batch), examples,
      class_indices, batching)


def _gather(chunks: tf.data.Dataset, examples: np.ndarray, class_indices: np.ndarray,
            batching: Batching) -> tf.data.Dataset:
  return gather_batches(chunks, lambda indices: (examples[indices], class_indices[indices]),
                        examples.dtype, examples.shape[1:], batching)


def gather_batches(chunks: tf.data.Dataset,
                   read: Callable[[np.ndarray], Tuple[np.ndarray, np.ndarray]],
                   dtype: Any, example_shape: Sequence[Optional[int]],
                   batching: Batching) -> tf.data.Dataset:
  """Returns a dataset of batches (examples, labels), which a Python function reads.

  Args:
    chunks: the indices of the examples of each batch, int64 [B].
    read: takes the indices; returns the examples and their class indices.
    dtype: the dtype of the examples.
    example_shape: the shape of an example; None for an unknown dimension.
    batching: how images are augmented, labels are encoded, and batches are prefetched.
  """
  def read_as_int64(indices: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    examples, class_indices = read(indices)
    return examples, class_indices.astype(np.int64)

  @tf.autograph.experimental.do_not_convert
  def make_batch(indices: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
    examples, class_indices = tf.numpy_function(read_as_int64, [indices], [dtype, tf.int64])
    examples.set_shape([None, *example_shape])
    class_indices.set_shape([None])
    return examples, batching.encode_labels(class_indices)

  return augment_and_prefetch(chunks.map(make_batch), batching)


class SyntheticSource(Source):
  """The source of a SyntheticSplit, which repeats one random batch."""
  format_name = 'synthetic'
  can_cache_in_folder = True  # --cache=FOLDER is accepted, but nothing is written.
  last_stage = None

  def check_and_count(self) -> Optional[int]:
    return None

  def make_train_input_fn(self, batching: Batching, cache: str) -> InputFn:
    return make_synthetic_input_fn(batching, self.split.num_batches)

  def make_eval_input_fn(self, batching: Batching) -> InputFn:
    return make_synthetic_input_fn(batching, self.split.num_batches)

  def identity(self) -> str:
    return '{}'.format(self.split.num_batches)

  def class_indices(self) -> np.ndarray:
    raise UserError('balanced classes and --cache_features require a finite data set',
                    '--dataset={} is infinite'.format(self.dataset.name),
                    'omit --class_weights, --class_sampling and --cache_features')


def make_synthetic_input_fn(batching: Batching, num_batches: Optional[int] = None) -> InputFn:
  """Makes an `input_fn` that repeats one random batch.

  Args:
    batching: gives the shape and the seed of the batch.
    num_batches: the number of batches; None: infinite.

  Returns:
    A function that returns a dataset of (images, labels). The images are uint8 [B, height, width,
    channels]; the labels are float32 [B, num_classes] or int64 [B].
  """
  def input_fn() -> tf.data.Dataset:
    shape = (batching.examples_per_batch,) + batching.image_shape
    images = tf.cast(
        tf.random.stateless_uniform(shape, [batching.seed, 0], 0, 256, tf.int32), tf.uint8)
    class_indices = tf.random.stateless_uniform(
        [batching.examples_per_batch], [batching.seed, 1], 0, batching.num_classes, tf.int64)
    batch = images, batching.encode_labels(class_indices)
    return tf.data.Dataset.from_tensors(batch).repeat(num_batches)

  return input_fn


def load_or_fill_array(cache: str, name: str, shape: Tuple[int, ...], dtype: type,
                       fill: FillFunction,
                       check: Callable[[], None] = lambda: None) -> np.ndarray:
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
    check: see storage.open_locked.

  Raises:
    UserError: there is not enough memory or disk space, or the folder is not writable.
  """
  num_bytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
  description = 'a {} array of shape {} and {:,} bytes'.format(
      np.dtype(dtype).name, 'x'.join(map(str, shape)), num_bytes)
  if cache == 'memory':
    _check_memory(num_bytes, description)
    array = np.empty(shape, dtype)
    fill(array)
    return array
  path = os.path.join(cache, name + '.npy')
  parse = functools.partial(_map_file, shape, dtype)
  try:
    os.makedirs(cache, exist_ok=True)
    array = storage.load_or_warn(path, parse)
    if array is None:
      with _open_part_file(path, check) as part_file:
        # Another process may have completed the cache while this process waited for the lock.
        with contextlib.suppress(storage.DamagedFile):
          array = storage.load(path, parse)
        if array is None:
          _LOG.info('caching %s in %s', description, path)
          _fill_file(part_file, shape, dtype, fill)
          os.replace(part_file.name, path)
          array = np.load(path, mmap_mode='r', allow_pickle=False)
    return array
  except OSError as error:
    raise UserError('the cache cannot be stored',
                    '--cache={} for {} ({})'.format(cache, description, error.strerror or error),
                    'give a writable folder on a disk with enough free space') from error


def _check_memory(num_bytes: int, description: str) -> None:
  """Raises a UserError if less memory is free than an array with this description needs."""
  free_bytes = available_bytes()
  if num_bytes > free_bytes:
    raise UserError('the cache does not fit into memory',
                    '--cache=memory for {}, with {:,} free'.format(description, free_bytes),
                    'give --cache=FOLDER, or a smaller --image_size')
  _LOG.info('caching %s in memory', description)


@contextlib.contextmanager
def _open_part_file(path: str, check: Callable[[], None]) -> Iterator[BinaryIO]:
  """Opens and locks the partial file of a path, and removes it unless it has been renamed."""
  with storage.open_locked(path + '.part', check) as part_file:
    try:
      yield part_file
    finally:
      with contextlib.suppress(FileNotFoundError):
        os.remove(part_file.name)


def fill_in_batches(array: np.ndarray, next_batch: Callable[[], np.ndarray],
                    description: str) -> None:
  """Fills an array with consecutive batches, and shows the progress.

  Args:
    array: the array to fill, [N, ...], in memory or mapped from a file.
    next_batch: returns the next batch, [B, ...].
    description: the text in front of the progress bar.
  """
  with make_progress_bar(total=len(array), desc=description, unit='image') as bar, \
      open_writer(array) as write:
    num_filled = 0
    while num_filled < len(array):
      batch = next_batch()
      write(np.arange(num_filled, num_filled + len(batch)), batch)
      num_filled += len(batch)
      bar.update(len(batch))


@contextlib.contextmanager
def open_writer(array: np.ndarray) -> Iterator[Callable[[np.ndarray, np.ndarray], None]]:
  """Yields a function that takes the indices of rows, [B], and writes a batch to these rows."""
  if not isinstance(array, np.memmap):
    yield array.__setitem__
    return
  # Each mapped page that is changed would cause a page fault, which takes longer than the copy.
  with open(array.filename, 'r+b') as file:
    def write(indices: np.ndarray, batch: np.ndarray) -> None:
      rows = np.broadcast_to(batch, (len(batch),) + array.shape[1:]).astype(array.dtype, copy=False)
      for index, row in zip(indices, np.ascontiguousarray(rows)):
        file.seek(array.offset + int(index) * array.strides[0])
        file.write(row.data)
      file.flush()

    yield write


def _map_file(shape: Tuple[int, ...], dtype: type, file: BinaryIO) -> np.ndarray:
  """Returns the array in a file; raises a ValueError unless it is complete, of this shape."""
  array = np.load(file.name, mmap_mode='r', allow_pickle=False)
  if array.shape != shape or array.dtype != dtype:
    raise ValueError('it contains another array')
  return array


def _fill_file(file: BinaryIO, shape: Tuple[int, ...], dtype: type, fill: FillFunction) -> None:
  """Writes an array to an .npy file: the header, and the content that `fill` writes."""
  array = np.lib.format.open_memmap(file.name, 'w+', dtype, shape)
  # Allocate the space first. On a full disk, writing to the mapped memory would kill the process.
  os.posix_fallocate(file.fileno(), 0, array.offset + array.nbytes)
  fill(array)
  array.flush()
  os.fsync(file.fileno())
