"""`TimeHistory`: the hook of the library that reports the throughput of any Estimator."""

import json
import logging
import numbers
import os
import re
import sys
import time
from array import array
from typing import Any, Dict, List, Optional, Tuple

import tensorflow.compat.v1 as tf

from estimator_train.errors import InvalidValue
from estimator_train.reports import learning_curves, page, throughput
from estimator_train.reports.step_times import Pause, Timing
from estimator_train.run_dir.disk_errors import error_reason
from estimator_train.system.start_up import StartUpTimer
from estimator_train.tf_patches import sessions
from estimator_train.training.hooks import input_wait
from estimator_train.training.hooks.record_steps import RecordSteps

_LOG = logging.getLogger('estimator_train')
_WORKER_TYPES = ('chief', 'master', 'worker')


class TimeHistory(RecordSteps):
  """A hook that measures the throughput of training with any Estimator, and can write a report.

  Add this hook to the `hooks` of `Estimator.train` or of a `TrainSpec`. When training starts again,
  the measurement starts again. The wait for input is measured if the `input_fn` returns a
  tf.data.Dataset; otherwise the wait is not observed. The time of a checkpoint, with the evaluation
  that train_and_evaluate runs after it, is a pause between two steps. So is the recovery of a lost
  session, whose repeated steps count once. The hook takes less than 50 microseconds per step.

  Args:
    batch_size: the number of examples per step, over all replicas of all workers; None: unknown,
      so that the report has no rates of examples.
    report_dir: the folder to which throughput.json and the report page are written when training
      ends; None: nothing is written. In a cluster only the chief writes.
    warmup_steps: the number of steps at the beginning that are left out of the report.

  Raises:
    UserError: an argument is invalid. The error is a ValueError, too.
  """

  def __init__(self, batch_size: Optional[int] = None, report_dir: Optional[str] = None,
               warmup_steps: int = 10) -> None:
    _check_integer('warmup_steps', warmup_steps, 0)
    if batch_size is not None:
      _check_integer('batch_size', batch_size, 1)
    super().__init__(StartUpTimer())
    self._batch_size = batch_size
    self._report_dir = None if report_dir is None else os.path.expanduser(report_dir)
    self._warmup_steps = warmup_steps
    self._first_global_step = 0
    self._global_step: Optional[int] = None
    self._conditions: Dict[str, Any] = {}
    self._timer = sessions.SessionRunTimer()
    self._is_step_recorded = False
    self._has_recovered = False
    self._pauses: List[Pause] = []

  @property
  def times(self) -> List[float]:
    """The seconds of each session.run. A long training keeps at least the last 100,000 steps."""
    return [ended - began for began, ended in zip(self.began, self.ended)]

  def begin(self) -> None:
    if self.ended:
      self.began, self.ended, self.waited = array('d'), array('d'), array('d')
      self.discarded_steps = 0
    self._pauses = []
    self._has_recovered = False
    self._timer.detach()  # An earlier training may have ended with an exception, without `end`.
    super().begin()
    if not _is_first_training():
      self.start_up.restart()
    self._global_step = None
    self._global_step_tensor = tf.train.get_global_step()
    self._conditions = _find_conditions(self._batch_size)

  def add_probe(self) -> None:
    self._waits = input_wait.add_probes(tf.get_default_graph())
    self._args_by_fetches: Dict[Any, Optional[tf.train.SessionRunArgs]] = {}

  def _find_run_args(self, graph: tf.Graph, fetches: Any) -> Optional[tf.train.SessionRunArgs]:
    """Returns the waits for the batches that a step with these fetches uses; None if it uses none.

    Another iterator in the graph, for example of validation data, must not advance.
    """
    key = tuple(tf.nest.flatten(fetches))
    if key not in self._args_by_fetches:
      elements = [graph.as_graph_element(fetch) for fetch in key]
      used = input_wait.find_ancestors(getattr(element, 'op', element) for element in elements)
      waits = [wait for get_next, wait in self._waits.items() if get_next in used]
      self._args_by_fetches[key] = tf.train.SessionRunArgs(
          waits if len(waits) > 1 else waits[0]) if waits else None
    return self._args_by_fetches[key]

  def after_create_session(self, session: tf.Session, coord: Any) -> None:
    if self._timer.session not in (None, session):
      self._has_recovered = True
    self._timer.attach(session)
    self._remove_repeated_steps(session)
    if not self._conditions['devices']:
      names = [_short_name(device.name) for device in session.list_devices()]
      gpus = [name for name in names if name.startswith('/gpu')]
      self._conditions['devices'] = gpus[:1] or ['/cpu:0']

  def _remove_repeated_steps(self, session: tf.Session) -> None:
    """Removes the steps that a new session repeats, because it starts from the last checkpoint."""
    if self._global_step_tensor is not None:
      global_step = int(session.run(self._global_step_tensor))
      if self._has_recovered:
        steps_run = self.discarded_steps + len(self.ended)
        repeated = self._first_global_step + steps_run - global_step
        self.remove_last_steps(min(max(repeated, 0), steps_run))
      self._first_global_step = global_step - self.discarded_steps - len(self.ended)

  def before_run(self, run_context: Any) -> Optional[tf.train.SessionRunArgs]:
    if self._has_recovered or self._timer.has_saved:
      self._record_pause('recovery' if self._has_recovered else 'checkpoint')
    self._is_step_recorded = False
    self._timer.time_next_run()
    self.run_args = self._find_run_args(run_context.session.graph,
                                        run_context.original_args.fetches)
    return super().before_run(run_context)

  def _record_pause(self, kind: str) -> None:
    """Records the time since the last step as a pause, which replaces later pauses."""
    if self.ended:
      while self._pauses and self._pauses[-1].start_time >= self.ended[-1]:
        self._pauses.pop()
      self._pauses.append(Pause(kind, self.ended[-1], time.perf_counter() - self.ended[-1]))
    self._has_recovered = False

  def after_run(self, run_context: Any, run_values: Any) -> None:
    if self._is_step_recorded:
      return  # This object is in the list of hooks twice.
    self._is_step_recorded = True
    super().after_run(run_context, run_values)
    # The times of the timer exclude other hooks, which may run between session.run and this hook.
    self.began[-1], self.ended[-1] = self._timer.began, self._timer.ended

  def end(self, session: tf.Session) -> None:
    self._timer.detach()
    if self._global_step_tensor is not None:
      self._global_step = int(session.run(self._global_step_tensor))
    if self._report_dir is not None and self.ended and _is_chief():
      self._write_report(self._report_dir)

  def report(self) -> Dict[str, Any]:
    """Returns the content of throughput.json for the last training.

    A value that was not observed is None. Before the first step, the dict is empty.
    """
    return self._make_report().figures if self.ended else {}

  def _make_report(self) -> throughput.ThroughputReport:
    steps_run = self.discarded_steps + len(self.ended)
    timing = Timing(self.began, self.ended, self.waited, dict(self.start_up.secs),
                    self._global_step or steps_run, None, self._pauses,
                    discarded_steps=self.discarded_steps)
    report = throughput.make_throughput_report(timing, self._conditions, self._warmup_steps)
    report.figures['global_step'] = self._global_step
    return report

  def _write_report(self, folder: str) -> None:
    """Writes the report; any error is only logged, because training has succeeded."""
    try:
      os.makedirs(folder, exist_ok=True)
      self._make_report().write(folder)
      learning_curves.write_learning_curves(folder)
      page.write_page(folder)
    except Exception as error:
      _LOG.warning('the report in %s could not be written: %s: %s', folder,
                   type(error).__name__, error_reason(error))


def _is_first_training() -> bool:
  """Returns whether the start of the process is also the start of its first training.

  This is not the case if the interpreter waits for input between commands (`sys.ps1`, which IPython
  and notebooks set, too), or if the process has trained before.
  """
  return not hasattr(sys, 'ps1') and not sessions.has_trained()


def _check_integer(name: str, value: int, least: int) -> None:
  if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
    raise InvalidValue('{} must be an integer of at least {}'.format(name, least),
                       '{}={!r}'.format(name, value), 'give an integer')


def _find_conditions(batch_size: Optional[int]) -> Dict[str, Any]:
  """Returns the conditions of the measurement that are known when the graph is complete."""
  strategy = tf.distribute.get_strategy() if tf.distribute.has_strategy() else None
  num_replicas = 1 if strategy is None else strategy.num_replicas_in_sync
  return {
      'global_batch_size': batch_size,
      'per_replica_batch_size': None if batch_size is None else batch_size / num_replicas,
      'num_replicas': num_replicas,
      'num_workers': _num_workers(),
      'examples_per_step': batch_size,
      'dataset': None,
      'model': None,
      'distribution_strategy': _strategy_name(strategy),
      'devices': [] if strategy is None else [
          _short_name(name) for name in strategy.extended.worker_devices],
      'tensorflow_version': tf.version.VERSION,
  }


def _strategy_name(strategy: Optional[tf.distribute.Strategy]) -> Optional[str]:
  """Returns the value of `--distribution_strategy` for a strategy."""
  if strategy is None:
    return None
  words = re.sub(r'Strategy(V\d)?$', '', type(strategy).__name__)
  name = re.sub(r'(?<!^)(?=[A-Z])', '_', words).lower()
  return 'multi_worker_mirrored' if name == 'collective_all_reduce' else name


def _short_name(device: str) -> str:
  """Returns the name of a device in its process, such as `/gpu:0`."""
  spec = tf.DeviceSpec.from_string(device)
  return '/{}:{}'.format((spec.device_type or 'cpu').lower(), spec.device_index or 0)


def _cluster_and_task() -> Tuple[Dict[str, Any], Dict[str, Any]]:
  """Returns the tasks by type and the task of this process from TF_CONFIG; empty if malformed.

  cluster.tf_config is stricter than TensorFlow. A script with a cluster that TensorFlow accepts, or
  whose Estimator was made before TF_CONFIG was set, must not fail.
  """
  try:
    config = json.loads(os.environ.get('TF_CONFIG') or '{}')
  except (ValueError, RecursionError):
    config = {}
  fields = [config.get(name) if isinstance(config, dict) else None for name in ('cluster', 'task')]
  cluster, task = (field if isinstance(field, dict) else {} for field in fields)
  return {name: tasks for name, tasks in cluster.items() if isinstance(tasks, (list, dict))}, task


def _num_workers() -> int:
  cluster, _ = _cluster_and_task()
  return max(1, sum(len(cluster.get(task_type, ())) for task_type in _WORKER_TYPES))


def _is_chief() -> bool:
  """Returns whether this process is the chief of the cluster, or trains without a cluster."""
  cluster, task = _cluster_and_task()
  chief = next((name for name in _WORKER_TYPES if cluster.get(name)), None)
  return chief is None or (task.get('type'), str(task.get('index', 0))) == (chief, '0')
