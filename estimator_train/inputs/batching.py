"""How all inputs form batches: shapes, labels, the order of the examples, and shards of workers."""

from typing import NamedTuple, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

_MAX_EPOCHS = 2 ** 62  # In effect infinite.
# The difference between the shuffle seeds of --seed=N and --seed=N+1. If it were 1, epoch 1 of the
# former would have the order of epoch 0 of the latter.
_SEED_STRIDE = 1000003


class Shard(NamedTuple):
  """The training examples that one worker reads.

  Attributes:
    skip_examples: the number of examples that were read before the run was resumed.
    num_workers: the number of workers that read the examples together.
    rank: the index of this worker.
    worker_examples_per_step: the number of examples per step for all replicas of this worker.
  """
  skip_examples: int = 0
  num_workers: int = 1
  rank: int = 0
  worker_examples_per_step: int = 0


UNSHARDED = Shard()


class Batching(NamedTuple):
  """How examples are shuffled, sharded and combined into batches.

  Attributes:
    image_shape: (height, width, channels).
    num_classes: the number of classes, which is the length of a one-hot label.
    one_hot: whether labels are one-hot vectors instead of class indices.
    batch_size: the batch size per replica.
    shuffle_buffer: the number of examples in the shuffle buffer.
    num_parallel_calls: the number of images that are decoded in parallel.
    prefetch: the number of batches that are prepared ahead.
    seed: the seed of the order of the examples.
    shard: the training examples that this worker reads.
    private_threads: the number of threads that only run the input pipeline; 0: the input pipeline
      shares TensorFlow's threads with the model.
  """
  image_shape: Tuple[int, int, int]
  num_classes: int
  one_hot: bool
  batch_size: int
  shuffle_buffer: int = 1
  num_parallel_calls: int = 1
  prefetch: int = 1
  seed: int = 1
  shard: Shard = UNSHARDED
  private_threads: int = 0

  def shuffle_and_shard(self, examples: tf.data.Dataset, num_examples: int) -> tf.data.Dataset:
    """Returns the training examples of this worker: shuffled, infinite, starting after the examples
    used before a resume.

    Batches may span two epochs, so that all batches are full. The order of an epoch depends on the
    seed and the number of the epoch only, so that a resumed run starts in the current epoch;
    `shuffle_and_repeat` would have to read all epochs before it.

    All workers use the same order, and each takes its shard of every step. Together they train on
    the same examples as one process with as many replicas, and no worker runs out of examples
    before the others.

    Args:
      examples: the examples of one epoch.
      num_examples: the number of examples per epoch.
    """
    first_epoch, skipped = divmod(self.shard.skip_examples, num_examples)

    # AutoGraph would spend time finding that there is nothing to convert.
    @tf.autograph.experimental.do_not_convert
    def shuffle_epoch(epoch: tf.Tensor) -> tf.data.Dataset:
      return examples.shuffle(self.shuffle_buffer, seed=self.seed * _SEED_STRIDE + epoch,
                              reshuffle_each_iteration=False)

    shuffled = tf.data.Dataset.range(first_epoch, _MAX_EPOCHS).flat_map(shuffle_epoch).skip(skipped)
    if self.shard.num_workers == 1:
      return shuffled
    return (shuffled.batch(self.shard.worker_examples_per_step)
            .shard(self.shard.num_workers, self.shard.rank).unbatch())

  def prefetch_batches(self, batches: tf.data.Dataset) -> tf.data.Dataset:
    """Prepares batches ahead, on private threads if there are any."""
    return self.use_private_threads(batches.prefetch(self.prefetch))

  def use_private_threads(self, examples: tf.data.Dataset) -> tf.data.Dataset:
    """Runs the input pipeline on private threads if there are any."""
    if not self.private_threads:
      return examples
    options = tf.data.Options()
    options.experimental_threading.private_threadpool_size = self.private_threads
    return examples.with_options(options)

  def permutation(self, num_examples: int) -> np.ndarray:
    """Returns the permutation, int32 [num_examples], of the examples before they are shuffled.

    Image files are listed class by class, and a shuffle buffer smaller than a class would not mix
    the classes.
    """
    return np.random.RandomState(self.seed).permutation(num_examples).astype(np.int32)

  def encode_labels(self, classes: tf.Tensor) -> tf.Tensor:
    """Converts class indices, int64 [B], to labels: unchanged, or one-hot, float32 [B,
    num_classes]."""
    return tf.one_hot(classes, self.num_classes) if self.one_hot else classes
