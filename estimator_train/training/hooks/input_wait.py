"""A probe in the training graph that measures how long a step waits for its batch."""

from typing import Dict, Iterable, Optional, Set

import tensorflow.compat.v1 as tf

from estimator_train.tf_patches import sessions

# The types of the operations, one per replica, that get the next batch of a tf.data pipeline.
_GET_NEXT_TYPES = ('IteratorGetNext', 'IteratorGetNextSync', 'IteratorGetNextAsOptional')


def add_probe(graph: tf.Graph) -> Optional[tf.Tensor]:
  """Adds operations that measure the time from the start of a step until all replicas have a batch.

  Args:
    graph: the training graph.

  Returns:
    The waiting time in seconds, a float64 scalar, or None if the graph has no tf.data iterator.
  """
  waits = list(add_probes(graph).values())
  with graph.as_default(), tf.device('/cpu:0'):
    return tf.reduce_max(tf.stack(waits)) if len(waits) > 1 else next(iter(waits), None)


def add_probes(graph: tf.Graph) -> Dict[tf.Operation, tf.Tensor]:
  """Adds operations that measure the time from the start of a step until a batch has arrived.

  On each replica, two operations read the same clock. The first one has no inputs, and so runs at
  the start of the step; the second one runs after the batch has arrived. The model waits for the
  second operation. Otherwise, a single thread could run the model before the second operation, and
  the time of the model would count as waiting. Operations that do not need the batch, such as reads
  of variables, may run between the two operations, but take only microseconds.

  Args:
    graph: the training graph.

  Returns:
    The waiting time in seconds, a float64 scalar, by the operation that gets the batch. Operations
    in a condition or a loop are left out, because they may not run in a step.
  """
  with graph.as_default():
    return {operation: _measure_wait(operation) for operation in graph.get_operations()
            if operation.type in _GET_NEXT_TYPES
            and not sessions.is_in_control_flow(operation)}


def find_ancestors(operations: Iterable[tf.Operation]) -> Set[tf.Operation]:
  """Returns the operations that run if the given ones run, including the given ones."""
  found: Set[tf.Operation] = set()
  pending = list(operations)
  while pending:
    operation = pending.pop()
    if operation not in found:
      found.add(operation)
      pending += [tensor.op for tensor in operation.inputs]
      pending += operation.control_inputs
  return found


def _measure_wait(get_next: tf.Operation) -> tf.Tensor:
  """Returns the seconds from the start of a step until the operation `get_next` has a batch."""
  consumers = [consumer for output in get_next.outputs for consumer in output.consumers()]
  device = tf.DeviceSpec.from_string(get_next.device)
  with tf.control_dependencies(None), tf.device(
      device.replace(device_type='CPU', device_index=0).to_string()):
    start_time = tf.timestamp()
    sessions.run_before(start_time.op, [get_next])
    with tf.control_dependencies([get_next]):
      arrival_time = tf.timestamp()
    wait_secs = tf.maximum(arrival_time - start_time, 0)  # The clock may be set back.
  sessions.run_before(arrival_time.op, consumers)
  return wait_secs
