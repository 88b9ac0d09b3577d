"""Draws random numbers that depend only on the seed and on the position of a training example."""

from typing import List, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.data.batching import INFINITY, Batching, without_autograph

_EXAMPLES_PER_DRAW = 256
_LOW_BITS = 2 ** 32 - 1


def draw_groups(batching: Batching, size: int, columns: np.ndarray) -> tf.data.Dataset:
  """Returns a dataset of the random numbers of groups of examples, float32 [size, columns]."""
  num_drawn = size * -(-_EXAMPLES_PER_DRAW // size)

  def draw_some(index: np.ndarray) -> np.ndarray:
    positions = np.arange(index * num_drawn, (index + 1) * num_drawn)
    numbers = draw(batching.seed, batching.shard.to_global_positions(positions), columns)
    return numbers.reshape(-1, size, len(columns))

  @without_autograph
  def draw_in_python(index: tf.Tensor) -> tf.Tensor:
    numbers = tf.numpy_function(draw_some, [index], tf.float32)
    numbers.set_shape([None, size, len(columns)])
    return numbers

  return tf.data.Dataset.range(INFINITY // num_drawn).map(draw_in_python).apply(
      tf.data.experimental.unbatch())


def draw(seed: int, positions: np.ndarray, columns: np.ndarray) -> np.ndarray:
  """Returns random numbers from 0 to 1 for each position, float32 [positions, columns].

  They are those of tf.random.stateless_uniform([more columns], [seed, position]), which takes ten
  times as long, because it takes one position at a time. TensorFlow's generator makes four numbers
  at a time, from their index and from a mixture of seed and position.
  """
  seeds, places = np.array([seed], np.uint64), positions.astype(np.uint64)[:, np.newaxis]
  counter = [word for pair in (seeds, places) for word in (pair & _LOW_BITS, pair >> 32)]
  mixed = _philox(counter, [np.array([word], np.uint64) for word in (0x3ec8f720, 0x02461e29)])
  fours = np.unique(columns // 4)
  words = _philox([fours.astype(np.uint64), np.zeros(1, np.uint64), *mixed[2:]], mixed[:2])
  chosen = np.stack(words, -1)[:, np.searchsorted(fours, columns // 4), columns % 4]
  return ((chosen & (2 ** 23 - 1)) / 2 ** 23).astype(np.float32)


def _philox(counter: Sequence[np.ndarray], key: Sequence[np.ndarray]) -> List[np.ndarray]:
  """Returns four random words of 32 bits, as uint64, for four words and a key of two words.

  The generator is Philox4x32-10. Source: Salmon et al., Parallel random numbers: as easy as 1, 2, 3
  (2011).
  """
  first, second, third, fourth = counter
  for number in range(10):
    keys = [word + np.uint64(number * step) & _LOW_BITS
            for word, step in zip(key, (0x9e3779b9, 0xbb67ae85))]
    product, other = first * np.uint64(0xd2511f53), third * np.uint64(0xcd9e8d57)
    first, second = other >> 32 ^ second ^ keys[0], other & _LOW_BITS
    third, fourth = product >> 32 ^ fourth ^ keys[1], product & _LOW_BITS
  return np.broadcast_arrays(first, second, third, fourth)
