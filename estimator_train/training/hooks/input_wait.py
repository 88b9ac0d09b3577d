"""How long a training step waits for its batch, measured in the graph."""

from typing import Any

import tensorflow.compat.v1 as tf

_WAITS = 'estimator_train/input_wait_secs'


def mark(features: Any) -> Any:
  """Has the graph tell how long after the beginning of a step this replica's batch is there.

  Beginning and arrival are readings of one clock, taken by operations: the first depends on
  nothing, the second on the batch. What else the step does before it has its batch, reading
  variables, say, goes on meanwhile, and is over in microseconds.

  Args:
    features: what the `input_fn` delivers.

  Returns:
    The same, for the model: it begins when the arrival has been noted, which with a single thread
    would otherwise have to wait for the model.
  """
  with tf.device('/cpu:0'):
    began = tf.timestamp()
    with tf.control_dependencies(tf.nest.flatten(features)):
      arrived = tf.timestamp()
    tf.add_to_collection(_WAITS, arrived - began)
  with tf.control_dependencies([arrived]):
    return tf.nest.map_structure(tf.identity, features)


def secs() -> tf.Tensor:
  """Returns the seconds until the last replica had its batch, a float64 scalar; 0 without marks."""
  with tf.device('/cpu:0'):
    waits = tf.get_collection(_WAITS)
    if len(waits) == 1:
      return waits[0]
    return tf.reduce_max(tf.stack(waits)) if waits else tf.zeros([], tf.float64)
