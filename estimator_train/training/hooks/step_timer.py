"""`StepTimer`: the hook that measures the step time, and how long a step waits for its batch."""

import math
import time
from array import array
from typing import Any, Callable, Dict, Iterable, Optional, Set

import tensorflow.compat.v1 as tf

from estimator_train.system.progress import StartUpTimer
from estimator_train.tf_patches import sessions

# At least the last 100,000 steps are kept. A step takes 24 bytes, so the times of all steps of a
# week-long run could fill the memory.
_NUM_STEPS_KEPT = 100000
# The types of the operations, one per replica, that get the next batch of a tf.data pipeline.
_GET_NEXT_TYPES = ('IteratorGetNext', 'IteratorGetNextSync', 'IteratorGetNextAsOptional')


class StepTimer(tf.train.SessionRunHook):
  """Records when each recent step began and ended, and how long it waited for its batch.

  The cost per step is two clock readings, three appends and one more fetched scalar; everything
  else is computed after the run. This hook must be the first one in the list of hooks. Estimator
  calls the hooks in order, so the time that later hooks take after a step, for example to save a
  checkpoint, counts as time between steps, not as time of session.run.

  Args:
    start_up: the timer of the phases `graph`, `session`, `first_batch` and `first_step`.
    clock: a function that returns the time in seconds.

  Attributes:
    start_up: see the argument.
    run_args: the wait for input that the current step fetches, or a list of waits of several
      replicas; None: nothing. A single tensor takes less time than a list with one tensor.
    began: for each step, the time on `clock` just before session.run, in seconds.
    ended: for each step, the time on `clock` just after session.run, in seconds.
    waited: for each step, the seconds from `began` until the batch had arrived on all replicas; nan
      if this time was not measured.
    discarded_steps: the number of earlier steps whose times were discarded to save memory. The
      times of at least the last 100,000 steps are kept.
  """

  def __init__(self, start_up: StartUpTimer,
               clock: Callable[[], float] = time.perf_counter) -> None:
    self.began = array('d')
    self.ended = array('d')
    self.waited = array('d')
    self.discarded_steps = 0
    self.start_up = start_up
    self._clock = clock
    self._step_began = 0.
    self.run_args: Optional[tf.train.SessionRunArgs] = None

  def begin(self) -> None:
    self.start_up.end_phase('graph')
    probe = add_probe(tf.get_default_graph())
    self.run_args = None if probe is None else tf.train.SessionRunArgs(probe)

  def before_run(self, run_context: Any) -> Optional[tf.train.SessionRunArgs]:
    if not self.began:
      self.start_up.end_phase('session')
    self._step_began = self._clock()
    return self.run_args

  def after_run(self, run_context: Any, run_values: Any) -> None:
    self.ended.append(self._clock())
    # before_run does not append this time, because a session.run that fails is not a step.
    self.began.append(self._step_began)
    waits = math.nan if self.run_args is None else run_values.results
    self.waited.append(max(waits) if isinstance(waits, list) else waits)
    if len(self.ended) == 1:
      self.start_up.end_first_step(self.waited[0])
    if len(self.ended) == 2 * _NUM_STEPS_KEPT:
      self.discarded_steps += _NUM_STEPS_KEPT
      for times in (self.began, self.ended, self.waited):
        del times[:_NUM_STEPS_KEPT]

  @property
  def count(self) -> int:
    """The number of steps, including the discarded ones."""
    return self.discarded_steps + len(self.ended)

  def remove_last_steps(self, count: int) -> None:
    """Removes the last steps, as if they had not been taken."""
    num_kept = max(0, len(self.ended) - count)
    self.discarded_steps -= count - (len(self.ended) - num_kept)
    for times in (self.began, self.ended, self.waited):
      del times[num_kept:]


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
