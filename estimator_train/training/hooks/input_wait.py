"""A probe in the graph of training, which measures how long a step waits for its batch."""

from typing import Optional

import tensorflow.compat.v1 as tf

from estimator_train.tf_patches import control_inputs

# What takes the next batch of a tf.data pipeline, once in each replica.
_TAKES_A_BATCH = ('IteratorGetNext', 'IteratorGetNextSync', 'IteratorGetNextAsOptional')


def install(graph: tf.Graph) -> Optional[tf.Tensor]:
  """Has a graph measure how long after the beginning of a step the last replica has its batch.

  Beginning and arrival are readings of one clock, taken by operations: the first depends on
  nothing, the second on the batch. What else the step does before it has its batch, reading
  variables, say, goes on meanwhile, and is over in microseconds. The model begins when the arrival
  has been noted, which with a single thread would otherwise have to wait for the model.

  Returns:
    The seconds, a float64 scalar; None where the batches come from no tf.data pipeline, and so
    nothing can be observed.
  """
  with graph.as_default():
    waits = [_wait(take) for take in graph.get_operations() if take.type in _TAKES_A_BATCH]
    with tf.device('/cpu:0'):
      return tf.reduce_max(tf.stack(waits)) if len(waits) > 1 else next(iter(waits), None)


def _wait(take: tf.Operation) -> tf.Tensor:
  consumers = [consumer for output in take.outputs for consumer in output.consumers()]
  device = tf.DeviceSpec.from_string(take.device)
  with tf.control_dependencies(None), tf.device(
      device.replace(device_type='CPU', device_index=0).to_string()):
    began = tf.timestamp()
    with tf.control_dependencies([take]):
      arrived = tf.timestamp()
    wait = arrived - began
  control_inputs.run_before(arrived.op, consumers)
  return wait
