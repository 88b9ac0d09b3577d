"""Divides the training examples among the workers, and orders them.

Each worker reads one shard. There are three ways to read it:
- Arrays, binary files, image files and records can be read in any order. ExampleOrder, in this
  module, computes the indices of the worker's examples.
- Idx files, and the examples of a user's function (ExampleSplit), are read sequentially, unless the
  classes are balanced. Each worker reads all examples, and OrderSettings.shuffle_and_shard in
  batching.py leaves out those of other workers. With a cache, the order is the same as without one.
- With `--input_pipeline=published`, shuffle_files in decoding.py gives each worker its own files,
  as the input pipelines of 2018 did.
"""

from typing import Any, List, NamedTuple, Optional

import numpy as np


class Shard(NamedTuple):
  """The training examples that one worker reads.

  Attributes:
    first_example: the position in the infinite sequence of training examples at which reading
      starts. It is 0 unless a run is resumed.
    num_workers: the number of workers. Each worker reads one shard of the examples.
    rank: the index of this worker.
    worker_batch_size: the number of examples that this worker reads per step, for all of its
      replicas together. It is not used if there is only one worker.
  """
  first_example: int = 0
  num_workers: int = 1
  rank: int = 0
  worker_batch_size: int = 0

  def to_global_positions(self, positions: Any) -> Any:
    """Converts positions among this worker's examples to positions among all training examples.

    Args:
      positions: integers in a NumPy array or a tensor. The first example that this worker reads has
        the position 0.

    Returns:
      Positions in the infinite sequence of training examples.
    """
    if self.num_workers > 1:
      step, position_in_step = (positions // self.worker_batch_size,
                                positions % self.worker_batch_size)
      positions = position_in_step + self.worker_batch_size * (
          step * self.num_workers + self.rank)
    return positions + self.first_example


UNSHARDED = Shard()


class ExampleOrder:
  """The order in which a worker reads the training examples.

  Each epoch has its own permutation of all examples, which depends only on the seed and the index
  of the epoch. A resumed run computes the permutation of the epoch in which the run was
  interrupted, and reads no earlier example. Batches may span two epochs.

  If class indices are given, the classes are balanced. An epoch still has `num_examples` examples,
  but the numbers of examples per class differ by at most one. The epoch repeats examples of small
  classes, and leaves out examples of large classes.

  All workers use the same permutations, and each worker reads its shard of the examples of every
  step. Together, the workers train on the same examples as one process with as many replicas.

  Args:
    num_examples: the number of examples per epoch.
    seed, shard, class_indices: see batching.OrderSettings.
  """

  def __init__(self, num_examples: int, seed: int, shard: Shard,
               class_indices: Optional[np.ndarray] = None) -> None:
    self._num_examples, self._seed, self._shard = num_examples, seed, shard
    self._indices_by_class: List[np.ndarray] = []  # The example indices; [] if not balanced.
    if class_indices is not None:
      ends = np.cumsum(np.unique(class_indices, return_counts=True)[1])
      self._indices_by_class = np.split(
          np.argsort(class_indices, kind='mergesort'), ends[:-1])
    self._epoch, self._permutation = -1, np.empty(0, np.int64)

  def compute_indices(self, start: int, stop: int) -> np.ndarray:
    """Returns the indices of the worker's examples `start` to `stop - 1`, int64 [stop - start]."""
    positions = self._shard.to_global_positions(np.arange(start, stop))
    epochs, positions_in_epoch = np.divmod(positions, self._num_examples)
    indices_by_epoch: List[np.ndarray] = [
        self._compute_permutation(epoch)[positions_in_epoch[epochs == epoch]]
        for epoch in range(epochs[0], epochs[-1] + 1)]
    return np.concatenate(indices_by_epoch)

  def _compute_permutation(self, epoch: int) -> np.ndarray:
    """Returns the permutation of an epoch, and stores it for the next call."""
    if epoch != self._epoch:
      random = np.random.RandomState([self._seed % 2 ** 32, epoch % 2 ** 32])
      self._epoch, self._permutation = epoch, random.permutation(
          self._draw_balanced_indices(random) if self._indices_by_class else self._num_examples)
    return self._permutation

  def _draw_balanced_indices(self, random: np.random.RandomState) -> np.ndarray:
    """Returns the indices of the examples of an epoch with equally many examples of each class.

    If the division has a remainder, some classes get one more example.
    """
    num_per_class, remainder = divmod(self._num_examples, len(self._indices_by_class))
    drawn_indices = []
    for position, class_index in enumerate(random.permutation(len(self._indices_by_class))):
      indices = self._indices_by_class[class_index]
      count = num_per_class + (position < remainder)
      drawn_indices += [random.permutation(indices) for _ in range(count // len(indices))]
      drawn_indices.append(random.permutation(indices)[:count % len(indices)])
    return np.concatenate(drawn_indices)


def evenly_spaced_indices(count: int, max_count: int) -> np.ndarray:
  """Returns up to `max_count` evenly spaced indices, int64, of `count` elements."""
  sample_size = min(max_count, count)
  return np.arange(sample_size) * count // max(1, sample_size)
