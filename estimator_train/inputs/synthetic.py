"""Synthetic examples, which cost nothing: one random batch, over and over."""

from typing import Optional

import tensorflow.compat.v1 as tf

from estimator_train.inputs.batching import Batching
from estimator_train.inputs.source import InputFn, Source


class SyntheticSource(Source):
  """One random batch, over and over."""
  kind = 'made_up'
  caches_in_folder = True  # Nothing is kept there.
  last_stage = None

  def check(self) -> Optional[int]:
    return None

  def make_train_input_fn(self, batching: Batching, cache: str) -> InputFn:
    return make_input_fn(batching, self.split.num_batches)

  def make_eval_input_fn(self, batching: Batching) -> InputFn:
    return make_input_fn(batching, self.split.num_batches)


def make_input_fn(batching: Batching,
                  num_batches: Optional[int] = None) -> InputFn:
  """Makes an `input_fn` of the same random batch.

  Args:
    batching: the batch's shape, and its seed.
    num_batches: how many times; None: without end.

  Returns:
    A function that returns a dataset of (uint8 [B, height, width, channels], float32
    [B, num_classes] or int64 [B]).
  """
  def input_fn() -> tf.data.Dataset:
    images = tf.cast(tf.random.stateless_uniform(
        (batching.batch_size,) + batching.image_shape, [batching.seed, 0], 0, 256, tf.int32),
        tf.uint8)
    classes = tf.random.stateless_uniform(
        [batching.batch_size], [batching.seed, 1], 0, batching.num_classes, tf.int64)
    return tf.data.Dataset.from_tensors((images, batching.labels(classes))).repeat(num_batches)

  return input_fn
