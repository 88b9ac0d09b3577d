"""Mixes pairs of training images and their labels (Zhang et al. 2018, arXiv:1710.09412).

Pairs are neighbors in the sequence of training examples, so that any number of replicas and workers
makes the same pairs. This requires an even number of examples per replica.
"""

from typing import Callable, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.data.batching import INFINITY, Batching, without_autograph

_PAIRS_PER_DRAW = 256


def mix_examples(input_fn: Callable[[], tf.data.Dataset], batching: Batching,
                 alpha: float) -> Callable[[], tf.data.Dataset]:
  """Returns an `input_fn` that mixes the examples of another one.

  Example a of a pair becomes λa + (1 - λ)b, and b becomes λb + (1 - λ)a. The weight λ is from the
  beta distribution, and depends only on the seed and on the position of the pair.

  Args:
    input_fn: the other `input_fn`, which yields images and one-hot labels.
    batching: how the examples have been combined into batches.
    alpha: both parameters of the beta distribution.
  """
  size = batching.examples_per_batch
  neighbors = np.arange(size) ^ 1

  def draw(index: np.ndarray) -> np.ndarray:
    positions = batching.shard.to_global_positions(np.arange(index * size, (index + 1) * size, 2))
    return np.repeat(draw_weights(batching.seed, positions // 2, alpha), 2)

  @without_autograph
  def mix(batch: Tuple[tf.Tensor, tf.Tensor], index: tf.Tensor) -> Tuple[tf.Tensor, ...]:
    weights = tf.numpy_function(draw, [index], tf.float32)
    return tuple(_mix(tf.cast(values, tf.float32), neighbors, weights) for values in batch)

  def make_mixed_batches() -> tf.data.Dataset:
    return batching.prefetch_batches(tf.data.Dataset.zip(
        (input_fn(), tf.data.Dataset.range(INFINITY))).map(mix, batching.num_parallel_calls))

  return make_mixed_batches


def draw_weights(seed: int, pairs: np.ndarray, alpha: float) -> np.ndarray:
  """Returns the weight λ of each pair, float32 [N]; `pairs` are the positions of the pairs."""
  blocks, places = np.divmod(pairs, _PAIRS_PER_DRAW)
  weights = np.empty(len(pairs), np.float32)
  for block in np.unique(blocks):
    # The 1 separates these random numbers from those that shuffle an epoch.
    random = np.random.RandomState([seed % 2 ** 32, block % 2 ** 32, 1])
    weights[blocks == block] = random.beta(alpha, alpha, _PAIRS_PER_DRAW)[places[blocks == block]]
  return weights


def _mix(values: tf.Tensor, neighbors: np.ndarray, weights: tf.Tensor) -> tf.Tensor:
  """Mixes images or labels with those of their neighbors; `weights`, [B], are their own shares."""
  weights = tf.reshape(weights, [-1] + [1] * (values.shape.ndims - 1))
  return weights * values + (1 - weights) * tf.gather(values, neighbors)
