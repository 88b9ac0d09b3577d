"""Describes the order of training examples, the pixels of images, and batches of examples."""

from typing import Any, Callable, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.data import ImageShape
from estimator_train.data.order import UNSHARDED, ExampleOrder, Shard

INFINITY = 2 ** 62  # The number of elements of practically infinite datasets.
NO_IMAGE_SHAPE = (0, 0, 0)  # The `image_shape` of examples that are not images.
# The difference between the shuffle seeds of --seed=N and --seed=N+1. With a difference of 1,
# epoch 1 of --seed=N would have the same order as epoch 0 of --seed=N+1.
_SEED_STRIDE = 1000003
# Decorates functions of datasets, because AutoGraph would take time, although it converts nothing.
without_autograph = tf.autograph.experimental.do_not_convert


class OrderSettings(NamedTuple):
  """The order in which a worker reads the training examples.

  All workers shuffle in the same order, and each worker reads its shard of the examples of every
  step. Together, the workers train on the same examples as one process with as many replicas.

  Attributes:
    shuffle_buffer: the number of examples in the shuffle buffer of sequential reading.
    class_indices: None to read every example equally often. To read every class equally often, the
      class index of each training example.
  """
  seed: int = 1
  shard: Shard = UNSHARDED
  shuffle_buffer: int = 1
  class_indices: Optional[np.ndarray] = None

  def make_index_chunks(self, num_examples: int, chunk_size: int, is_sequential: bool) -> (
      tf.data.Dataset):
    """Returns an infinite dataset of the indices of the training examples, int64 [chunk_size].

    The order is the same with and without a cache. If the examples can only be read sequentially, a
    shuffle buffer determines the order.
    """
    if is_sequential and self.class_indices is None:
      return self.shuffle_and_shard(tf.data.Dataset.range(num_examples),
                                    num_examples).batch(chunk_size)
    order = self._make_example_order(num_examples)
    return _make_chunks(INFINITY, order.compute_indices, chunk_size)

  def indices_by_first_use(self, num_examples: int) -> np.ndarray:
    """Returns the indices of all examples, int64 [num_examples], ordered by their first use.

    This worker reads `num_examples` examples first, some of them possibly several times. Examples
    that are not among them come last.
    """
    used = self._make_example_order(num_examples).compute_indices(0, num_examples)
    _, first_positions = np.unique(used, return_index=True)
    unique_used = used[np.sort(first_positions)]
    return np.concatenate([unique_used, np.setdiff1d(np.arange(num_examples), unique_used)])

  def shuffle_and_shard(self, examples: tf.data.Dataset, num_examples: int) -> tf.data.Dataset:
    """Returns an infinite dataset of the examples of this worker.

    The order of an epoch depends only on the seed and the index of the epoch. A resumed run
    therefore starts reading in the epoch in which the run was interrupted. With
    `tf.data.experimental.shuffle_and_repeat`, a resumed run would have to read all earlier epochs
    first.

    Args:
      examples: the dataset of one epoch.
    """
    shard = self.shard
    first_epoch, num_skipped = divmod(shard.first_example, num_examples)

    @without_autograph
    def shuffle_epoch(epoch: tf.Tensor) -> tf.data.Dataset:
      return examples.shuffle(self.shuffle_buffer, seed=self.seed * _SEED_STRIDE + epoch,
                              reshuffle_each_iteration=False)

    epochs = tf.data.Dataset.range(first_epoch, INFINITY)
    shuffled = epochs.flat_map(shuffle_epoch).skip(num_skipped)
    if shard.num_workers == 1:
      return shuffled
    return (shuffled.batch(shard.worker_batch_size)
            .shard(shard.num_workers, shard.rank).unbatch())

  def _make_example_order(self, num_examples: int) -> ExampleOrder:
    return ExampleOrder(num_examples, self.seed, self.shard, self.class_indices)


class PixelSettings(NamedTuple):
  """The pixels of the images of a batch.

  Attributes:
    image_shape: (height, width, channels); NO_IMAGE_SHAPE if the examples are not images.
    augment: the value of `--augment`; `none` in evaluation.
    dtype: tf.float32 or tf.uint8. For tf.uint8, pixel values are rounded.
  """
  image_shape: ImageShape
  augment: str = 'none'
  dtype: tf.DType = tf.float32


class BatchSettings(NamedTuple):
  """The batches of examples, and the threads and queues that produce them.

  Attributes:
    size: the number of examples per batch; in training, the batch size per replica.
    num_classes: the length of a one-hot label; 0 if the data set has no class names.
    one_hot: whether labels are one-hot vectors instead of class indices.
    num_parallel_calls: the number of examples that threads load in parallel.
    num_queued_calls: the number of examples that wait for one of these threads.
    prefetch: the number of batches to prefetch.
    private_threads: the number of threads in the thread pool of the input pipeline. If it is 0,
      the input pipeline shares TensorFlow's threads with the model.
  """
  size: int
  num_classes: int
  one_hot: bool
  num_parallel_calls: int = 1
  num_queued_calls: int = 0
  prefetch: int = 1
  private_threads: int = 0

  def map_and_batch(self, examples: tf.data.Dataset, load: Callable[..., Any],
                    size: Optional[int] = None) -> tf.data.Dataset:
    """Calls `load` for the examples in parallel, and batches the results."""
    return examples.apply(tf.data.experimental.map_and_batch(
        load, size or self.size,
        num_parallel_calls=self.num_parallel_calls + self.num_queued_calls))

  def prefetch_batches(self, batches: tf.data.Dataset) -> tf.data.Dataset:
    """Adds prefetching and the private thread pool, if there is one, to a dataset of batches."""
    return self.use_private_threads(batches.prefetch(self.prefetch))

  def prefetch_image_batches(self, batches: tf.data.Dataset) -> tf.data.Dataset:
    """Like prefetch_batches, for batches of images that are decoded in parallel.

    Each operation runs on a single thread.
    """
    # By default, TensorFlow divides an operation among the threads of all cores. These threads are
    # busy with other images, and waking them takes longer than a small operation, such as rounding
    # the pixel values of an image.
    options = tf.data.Options()
    options.experimental_threading.max_intra_op_parallelism = 1
    return self.prefetch_batches(batches.with_options(options))

  def use_private_threads(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Makes a dataset run on the private thread pool, if there is one."""
    if not self.private_threads:
      return dataset
    options = tf.data.Options()
    options.experimental_threading.private_threadpool_size = self.private_threads
    return dataset.with_options(options)

  def encode_labels(self, class_indices: tf.Tensor) -> tf.Tensor:
    """Returns the labels for class indices, int64 [B] or [].

    The labels are float32 [B, num_classes] or [num_classes] if `one_hot`, else the class indices.
    """
    return tf.one_hot(class_indices, self.num_classes) if self.one_hot else class_indices

  def check_and_encode_labels(self, class_indices: tf.Tensor) -> tf.Tensor:
    """Like encode_labels, but makes the session fail if a class index is out of range."""
    # Without this check, the one-hot label of such an index would contain only zeros.
    is_valid = tf.reduce_all((class_indices >= 0) & (class_indices < self.num_classes))
    with tf.control_dependencies([tf.Assert(is_valid, ['a class index is out of range'])]):
      return self.encode_labels(tf.identity(class_indices))


def make_ordered_chunks(num_examples: int, chunk_size: int) -> tf.data.Dataset:
  """Returns a dataset of the indices of all examples in order, int64 [chunk_size or fewer]."""
  return tf.data.Dataset.range(num_examples).batch(chunk_size)


def split_into_chunks(indices: np.ndarray, chunk_size: int) -> tf.data.Dataset:
  """Returns a dataset of chunks of the indices, int64 [chunk_size or fewer]."""
  return _make_chunks(-(-len(indices) // chunk_size), lambda start, stop: indices[start:stop],
                      chunk_size)


def _make_chunks(num_chunks: int, slice_indices: Callable[[int, int], np.ndarray],
                 chunk_size: int) -> tf.data.Dataset:
  return map_python_function(
      tf.data.Dataset.range(num_chunks),
      lambda chunk: slice_indices(int(chunk) * chunk_size, (int(chunk) + 1) * chunk_size),
      [(tf.int64, [None])])


def map_python_function(dataset: tf.data.Dataset, function: Callable[..., Any],
                        result_types: Sequence[Tuple[tf.DType, Any]],
                        num_parallel_calls: Optional[int] = None) -> tf.data.Dataset:
  """Returns a dataset of the results of a Python function for each element.

  Args:
    dataset: a dataset of single tensors.
    function: takes a NumPy array. It returns one array or, if there are several results, a tuple.
    result_types: the dtype and the shape of each result.
  """
  @without_autograph
  def call(element: tf.Tensor) -> Any:
    tensors = tf.numpy_function(function, [element], [dtype for dtype, _ in result_types])
    for tensor, (_, shape) in zip(tensors, result_types):
      tensor.set_shape(shape)
    return tuple(tensors) if len(tensors) > 1 else tensors[0]

  return dataset.map(call, num_parallel_calls)
