"""A probe in the training graph that measures how long a step waits for its batch."""

from typing import Optional

import tensorflow.compat.v1 as tf

from estimator_train.tf_patches import control_inputs

# The types of the operations, one per replica, that get the next batch of a tf.data pipeline.
_GET_NEXT_TYPES = ('IteratorGetNext', 'IteratorGetNextSync', 'IteratorGetNextAsOptional')


def add_probe(graph: tf.Graph) -> Optional[tf.Tensor]:
  """Adds operations that measure the time from the start of a step until all replicas have a batch.

  Two operations read the same clock: the first has no inputs, the second runs after the batch has
  arrived. Other operations that do not need the batch, such as reads of variables, may run between
  them, but only take microseconds. The model runs after the second operation: otherwise, with a
  single thread, the second operation could be scheduled after the model.

  Args:
    graph: the training graph.

  Returns:
    The waiting time in seconds, a float64 scalar; None if the graph has no tf.data iterator to
    wait for.
  """
  with graph.as_default():
    waits = [_measure_wait(operation) for operation in graph.get_operations()
             if operation.type in _GET_NEXT_TYPES]
    with tf.device('/cpu:0'):
      return tf.reduce_max(tf.stack(waits)) if len(waits) > 1 else next(iter(waits), None)


def _measure_wait(get_next: tf.Operation) -> tf.Tensor:
  consumers = [consumer for output in get_next.outputs for consumer in output.consumers()]
  device = tf.DeviceSpec.from_string(get_next.device)
  with tf.control_dependencies(None), tf.device(
      device.replace(device_type='CPU', device_index=0).to_string()):
    began = tf.timestamp()
    with tf.control_dependencies([get_next]):
      arrived = tf.timestamp()
    wait = arrived - began
  control_inputs.run_before(arrived.op, consumers)
  return wait
