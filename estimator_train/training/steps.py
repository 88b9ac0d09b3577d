"""Hooks that count, time and trace the steps, and fetch the loss and accuracy of each step."""

import contextlib
import json
import math
import os
import time
from array import array
from typing import Any, Callable, Dict, FrozenSet, Iterator, List, Optional, Sequence

import tensorflow.compat.v1 as tf

from estimator_train.model import observation
from estimator_train.reports.step_times import Pause
from estimator_train.system import storage
from estimator_train.system.start_up import StartUpTimer
from estimator_train.tf_patches import operations, sessions

_NUM_BEFORE_THINNING = 10000  # The first 10,000 multiples are all logged, see is_logged.
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


class StepMonitor(tf.train.SessionRunHook):
  """Counts the steps, and fetches the loss and the accuracy of each step, for the later hooks.

  The counts start at the step of the checkpoint. The accuracy covers the replicas of this process
  only. An accuracy over all workers would take a collective operation, which every worker would
  have to run in every step.

  Args:
    is_synchronous: whether this process takes part in every global step. Otherwise other workers
      also increment the global step, and `global_step` is exact only after `update_global_step`.

  Attributes:
    start_step: the global step at which the session began.
    local_step: `start_step` plus the number of steps that this process has completed since
      then. In synchronous training, it is the global step.
    global_step: the last known value of the global step, at least `local_step`.
    loss: the loss of the last step, the mean over the global batch.
    accuracy: the accuracy of the last step; nan if the data has no classes.
  """

  def __init__(self, is_synchronous: bool = True) -> None:
    self._is_synchronous = is_synchronous
    self.start_step = self.local_step = self.global_step = 0
    self.loss = self.accuracy = math.nan

  def begin(self) -> None:
    # Every step fetches the same tensors: TensorFlow prunes the graph again for each new set of
    # fetches.
    self._run_args = tf.train.SessionRunArgs([
        observation.training_loss(), observation.accuracy()])

  def after_create_session(self, session: tf.Session, coord: Any) -> None:
    self.start_step = self.local_step = self.global_step = sessions.read_global_step(session)

  def before_run(self, run_context: Any) -> tf.train.SessionRunArgs:
    return self._run_args

  def after_run(self, run_context: Any, run_values: Any) -> None:
    self.local_step += 1
    self.global_step += 1
    self.loss, self.accuracy = run_values.results

  def update_global_step(self, session: tf.Session) -> None:
    """Reads `global_step` from the session if other workers increment the global step too."""
    if not self._is_synchronous:
      self.global_step = max(sessions.read_global_step(session), self.global_step)


class MeanOfSteps:
  """The mean loss and accuracy of steps, without the steps whose loss is not finite."""

  def __init__(self) -> None:
    self._num_steps = 0
    self._loss_sum = self._accuracy_sum = 0.

  def add(self, monitor: StepMonitor) -> None:
    """Adds the last step."""
    if math.isfinite(monitor.loss):
      self._num_steps += 1
      self._loss_sum += monitor.loss
      self._accuracy_sum += monitor.accuracy

  @property
  def loss(self) -> float:
    """The mean loss; nan if no loss was finite."""
    return self._loss_sum / self._num_steps if self._num_steps else math.nan

  @property
  def accuracy(self) -> float:
    """The mean accuracy; nan if it is unknown."""
    return self._accuracy_sum / self._num_steps if self._num_steps else math.nan


def is_logged(step: int, every: int = 1, num_before_thinning: int = _NUM_BEFORE_THINNING) -> bool:
  """Returns whether a step is logged.

  The first `num_before_thinning` multiples of `every` are all logged, and then every second one.
  The interval doubles each time their number does: of a million, 43,000 are logged by default. All
  workers and a resumed run log the same steps, because earlier calls do not matter.

  Args:
    step: the global step, or the number of an epoch.
    every: for steps, `--log_every_steps`; for epochs, 1.
    num_before_thinning: the number of first candidates that are all logged.
  """
  candidate, remainder = divmod(step, every)
  return not remainder and candidate % (1 << (candidate // num_before_thinning).bit_length()) == 0


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
    start_up, clock: see the arguments.
    wait_fetches: the return value of make_wait_fetches for the next step.
    began: for each step, the time on `clock` just before session.run, in seconds.
    ended: for each step, the time on `clock` just after session.run, in seconds.
    waited: for each step, the seconds from `began` until the batch had arrived on all replicas; nan
      if this time was not measured.
    pauses: the pauses between steps that other hooks have recorded.
    discarded_steps: the number of earlier steps whose times were discarded to save memory. The
      times of at least the last 100,000 steps are kept.
  """

  def __init__(self, start_up: StartUpTimer,
               clock: Callable[[], float] = time.perf_counter) -> None:
    self.began = array('d')
    self.ended = array('d')
    self.waited = array('d')
    self.discarded_steps = 0
    self.pauses: List[Pause] = []
    self.start_up = start_up
    self.clock = clock
    self._step_began = 0.
    self.wait_fetches: Optional[tf.train.SessionRunArgs] = None

  def begin(self) -> None:
    self.start_up.end_phase('graph')
    waits = add_wait_measurements(tf.get_default_graph())
    self.wait_fetches = make_wait_fetches(list(waits.values()))

  def before_run(self, run_context: Any) -> Optional[tf.train.SessionRunArgs]:
    if not self.began:
      self.start_up.end_phase('session')
    self._step_began = self.clock()
    return self.wait_fetches

  def after_run(self, run_context: Any, run_values: Any) -> None:
    self.ended.append(self.clock())
    # before_run does not append this time, because a session.run that fails is not a step.
    self.began.append(self._step_began)
    waits = math.nan if self.wait_fetches is None else run_values.results
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

  @contextlib.contextmanager
  def record_pause(self, kind: str) -> Iterator[None]:
    """Records the time of a `with` block between two steps as a pause."""
    began = self.clock()
    yield
    self.pauses.append(Pause(kind, began, self.clock() - began))

  def remove_last_steps(self, count: int) -> None:
    """Removes the last steps, as if they had not been taken."""
    num_kept = max(0, len(self.ended) - count)
    self.discarded_steps -= count - (len(self.ended) - num_kept)
    for times in (self.began, self.ended, self.waited):
      del times[num_kept:]


def make_wait_fetches(waits: Sequence[tf.Tensor]) -> Optional[tf.train.SessionRunArgs]:
  """Returns the SessionRunArgs that fetch the waits of a step; None if there are none.

  A single tensor takes less time than a list with one tensor.
  """
  return tf.train.SessionRunArgs(waits if len(waits) > 1 else waits[0]) if waits else None


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
            and not operations.is_in_control_flow(operation)}


def _measure_wait(get_next: tf.Operation) -> tf.Tensor:
  """Returns the seconds from the start of a step until the operation `get_next` has a batch."""
  consumers = [consumer for output in get_next.outputs for consumer in output.consumers()]
  device = tf.DeviceSpec.from_string(get_next.device)
  with tf.control_dependencies(None), tf.device(
      device.replace(device_type='CPU', device_index=0).to_string()):
    start_time = tf.timestamp()
    operations.run_before(start_time.op, [get_next])
    with tf.control_dependencies([get_next]):
      arrival_time = tf.timestamp()
    wait_secs = tf.maximum(arrival_time - start_time, 0)  # The clock may be set back.
  operations.run_before(arrival_time.op, consumers)
  return wait_secs


class TraceSteps(tf.train.SessionRunHook):
  """Traces a range of steps, and writes the trace after the last of them.

  Open the file in chrome://tracing or Perfetto. Traced steps are slower than other steps.

  In an asynchronous cluster, `first` and `last` are compared with the global step at the start of
  the session plus the number of steps of this process, see StepMonitor.local_step.

  Args:
    monitor: counts the steps.
    timer: records the pause in which the file is written.
    model_dir: the directory for `trace.json`.
    first: the first global step to trace.
    last: the last global step to trace.
  """

  def __init__(self, monitor: StepMonitor, timer: StepTimer, model_dir: str, first: int,
               last: int) -> None:
    self._monitor, self._timer = monitor, timer
    self._path = os.path.join(model_dir, TRACE_FILE)
    self._first = first
    self._last = last
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
    self._append_step_stats(run_values.run_metadata.step_stats)
    if step == self._last:
      self._write()

  def end(self, session: tf.Session) -> None:
    # If training stops within the range, after_run has not written the file.
    if self._step_events and self._monitor.local_step < self._last:
      self._write()

  def _append_step_stats(self, step_stats: Any) -> None:
    """Adds the operations of a step to the trace, which has one row per device."""
    rows = {row.device: row for row in self._step_stats.dev_stats}
    for row in step_stats.dev_stats:
      if row.device in rows:
        rows[row.device].node_stats.extend(row.node_stats)
      else:
        self._step_stats.dev_stats.add().CopyFrom(row)

  def _write(self) -> None:
    with self._timer.record_pause('trace'):
      trace = json.loads(sessions.chrome_trace(self._step_stats))
      process_name = {'name': 'process_name', 'ph': 'M', 'pid': _STEPS_PID,
                      'args': {'name': 'Steps'}}
      trace['traceEvents'] += [process_name] + self._step_events
      storage.write_text(self._path, json.dumps(trace))
