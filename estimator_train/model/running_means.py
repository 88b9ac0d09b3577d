"""Makes sums and means over the batches of an evaluation, as metrics of an EstimatorSpec.

A metric is a pair of a tensor with its value and the operation that adds a batch.
"""

from typing import Any, Tuple

import tensorflow.compat.v1 as tf


def mean_over_batches(value: tf.Tensor, batch_size: tf.Tensor,
                      name: str) -> Tuple[tf.Tensor, tf.Operation]:
  """Returns the mean of a scalar over all batches, weighted by their sizes, as a metric."""
  weight = tf.cast(batch_size, tf.float64)
  return running_mean(tf.cast(value, tf.float64) * weight, weight, name)


def running_mean(batch_sum: tf.Tensor, batch_count: tf.Tensor,
                 name: str) -> Tuple[tf.Tensor, tf.Operation]:
  """Returns the sum over all batches, divided by the count over all batches, as a metric."""
  total, add_sum = running_sum(tf.cast(batch_sum, tf.float64), name + '_sum')
  count, add_count = running_sum(tf.cast(batch_count, tf.float64), name + '_count')
  return total / count, tf.group(add_sum, add_count)


def running_sum(value: tf.Tensor, name: str) -> Tuple[Any, tf.Operation]:
  """Returns the sum of a value over all batches, as a metric."""
  total = tf.Variable(
      tf.zeros(value.shape, value.dtype), trainable=False, use_resource=True, name=name,
      collections=[tf.GraphKeys.LOCAL_VARIABLES, tf.GraphKeys.METRIC_VARIABLES])
  return total.read_value(), total.assign_add(value, read_value=False)
