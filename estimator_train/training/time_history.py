"""`TimeHistory`, the public hook that reports the throughput of any Estimator."""

import logging
import math
import numbers
import os
import re
import sys
from typing import Any, Dict, List, Optional, Tuple

import tensorflow.compat.v1 as tf

from estimator_train.errors import InvalidValue
from estimator_train.reports import learning_curves, page, throughput
from estimator_train.reports.step_times import Pause
from estimator_train.run_dir.resource_errors import error_reason
from estimator_train.system.start_up import StartUpTimer
from estimator_train.tf_patches import sessions
from estimator_train.tf_patches.graphs import find_ancestors
from estimator_train.training.timing import (
  StepTimes,
  add_wait_measurements,
  make_run_args_for_waits,
)

_LOG = logging.getLogger('estimator_train')
_WORKER_TYPES = ('chief', 'master', 'worker')


class TimeHistory(tf.train.SessionRunHook):
  """A hook that measures the throughput of training with any Estimator, and can write a report.

  Add this hook to the `hooks` of `Estimator.train` or of a `TrainSpec`. Each training starts a new
  measurement. The wait for input is measured only if the `input_fn` returns a tf.data.Dataset. A
  checkpoint, with the evaluation that train_and_evaluate runs after it, is a pause between two
  steps. The recovery of a lost session is also a pause, and steps that are repeated after it count
  once. The hook takes less than 50 microseconds per step.

  Args:
    batch_size: the number of examples per step, over all replicas of all workers. If it is None,
      the report has no rates of examples.
    report_dir: the folder to which throughput.json and the report page are written when training
      ends; None to write nothing. In a cluster, only the chief writes.
    warmup_steps: the number of steps at the beginning that the report leaves out.

  Raises:
    UserError: an argument is invalid. The error is also a ValueError.
  """

  def __init__(self, batch_size: Optional[int] = None, report_dir: Optional[str] = None,
               warmup_steps: int = 10) -> None:
    _check_integer('warmup_steps', warmup_steps, 0)
    if batch_size is not None:
      _check_integer('batch_size', batch_size, 1)
    self._batch_size = batch_size
    self._report_dir = None if report_dir is None else os.path.expanduser(report_dir)
    self._warmup_steps = warmup_steps
    self._start_up = StartUpTimer()
    self._make_recorders()
    self._conditions: Dict[str, Any] = {}
    self._global_step: Optional[int] = None

  def _make_recorders(self, global_step_tensor: Optional[tf.Tensor] = None) -> None:
    self._times = StepTimes(self._start_up)
    self._session_tracker = _SessionTracker(self._times, global_step_tensor)
    self._loss_curve = learning_curves.LossCurve()

  @property
  def times(self) -> List[float]:
    """The seconds of each session.run; in a long training, of at least the last 100,000."""
    return [end - start for start, end in zip(self._times.start_times, self._times.end_times)]

  def begin(self) -> None:
    self._start_up.end_phase('graph')
    # An earlier training may have ended without a call of `end`.
    self._session_tracker.observer.detach()
    self._wait_measurements = _WaitMeasurements(tf.get_default_graph())
    if not _can_time_from_process_start():
      self._start_up.restart()
    self._make_recorders(tf.train.get_global_step())
    self._conditions = _find_conditions(self._batch_size)
    self._global_step = None
    self._loss = (tf.get_collection(tf.GraphKeys.LOSSES) or [None])[-1]

  def after_create_session(self, session: tf.Session, coord: Any) -> None:
    self._session_tracker.track(session)
    if not self._conditions['devices']:
      names = [_short_name(device.name) for device in session.list_devices()]
      gpus = [name for name in names if name.startswith('/gpu')]
      self._conditions['devices'] = gpus[:1] or ['/cpu:0']

  def before_run(self, run_context: Any) -> Optional[tf.train.SessionRunArgs]:
    self._session_tracker.expect_step()
    fetches = run_context.original_args.fetches
    run_args = self._wait_measurements.make_run_args(run_context.session.graph, fetches)
    # Every step of an Estimator computes the loss, but a step of another session may not.
    self._fetches_loss = self._report_dir is not None and self._loss is not None and any(
        fetch is self._loss for fetch in tf.nest.flatten(fetches))
    if self._fetches_loss:
      return tf.train.SessionRunArgs((self._loss, [] if run_args is None else run_args.fetches))
    return run_args

  def after_run(self, run_context: Any, run_values: Any) -> None:
    loss, wait_secs = run_values.results if self._fetches_loss else (math.nan, run_values.results)
    self._times.add_step(wait_secs)
    self._loss_curve.add(self._session_tracker.last_step, loss)

  def end(self, session: tf.Session) -> None:
    self._session_tracker.observer.detach()
    self._global_step = self._session_tracker.read_global_step(session)
    self._conditions.update(throughput.read_end_time_and_duration(self._start_up))
    if self._report_dir is not None and self._times.end_times and _is_chief():
      self._write_report(self._report_dir)

  def report(self) -> Dict[str, Any]:
    """Returns the content of throughput.json for the last training; {} before the first step.

    A value that was not observed is None.
    """
    return self._make_report().figures if self._times.end_times else {}

  def _make_report(self) -> throughput.ThroughputReport:
    report = throughput.make_throughput_report(
        self._times.to_run_times(self._global_step or self._times.num_steps), self._conditions,
        self._warmup_steps)
    report.figures['global_step'] = self._global_step
    return report

  def _write_report(self, folder: str) -> None:
    """Writes the report, and only logs an error, because the training has succeeded."""
    try:
      os.makedirs(folder, exist_ok=True)
      self._make_report().write(folder)
      learning_curves.write_learning_curves(folder, self._loss_curve.points)
      page.write_page(folder)
    except Exception as error:
      _LOG.warning('the report in %s could not be written: %s: %s', folder,
                   type(error).__name__, error_reason(error))


class _WaitMeasurements:
  """The tensors that measure how long a step waits for a batch of each tf.data iterator."""

  def __init__(self, graph: tf.Graph) -> None:
    self._wait_tensors = add_wait_measurements(graph)
    self._run_args_by_fetches: Dict[Any, Optional[tf.train.SessionRunArgs]] = {}

  def make_run_args(self, graph: tf.Graph, fetches: Any) -> Optional[tf.train.SessionRunArgs]:
    """Returns arguments that fetch the waits of a step with these fetches; None if it has none.

    The waits of iterators that the step does not use, for example of validation data, are left out,
    because fetching the wait of an iterator advances the iterator.
    """
    key = tuple(tf.nest.flatten(fetches))
    if key not in self._run_args_by_fetches:
      elements = [graph.as_graph_element(fetch) for fetch in key]
      used = find_ancestors(getattr(element, 'op', element) for element in elements)
      self._run_args_by_fetches[key] = make_run_args_for_waits(
          wait for get_next, wait in self._wait_tensors.items() if get_next in used)
    return self._run_args_by_fetches[key]


class _SessionTracker:
  """Tracks the sessions of a training: their global steps, pauses, and repeated steps.

  Args:
    times: the steps that a recovered session repeats are removed from it.
    global_step_tensor: None if the graph has no global step.

  Attributes:
    observer: observes when the steps of the current session begin and end.
  """

  def __init__(self, times: StepTimes, global_step_tensor: Optional[tf.Tensor]) -> None:
    self._times, self._global_step_tensor = times, global_step_tensor
    self._global_step_offset = 0
    self._has_recovered = False
    # The methods of this hook cannot time session.run, because other hooks run in between.
    self.observer = sessions.StepObserver(times.start_step, times.end_step)

  def track(self, session: tf.Session) -> None:
    """Tracks a new session, which may replace a lost one."""
    if self.observer.session not in (None, session):
      self._has_recovered = True
    self.observer.attach(session)
    global_step = self.read_global_step(session)
    if global_step is not None:
      if self._has_recovered:  # The session starts from the last checkpoint.
        num_repeated = self.last_step - global_step
        self._times.remove_last_steps(min(max(num_repeated, 0), self._times.num_steps))
      self._global_step_offset = global_step - self._times.num_steps

  def expect_step(self) -> None:
    """Records the pause since the last step, if a checkpoint was saved or the session recovered.

    This pause replaces the pauses that it contains.
    """
    times = self._times
    if times.end_times and (self._has_recovered or self.observer.has_saved):
      last_end_time = times.end_times[-1]
      while times.pauses and times.pauses[-1].start_time >= last_end_time:
        times.pauses.pop()
      times.pauses.append(Pause('recovery' if self._has_recovered else 'checkpoint',
                                last_end_time, times.clock() - last_end_time))
    self._has_recovered = False
    self.observer.expect_step()

  @property
  def last_step(self) -> int:
    """The global step of the last step; the number of steps if the graph has no global step."""
    return self._global_step_offset + self._times.num_steps

  def read_global_step(self, session: tf.Session) -> Optional[int]:
    if self._global_step_tensor is None:
      return None
    return int(session.run(self._global_step_tensor))


def _can_time_from_process_start() -> bool:
  """Returns whether the start-up can be timed from the start of the process.

  It cannot if the interpreter is interactive, because it then waits for input between commands, or
  if the process has trained before. IPython and notebooks also set `sys.ps1`.
  """
  return not hasattr(sys, 'ps1') and not sessions.may_have_trained()


def _check_integer(name: str, value: int, minimum: int) -> None:
  if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < minimum:
    raise InvalidValue('{} must be an integer of at least {}'.format(name, minimum),
                       '{}={!r}'.format(name, value), 'give an integer')


def _find_conditions(batch_size: Optional[int]) -> Dict[str, Any]:
  """Returns the conditions of the measurement that are known when the graph is complete."""
  strategy = tf.distribute.get_strategy() if tf.distribute.has_strategy() else None
  num_replicas = 1 if strategy is None else strategy.num_replicas_in_sync
  cluster, _ = _cluster_and_task()
  return {
      'global_batch_size': batch_size,
      'per_replica_batch_size': None if batch_size is None else batch_size / num_replicas,
      'num_replicas': num_replicas,
      'num_workers': max(1, sum(len(cluster.get(task_type, ())) for task_type in _WORKER_TYPES)),
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
  """Returns the name of a device without its task, such as `/gpu:0`."""
  spec = tf.DeviceSpec.from_string(device)
  return '/{}:{}'.format((spec.device_type or 'cpu').lower(), spec.device_index or 0)


def _cluster_and_task() -> Tuple[Dict[str, Any], Tuple[Optional[str], int]]:
  """Returns the tasks by type, and the type and index of this task; no tasks without a cluster.

  A measurement must not end a working script. Therefore, distribution.tf_config is not used: it
  rejects some clusters that TensorFlow accepts, and a TF_CONFIG that was set after the Estimator
  was made.
  """
  try:
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    return resolver.cluster_spec().as_dict(), (resolver.task_type, resolver.task_id or 0)
  except Exception:  # TensorFlow raises many kinds of exceptions if TF_CONFIG is malformed.
    return {}, (None, 0)


def _is_chief() -> bool:
  """Returns whether this process is the chief of the cluster, or trains without a cluster."""
  cluster, task = _cluster_and_task()
  chief = next((name for name in _WORKER_TYPES if name in cluster), None)
  return chief is None or task == (chief, 0)
