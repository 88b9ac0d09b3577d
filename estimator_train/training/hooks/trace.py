"""The hook that writes a Chrome trace of the operations in the steps of `--trace_steps`."""

import json
import os
import time
from typing import Any, Dict, FrozenSet, List, Optional

import tensorflow.compat.v1 as tf

from estimator_train.reports.step_times import Pause
from estimator_train.system import atomic
from estimator_train.tf_patches import sessions
from estimator_train.training.hooks.steps import StepCounter

TRACE_FILE = 'trace.json'
_TRACE_ARGS = tf.train.SessionRunArgs(
    [], options=tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE))
# The process id of the row that shows the steps; the ids of TensorFlow's rows are smaller.
_STEPS_PID = 1000


class TraceSteps(tf.train.SessionRunHook):
  """Traces a range of steps, and writes the trace after the last of them.

  Open the file in chrome://tracing or Perfetto. Traced steps are slower than other steps.

  In an asynchronous cluster, `first` and `last` are compared with the global step at the start of
  the session plus the number of steps of this process, see StepCounter.step_of_process.

  Args:
    counter: the step counter.
    model_dir: the directory for `trace.json`.
    first: the first global step to trace.
    last: the last global step to trace.

  Attributes:
    pauses: a list of the one pause in which the file was written; empty until then.
  """

  def __init__(self, counter: StepCounter, model_dir: str, first: int, last: int) -> None:
    self._counter = counter
    self._path = os.path.join(model_dir, TRACE_FILE)
    self._first = first
    self._last = last
    self._step_began_at = 0.  # Unix time, as in TensorFlow's traces.
    self._step_began = 0.  # A time of time.perf_counter, which cannot be set.
    self._step_stats = tf.RunMetadata().step_stats
    self._step_events: List[Dict[str, Any]] = []
    self.pauses: List[Pause] = []

  @property
  def traced_steps(self) -> FrozenSet[int]:
    """The global steps that were traced."""
    return frozenset(event['args']['global_step'] for event in self._step_events)

  def before_run(self, run_context: Any) -> Optional[tf.train.SessionRunArgs]:
    if not self._first <= self._counter.step_of_process + 1 <= self._last:
      return None
    self._step_began_at, self._step_began = time.time(), time.perf_counter()
    return _TRACE_ARGS

  def after_run(self, run_context: Any, run_values: Any) -> None:
    step = self._counter.step_of_process
    if not self._first <= step <= self._last:
      return
    self._step_events.append({
        'name': 'step {}'.format(step), 'ph': 'X', 'pid': _STEPS_PID, 'tid': 0,
        'ts': 1e6 * self._step_began_at, 'dur': 1e6 * (time.perf_counter() - self._step_began),
        'args': {'global_step': step}})
    self._append_step_stats(run_values.run_metadata.step_stats)
    if step == self._last:
      self._write()

  def end(self, session: tf.Session) -> None:
    # If training stops within the range, after_run has not written the file.
    if self._step_events and self._counter.step_of_process < self._last:
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
    """Writes the trace file, and records the pause that this takes."""
    began = time.perf_counter()
    trace = json.loads(sessions.chrome_trace(self._step_stats))
    process_name = {'name': 'process_name', 'ph': 'M', 'pid': _STEPS_PID,
                    'args': {'name': 'Steps'}}
    trace['traceEvents'] += [process_name] + self._step_events
    atomic.write_text(self._path, json.dumps(trace))
    self.pauses.append(Pause('trace', began, time.perf_counter() - began))
