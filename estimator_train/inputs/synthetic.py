"""Makes `input_fn`s that generate one random batch and repeat it at almost no cost."""

from typing import Optional

import tensorflow.compat.v1 as tf

from estimator_train.inputs.batching import Batching
from estimator_train.inputs.source import InputFn, Source


class SyntheticSource(Source):
  """The source of a SyntheticSplit, which repeats one random batch."""
  format_name = 'synthetic'
  can_cache_in_folder = True  # --cache=FOLDER is accepted, but nothing is written.
  last_stage = None

  def check_and_count(self) -> Optional[int]:
    return None

  def make_train_input_fn(self, batching: Batching, cache: str) -> InputFn:
    return make_input_fn(batching, self.split.num_batches)

  def make_eval_input_fn(self, batching: Batching) -> InputFn:
    return make_input_fn(batching, self.split.num_batches)


def make_input_fn(batching: Batching,
                  num_batches: Optional[int] = None) -> InputFn:
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
