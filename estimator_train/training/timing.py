"""Times of steps, their waits for input, and traces of steps.

StepTimes records the times. The hook TimeSteps measures them in a run, and the hook TimeHistory in
a training of any Estimator.
"""

import contextlib
import json
import math
import os
import time
from array import array
from typing import Any, Callable, Dict, FrozenSet, Iterable, Iterator, List, Optional

import tensorflow.compat.v1 as tf

from estimator_train.reports.step_times import Pause, RunTimes
from estimator_train.system import storage
from estimator_train.system.start_up import StartUpTimer
from estimator_train.tf_patches import graphs, sessions
from estimator_train.training.steps import StepMonitor

# At least the last 100,000 steps are kept. A step takes 24 bytes, so the times of all steps of a
# week-long run could fill the memory.
_NUM_STEPS_KEPT = 100000
# The types of the operations, one per replica, that get the next batch of a tf.data pipeline.
_GET_NEXT_TYPES = ('IteratorGetNext', 'IteratorGetNextSync', 'IteratorGetNextAsOptional')
TRACE_FILE = 'trace.json'
_TRACE_ARGS = tf.train.SessionRunArgs(
    [], options=tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE))
# The process id of the row that shows the steps; the ids of TensorFlow's rows are smaller.
_STEPS_PID = 1000


class StepTimes:
  """Records when each recent step began and ended, and how long it waited for its batch.

  The cost per step is two clock readings and three appends; everything else is computed after the
  run.

  Args:
    start_up: the timer of the phases `session`, `first_batch` and `first_step`.
    clock: returns the time in seconds.

  Attributes:
    began: for each step, the time on `clock` just before session.run.
    ended: for each step, the time on `clock` just after session.run.
    waited: for each step, the seconds from `began` until the batch had arrived on all replicas; nan
      if this time was not measured.
    pauses: the pauses between steps.
  """

  def __init__(self, start_up: StartUpTimer,
               clock: Callable[[], float] = time.perf_counter) -> None:
    self.start_up, self.clock = start_up, clock
    self.began, self.ended, self.waited = array('d'), array('d'), array('d')
    self.pauses: List[Pause] = []
    self._num_discarded = 0
    self._step_began = self._step_ended = 0.

  @property
  def num_steps(self) -> int:
    """The number of steps, including those whose times were discarded to save memory."""
    return self._num_discarded + len(self.ended)

  def start_step(self) -> None:
    """Must be called just before session.run."""
    if not self.began:
      self.start_up.end_phase('session')
    self._step_began = self.clock()

  def end_step(self) -> None:
    """Must be called just after session.run."""
    self._step_ended = self.clock()

  def add_step(self, waits: Any) -> None:
    """Adds the step that has ended. If session.run fails, it must not be called.

    Args:
      waits: the results of the fetches of `make_wait_fetches`; None if there are none.
    """
    self.began.append(self._step_began)
    self.ended.append(self._step_ended)
    if isinstance(waits, list):
      waits = max(waits, default=math.nan)
    self.waited.append(math.nan if waits is None else waits)
    if len(self.ended) == 1:
      self.start_up.end_first_step(self.waited[0])
    if len(self.ended) == 2 * _NUM_STEPS_KEPT:
      self._num_discarded += _NUM_STEPS_KEPT
      for times in (self.began, self.ended, self.waited):
        del times[:_NUM_STEPS_KEPT]

  def remove_last_steps(self, count: int) -> None:
    """Removes the last steps, as if they had not been taken."""
    num_kept = max(0, len(self.ended) - count)
    self._num_discarded -= count - (len(self.ended) - num_kept)
    for times in (self.began, self.ended, self.waited):
      del times[num_kept:]

  @contextlib.contextmanager
  def record_pause(self, kind: str) -> Iterator[None]:
    """Records the time of a `with` block between two steps as a pause."""
    began = self.clock()
    yield
    self.pauses.append(Pause(kind, began, self.clock() - began))

  def of_run(self, global_step: int, loss: Optional[float] = None,
             traced_steps: FrozenSet[int] = frozenset()) -> RunTimes:
    """Returns the times of a run that has ended; see RunTimes."""
    return RunTimes(self.began, self.ended, self.waited, dict(self.start_up.secs), global_step,
                    loss, self.pauses, traced_steps, self._num_discarded)


class TimeSteps(tf.train.SessionRunHook):
  """Times the steps of a run.

  This hook must be the first one in the list of hooks. Estimator calls the hooks in order, so the
  time that later hooks take after a step, for example to save a checkpoint, counts as time between
  steps, not as time of session.run.
  """

  def __init__(self, times: StepTimes) -> None:
    self._times = times
    self._wait_fetches: Optional[tf.train.SessionRunArgs] = None

  def begin(self) -> None:
    self._times.start_up.end_phase('graph')
    self._wait_fetches = make_wait_fetches(
        add_wait_measurements(tf.get_default_graph()).values())

  def before_run(self, run_context: Any) -> Optional[tf.train.SessionRunArgs]:
    self._times.start_step()
    return self._wait_fetches

  def after_run(self, run_context: Any, run_values: Any) -> None:
    self._times.end_step()
    self._times.add_step(run_values.results)


def make_wait_fetches(waits: Iterable[tf.Tensor]) -> Optional[tf.train.SessionRunArgs]:
  """Returns the SessionRunArgs that fetch the waits of a step; None if there are none."""
  tensors = list(waits)
  # A single tensor takes less time than a list with one tensor.
  return tf.train.SessionRunArgs(tensors if len(tensors) > 1 else tensors[0]) if tensors else None


def add_wait_measurements(graph: tf.Graph) -> Dict[tf.Operation, tf.Tensor]:
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
            and not graphs.is_in_control_flow(operation)}


def _measure_wait(get_next: tf.Operation) -> tf.Tensor:
  """Returns the seconds from the start of a step until the operation `get_next` has a batch."""
  consumers = [consumer for output in get_next.outputs for consumer in output.consumers()]
  device = tf.DeviceSpec.from_string(get_next.device)
  with tf.control_dependencies(None), tf.device(
      device.replace(device_type='CPU', device_index=0).to_string()):
    start_time = tf.timestamp()
    graphs.run_before(start_time.op, [get_next])
    with tf.control_dependencies([get_next]):
      arrival_time = tf.timestamp()
    wait_secs = tf.maximum(arrival_time - start_time, 0)  # The clock may be set back.
  graphs.run_before(arrival_time.op, consumers)
  return wait_secs


class TraceSteps(tf.train.SessionRunHook):
  """Traces a range of steps, and writes the trace after the last of them.

  Open `trace.json` in chrome://tracing or Perfetto. Traced steps are slower than other steps.

  Args:
    times: records the pause in which the file is written.
    first, last: the first and the last global step to trace. In an asynchronous cluster, they are
      compared with StepMonitor.local_step.
  """

  def __init__(self, monitor: StepMonitor, times: StepTimes, model_dir: str, first: int,
               last: int) -> None:
    self._monitor, self._times = monitor, times
    self._path = os.path.join(model_dir, TRACE_FILE)
    self._first, self._last = first, last
    self._step_began = 0.  # Unix time, as in TensorFlow's traces.
    self._step_stats = tf.RunMetadata().step_stats
    self._step_events: List[Dict[str, Any]] = []

  @property
  def traced_steps(self) -> FrozenSet[int]:
    """The global steps that were traced."""
    return frozenset(event['args']['global_step'] for event in self._step_events)

  def before_run(self, run_context: Any) -> Optional[tf.train.SessionRunArgs]:
    if not self._first <= self._monitor.local_step + 1 <= self._last:
      return None
    self._step_began = time.time()
    return _TRACE_ARGS

  def after_run(self, run_context: Any, run_values: Any) -> None:
    step = self._monitor.local_step
    if not self._first <= step <= self._last:
      return
    self._step_events.append({
        'name': 'step {}'.format(step), 'ph': 'X', 'pid': _STEPS_PID, 'tid': 0,
        'ts': 1e6 * self._step_began, 'dur': 1e6 * (time.time() - self._step_began),
        'args': {'global_step': step}})
    rows = {row.device: row for row in self._step_stats.dev_stats}
    for row in run_values.run_metadata.step_stats.dev_stats:  # One per device.
      if row.device in rows:
        rows[row.device].node_stats.extend(row.node_stats)
      else:
        self._step_stats.dev_stats.add().CopyFrom(row)
    if step == self._last:
      self._write()

  def end(self, session: tf.Session) -> None:
    # If training stops within the range, after_run has not written the file.
    if self._step_events and self._monitor.local_step < self._last:
      self._write()

  def _write(self) -> None:
    with self._times.record_pause('trace'):
      trace = json.loads(sessions.chrome_trace(self._step_stats))
      process_name = {'name': 'process_name', 'ph': 'M', 'pid': _STEPS_PID,
                      'args': {'name': 'Steps'}}
      trace['traceEvents'] += [process_name] + self._step_events
      storage.write_text(self._path, json.dumps(trace))
