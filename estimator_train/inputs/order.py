"""Computes the order of examples that can be read in any order, such as image files and records."""

from typing import Callable, List

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.inputs.batching import INFINITY, Batching, Shard


class Order:
  """The order in which a worker reads the training examples.

  Each epoch has its own permutation of all examples, which depends only on the seed and the index
  of the epoch. A resumed run computes the permutation of the epoch in which the run was
  interrupted, and reads no earlier example. Batches may span two epochs.

  All workers use the same permutations, and each worker reads its shard of the examples of every
  step. Together, the workers train on the same examples as one process with as many replicas.

  Args:
    num_examples: the number of examples per epoch.
    seed: the seed of the permutations.
    shard: the training examples that the worker reads.
  """

  def __init__(self, num_examples: int, seed: int, shard: Shard) -> None:
    self._num_examples, self._seed, self._shard = num_examples, seed, shard
    self._epoch, self._permutation = -1, np.empty(0, np.int64)

  def indices(self, start: int, stop: int) -> np.ndarray:
    """Returns the indices of the worker's examples from `start` to `stop`, int64 [stop - start]."""
    positions = self._shard.to_global_positions(np.arange(start, stop))
    epochs, positions_in_epoch = np.divmod(positions, self._num_examples)
    parts: List[np.ndarray] = [self._permute(epoch)[positions_in_epoch[epochs == epoch]]
                               for epoch in range(epochs[0], epochs[-1] + 1)]
    return np.concatenate(parts)

  def _permute(self, epoch: int) -> np.ndarray:
    """Returns the permutation of an epoch; the last one is kept."""
    if epoch != self._epoch:
      random = np.random.RandomState([self._seed % 2 ** 32, epoch % 2 ** 32])
      self._epoch, self._permutation = epoch, random.permutation(self._num_examples)
    return self._permutation


def first_reads(num_examples: int, batching: Batching) -> np.ndarray:
  """Returns the indices of all examples, int64 [num_examples], ordered by their first use.

  First are the examples that this worker trains on, in this order; then follow all others.
  """
  used = Order(num_examples, batching.seed, batching.shard).indices(0, num_examples)
  _, first_positions = np.unique(used, return_index=True)
  ordered = used[np.sort(first_positions)]
  return np.concatenate([ordered, np.setdiff1d(np.arange(num_examples), ordered)])


def training_chunks(num_examples: int, batching: Batching, chunk_size: int) -> tf.data.Dataset:
  """Returns an infinite dataset of the indices of the training examples, int64 [chunk_size]."""
  order = Order(num_examples, batching.seed, batching.shard)

  return _map_to_chunks(INFINITY, order.indices, chunk_size)


def chunks_of(indices: np.ndarray, chunk_size: int) -> tf.data.Dataset:
  """Returns a dataset of the given indices, int64 [chunk_size or fewer]."""
  return _map_to_chunks(-(-len(indices) // chunk_size), lambda start, stop: indices[start:stop],
                        chunk_size)


def _map_to_chunks(num_chunks: int, get_indices: Callable[[int, int], np.ndarray],
                   chunk_size: int) -> tf.data.Dataset:
  """Returns a dataset of the results of `get_indices`, which takes the range of each chunk."""
  def compute_chunk(chunk: np.ndarray) -> np.ndarray:
    return get_indices(int(chunk) * chunk_size, (int(chunk) + 1) * chunk_size)

  # Without this decorator, AutoGraph would take time, although it converts nothing.
  @tf.autograph.experimental.do_not_convert
  def make_chunk(chunk: tf.Tensor) -> tf.Tensor:
    indices = tf.numpy_function(compute_chunk, [chunk], tf.int64)
    indices.set_shape([None])
    return indices

  return tf.data.Dataset.range(num_chunks).map(make_chunk)


def evaluation_chunks(num_examples: int, chunk_size: int) -> tf.data.Dataset:
  """Returns a dataset of the indices of all examples in order, int64 [chunk_size or fewer]."""
  return tf.data.Dataset.range(num_examples).batch(chunk_size)
