"""Times and traces steps, and measures how long each step waits for its input.

StepTimes stores the times of steps. In a run, the hook StepTimer measures them. In other programs,
the hook TimeHistory of time_history.py measures them.
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

# The minimum number of steps whose times are stored. A step takes 24 bytes, so the times of all
# steps of a week-long run could fill the memory.
_MIN_STORED_STEPS = 100000
# The types of the operation that gets the next batch from a tf.data pipeline on each replica.
_GET_NEXT_TYPES = ('IteratorGetNext', 'IteratorGetNextSync', 'IteratorGetNextAsOptional')
TRACE_FILE = 'trace.json'
_TRACING_RUN_ARGS = tf.train.SessionRunArgs(
    [], options=tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE))
# The trace shows the steps as a process with this id. TensorFlow's own process ids are smaller.
_STEPS_PROCESS_ID = 1000


class StepTimes:
  """Records when each recent step began and ended, and how long it waited for its batch.

  To keep the cost per step low, figures are computed from these times only after the run.

  Args:
    start_up: the timer of the phases `session`, `first_batch` and `first_step`.
    clock: returns the time in seconds.

  Attributes:
    start_times: for each step, the time on `clock` just before session.run.
    end_times: for each step, the time on `clock` just after session.run.
    input_wait_secs: for each step, the seconds from its start until its batch had arrived on all
      replicas; nan if this time was not measured.
  """

  def __init__(self, start_up: StartUpTimer,
               clock: Callable[[], float] = time.perf_counter) -> None:
    self.start_up, self.clock = start_up, clock
    self.start_times, self.end_times = array('d'), array('d')
    self.input_wait_secs = array('d')
    self.pauses: List[Pause] = []
    self._num_discarded = 0
    self._step_start_time = self._step_end_time = 0.

  @property
  def num_steps(self) -> int:
    """The number of steps, including those whose times are no longer stored."""
    return self._num_discarded + len(self.end_times)

  def start_step(self) -> None:
    """Must be called just before session.run."""
    if not self.start_times:
      self.start_up.end_phase('session')
    self._step_start_time = self.clock()

  def end_step(self) -> None:
    """Must be called just after session.run."""
    self._step_end_time = self.clock()

  def add_step(self, wait_secs: Any) -> None:
    """Adds the step that has ended. Must not be called for a step whose session.run has failed.

    Args:
      wait_secs: the values fetched by `make_run_args_for_waits`; None if nothing was fetched.
    """
    self.start_times.append(self._step_start_time)
    self.end_times.append(self._step_end_time)
    if isinstance(wait_secs, list):
      wait_secs = max(wait_secs, default=math.nan)
    self.input_wait_secs.append(math.nan if wait_secs is None else wait_secs)
    if len(self.end_times) == 1:
      self.start_up.end_first_step(self.input_wait_secs[0])
    if len(self.end_times) == 2 * _MIN_STORED_STEPS:
      self._num_discarded += _MIN_STORED_STEPS
      for times in (self.start_times, self.end_times, self.input_wait_secs):
        del times[:_MIN_STORED_STEPS]

  def remove_last_steps(self, count: int) -> None:
    """Removes the last steps, as if they had not been taken."""
    num_stored = len(self.end_times)
    num_remaining = max(0, num_stored - count)
    self._num_discarded -= count - (num_stored - num_remaining)
    for times in (self.start_times, self.end_times, self.input_wait_secs):
      del times[num_remaining:]

  @contextlib.contextmanager
  def record_pause(self, kind: str) -> Iterator[None]:
    """Records the time of a `with` block between two steps as a pause."""
    start_time = self.clock()
    yield
    self.pauses.append(Pause(kind, start_time, self.clock() - start_time))

  def to_run_times(self, global_step: int, loss: Optional[float] = None,
                   traced_steps: FrozenSet[int] = frozenset(),
                   local_step: Optional[int] = None) -> RunTimes:
    return RunTimes(self.start_times, self.end_times, self.input_wait_secs,
                    dict(self.start_up.secs_by_phase), global_step, loss, self.pauses,
                    traced_steps, self._num_discarded, local_step)


class StepTimer(tf.train.SessionRunHook):
  """Times the steps of a run.

  This hook must be the first one in the list of hooks. Estimator calls the hooks in their order, so
  what the other hooks do, such as saving a checkpoint, counts as time between steps.
  """

  def __init__(self, times: StepTimes) -> None:
    self._times = times
    self._run_args: Optional[tf.train.SessionRunArgs] = None

  def begin(self) -> None:
    self._times.start_up.end_phase('graph')
    self._run_args = make_run_args_for_waits(
        add_wait_measurements(tf.get_default_graph()).values())

  def before_run(self, run_context: Any) -> Optional[tf.train.SessionRunArgs]:
    self._times.start_step()
    return self._run_args

  def after_run(self, run_context: Any, run_values: Any) -> None:
    self._times.end_step()
    self._times.add_step(run_values.results)


def make_run_args_for_waits(
    wait_tensors: Iterable[tf.Tensor]) -> Optional[tf.train.SessionRunArgs]:
  """Returns arguments that fetch the tensors; None if there are no tensors."""
  tensors = list(wait_tensors)
  # Fetching a single tensor takes less time than fetching a list with one tensor.
  return tf.train.SessionRunArgs(tensors if len(tensors) > 1 else tensors[0]) if tensors else None


def add_wait_measurements(graph: tf.Graph) -> Dict[tf.Operation, tf.Tensor]:
  """Adds operations that measure the time from the start of a step until a batch has arrived.

  On each replica, two operations read the same clock. The first one runs at the start of the step,
  because it has no inputs. The second one runs after the batch has arrived. The model waits for the
  second one. Otherwise, a single thread could run the model first, and the time of the model would
  count as waiting. Operations that do not need the batch, such as reads of variables, may run
  between the two readings, but take only microseconds.

  Returns:
    A dict from each operation that gets a batch to its waiting time in seconds, a float64 scalar.
    Operations in a condition or a loop are left out, because a step may not run them.
  """
  with graph.as_default():
    return {operation: _measure_wait(operation) for operation in graph.get_operations()
            if operation.type in _GET_NEXT_TYPES
            and not graphs.is_in_control_flow(operation)}


def _measure_wait(get_next: tf.Operation) -> tf.Tensor:
  """Returns the tensor of the seconds from the start of a step until `get_next` has a batch."""
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
  """Traces a range of steps, and writes the trace to `trace.json` after the last of them.

  chrome://tracing and Perfetto open this file. Traced steps are slower than other steps.

  Args:
    times: records the pause in which the file is written.
    first_step, last_step: values of StepMonitor.local_step.
  """

  def __init__(self, monitor: StepMonitor, times: StepTimes, model_dir: str, first_step: int,
               last_step: int) -> None:
    self._monitor, self._times = monitor, times
    self._path = os.path.join(model_dir, TRACE_FILE)
    self._first_step, self._last_step = first_step, last_step
    self._step_start_time = 0.  # Unix time, as in TensorFlow's traces.
    self._merged_stats = tf.RunMetadata().step_stats
    self._trace_events: List[Dict[str, Any]] = []

  @property
  def traced_steps(self) -> FrozenSet[int]:
    """The values of StepMonitor.local_step of the traced steps."""
    return frozenset(event['args']['global_step'] for event in self._trace_events)

  def before_run(self, run_context: Any) -> Optional[tf.train.SessionRunArgs]:
    if not self._first_step <= self._monitor.local_step + 1 <= self._last_step:
      return None
    self._step_start_time = time.time()
    return _TRACING_RUN_ARGS

  def after_run(self, run_context: Any, run_values: Any) -> None:
    step = self._monitor.local_step
    if not self._first_step <= step <= self._last_step:
      return
    self._trace_events.append({
        'name': 'step {}'.format(step), 'ph': 'X', 'pid': _STEPS_PROCESS_ID, 'tid': 0,
        'ts': 1e6 * self._step_start_time, 'dur': 1e6 * (time.time() - self._step_start_time),
        'args': {'global_step': step}})
    merged_by_device = {stats.device: stats for stats in self._merged_stats.dev_stats}
    for stats in run_values.run_metadata.step_stats.dev_stats:
      if stats.device in merged_by_device:
        merged_by_device[stats.device].node_stats.extend(stats.node_stats)
      else:
        self._merged_stats.dev_stats.add().CopyFrom(stats)
    if step == self._last_step:
      self._write()

  def end(self, session: tf.Session) -> None:
    # If the training has stopped within the range, after_run has not written the file.
    if self._trace_events and self._monitor.local_step < self._last_step:
      self._write()

  def _write(self) -> None:
    with self._times.record_pause('trace'):
      trace = json.loads(sessions.chrome_trace(self._merged_stats))
      process_name = {'name': 'process_name', 'ph': 'M', 'pid': _STEPS_PROCESS_ID,
                      'args': {'name': 'Steps'}}
      trace['traceEvents'] += [process_name] + self._trace_events
      storage.write_text(self._path, json.dumps(trace))
