"""The hook for `--trace_steps`, which writes the operations of some steps as a Chrome trace."""

import json
import os
import time
from typing import Any, Dict, FrozenSet, List, Optional

import tensorflow.compat.v1 as tf

from estimator_train.files import atomic
from estimator_train.reports.step_times import Pause
from estimator_train.tf_patches import trace as trace_patches
from estimator_train.training.hooks.step_counter import StepCounter

TRACE_FILE = 'trace.json'
_TRACE_ARGS = tf.train.SessionRunArgs(
    [], options=tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE))
# The process id of the row that shows the steps. TensorFlow numbers its own rows from 0.
_STEPS_PID = 1000


class TraceSteps(tf.train.SessionRunHook):
  """Traces a range of steps, and writes the trace after the last of them.

  Open the file in chrome://tracing or Perfetto. Traced steps are slower than others.

  Args:
    counter: the step counter.
    model_dir: the directory for `trace.json`.
    first: the first global step to trace.
    last: the last global step to trace.

  Attributes:
    pauses: the pause during which the file was written.
  """

  def __init__(self, counter: StepCounter, model_dir: str, first: int, last: int) -> None:
    self._counter = counter
    self._path = os.path.join(model_dir, TRACE_FILE)
    self._first = first
    self._last = last
    self._began = 0.
    self._operations = tf.RunMetadata().step_stats
    self._steps: List[Dict[str, Any]] = []
    self.pauses: List[Pause] = []

  @property
  def traced_steps(self) -> FrozenSet[int]:
    """Returns the global steps that were traced."""
    return frozenset(step['args']['global_step'] for step in self._steps)

  def before_run(self, run_context: Any) -> Optional[tf.train.SessionRunArgs]:
    if not self._first <= self._counter.step + 1 <= self._last:
      return None
    self._began = time.time()
    return _TRACE_ARGS

  def after_run(self, run_context: Any, run_values: Any) -> None:
    step = self._counter.step
    if not self._first <= step <= self._last:
      return
    self._steps.append({
        'name': 'step {}'.format(step), 'ph': 'X', 'pid': _STEPS_PID, 'tid': 0,
        'ts': 1e6 * self._began, 'dur': 1e6 * (time.time() - self._began),
        'args': {'global_step': step}})
    self._merge(run_values.run_metadata.step_stats)
    if step == self._last:
      self._write()

  def end(self, session: tf.Session) -> None:
    if self._steps and self._counter.step < self._last:  # Training stopped within the range.
      self._write()

  def _merge(self, operations: Any) -> None:
    """Appends the operations to those of the earlier steps, per device."""
    rows = {row.device: row for row in self._operations.dev_stats}
    for row in operations.dev_stats:
      if row.device in rows:
        rows[row.device].node_stats.extend(row.node_stats)
      else:
        self._operations.dev_stats.add().CopyFrom(row)

  def _write(self) -> None:
    began = time.perf_counter()
    trace = json.loads(trace_patches.chrome_trace(self._operations))
    process_name = {'name': 'process_name', 'ph': 'M', 'pid': _STEPS_PID,
                    'args': {'name': 'Steps'}}
    trace['traceEvents'] += [process_name] + self._steps
    atomic.write_text(self._path, json.dumps(trace))
    self.pauses.append(Pause('trace', began, time.perf_counter() - began))
