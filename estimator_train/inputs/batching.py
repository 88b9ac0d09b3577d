"""What every kind of input has in common: the shape of a batch and the order of the examples."""

from typing import NamedTuple, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

_NO_END = 2 ** 62
# Or the second epoch of one seed would be the first of the next.
_SEEDS_APART = 1000003


class Shard(NamedTuple):
  """The part of the training examples that one worker reads, and from where on.

  Attributes:
    skip_examples: the examples that earlier runs of a training took, so that a resumed run
      continues where they stopped.
    num_workers: that read them together.
    rank: which of these this one is.
    step_examples: of a step that are for one worker, all its replicas together.
  """
  skip_examples: int = 0
  num_workers: int = 1
  rank: int = 0
  step_examples: int = 0


ALL = Shard()


class Batching(NamedTuple):
  """How examples become batches.

  Attributes:
    image_shape: (height, width, channels).
    num_classes: the length of a one-hot label.
    one_hot: whether labels are one-hot, not class indices.
    batch_size: per replica.
    shuffle_buffer: examples to shuffle among.
    num_parallel_calls: images decoded at once.
    prefetch: batches prepared ahead.
    seed: of the order of the examples.
    shard: of the examples of training.
    private_threads: that run the functions of the input, and nothing else; 0: those that run the
      operations of the graph do.
  """
  image_shape: Tuple[int, int, int]
  num_classes: int
  one_hot: bool
  batch_size: int
  shuffle_buffer: int = 1
  num_parallel_calls: int = 1
  prefetch: int = 1
  seed: int = 1
  shard: Shard = ALL
  private_threads: int = 0

  def shuffled(self, examples: tf.data.Dataset, num_examples: int) -> tf.data.Dataset:
    """Returns the examples of training: shuffled and repeated without end, from the next one on.

    Epochs follow each other without a break, so that every batch of them is full. Each has an order
    of its own, by its number, so that a resumed run begins in its epoch, however many it has behind
    it; `shuffle_and_repeat` has to go through them all.

    Workers go through the same order, and each takes its shard of every step: together they train
    on what one process with as many replicas would, and none runs out before the others.

    Args:
      examples: of an epoch.
      num_examples: how many these are.
    """
    first_epoch, done = divmod(self.shard.skip_examples, num_examples)

    # AutoGraph would take its time to find that there is nothing to convert.
    @tf.autograph.experimental.do_not_convert
    def in_order(epoch: tf.Tensor) -> tf.data.Dataset:
      return examples.shuffle(self.shuffle_buffer, seed=self.seed * _SEEDS_APART + epoch,
                              reshuffle_each_iteration=False)

    shuffled = tf.data.Dataset.range(first_epoch, _NO_END).flat_map(in_order).skip(done)
    if self.shard.num_workers == 1:
      return shuffled
    return (shuffled.batch(self.shard.step_examples)
            .shard(self.shard.num_workers, self.shard.rank).unbatch())

  def prefetched(self, batches: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the complete input, whose batches are prepared ahead."""
    return self.on_its_threads(batches.prefetch(self.prefetch))

  def on_its_threads(self, examples: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the same from the threads that it is to run on."""
    if not self.private_threads:
      return examples
    options = tf.data.Options()
    options.experimental_threading.private_threadpool_size = self.private_threads
    return examples.with_options(options)

  def order(self, num_examples: int) -> np.ndarray:
    """Returns the order, int32 [num_examples], in which files are listed to be shuffled.

    Files are found class by class; a shuffle buffer smaller than a class would not mix them.
    """
    return np.random.RandomState(self.seed).permutation(num_examples).astype(np.int32)

  def labels(self, classes: tf.Tensor) -> tf.Tensor:
    """Turns class indices, int64 [B], into labels: those, or float32 [B, num_classes]."""
    return tf.one_hot(classes, self.num_classes) if self.one_hot else classes
