"""`TimeHistory`: the hook of the library that reports the throughput of any Estimator."""

import json
import logging
import numbers
import os
import re
import time
from array import array
from typing import Any, Dict, List, Optional

import tensorflow.compat.v1 as tf

from estimator_train.errors import InvalidValue
from estimator_train.process.start_up import StartUpTimer
from estimator_train.reports import learning_curves, page, throughput
from estimator_train.reports.step_times import Pause, Timing
from estimator_train.tf_patches.session_runs import SessionRunTimer
from estimator_train.training.hooks import input_wait
from estimator_train.training.hooks.record_steps import RecordSteps

_LOG = logging.getLogger('estimator_train')
_WORKER_TYPES = ('chief', 'master', 'worker')


class TimeHistory(RecordSteps):
  """A hook that measures the throughput of training with any Estimator, and can write a report.

  Add this hook to the `hooks` of `Estimator.train` or of a `TrainSpec`. When training starts again,
  the measurement starts again. The wait for input is measured if the `input_fn` returns a
  tf.data.Dataset; otherwise the wait is not observed. The time of a checkpoint, with the evaluation
  that train_and_evaluate runs after it, is a pause between two steps. The hook takes less than 50
  microseconds per step.

  Args:
    batch_size: the number of examples per step, over all replicas of all workers; None: unknown,
      so that the report has no rates of examples.
    report_dir: the folder to which throughput.json and the report page are written when training
      ends; None: nothing is written. In a cluster only the chief writes.
    warmup_steps: the number of steps at the beginning that are left out of the report.

  Raises:
    UserError: an argument is invalid. The error is a ValueError, too.
  """

  # Whether a TimeHistory has measured a training run of this process.
  process_has_trained = False

  def __init__(self, batch_size: Optional[int] = None, report_dir: Optional[str] = None,
               warmup_steps: int = 10) -> None:
    _check_integer('warmup_steps', warmup_steps, 0)
    if batch_size is not None:
      _check_integer('batch_size', batch_size, 1)
    super().__init__(StartUpTimer())
    self._batch_size = batch_size
    self._report_dir = None if report_dir is None else os.fspath(report_dir)
    self._warmup_steps = warmup_steps
    self._is_first_training = False
    self._global_step: Optional[int] = None
    self._conditions: Dict[str, Any] = {}
    self._timer = SessionRunTimer()
    self._pauses: List[Pause] = []

  @property
  def times(self) -> List[float]:
    """The seconds of each session.run. A long training keeps at least the last 100,000 steps."""
    return [ended - began for began, ended in zip(self.began, self.ended)]

  def begin(self) -> None:
    # The time since the start of the process is that of a first step only in its first training.
    self._is_first_training = not TimeHistory.process_has_trained
    TimeHistory.process_has_trained = True
    if self.ended:
      self.began, self.ended, self.waited = array('d'), array('d'), array('d')
      self.discarded_steps = 0
    self._pauses = []
    super().begin()
    self._global_step = None
    self._global_step_tensor = tf.train.get_global_step()
    self._conditions = _find_conditions(self._batch_size)

  def add_probe(self) -> None:
    self._waits = input_wait.add_probes(tf.get_default_graph())
    self._args_by_fetches: Dict[Any, Optional[tf.train.SessionRunArgs]] = {}

  def _find_run_args(self, fetches: Any) -> Optional[tf.train.SessionRunArgs]:
    """Returns the waits for the batches that a step with these fetches uses; None if it uses none.

    Another iterator in the graph, for example of validation data, must not advance.
    """
    key = tuple(tf.nest.flatten(fetches))
    if key not in self._args_by_fetches:
      graph = tf.get_default_graph()
      elements = [graph.as_graph_element(fetch) for fetch in key]
      used = input_wait.find_ancestors(getattr(element, 'op', element) for element in elements)
      waits = [wait for get_next, wait in self._waits.items() if get_next in used]
      self._args_by_fetches[key] = tf.train.SessionRunArgs(waits) if waits else None
    return self._args_by_fetches[key]

  def after_create_session(self, session: tf.Session, coord: Any) -> None:
    self._timer.attach(session)
    if not self._conditions['devices']:
      names = [_short_name(device.name) for device in session.list_devices()]
      gpus = [name for name in names if name.startswith('/gpu')]
      self._conditions['devices'] = gpus[:1] or ['/cpu:0']

  def before_run(self, run_context: Any) -> Optional[tf.train.SessionRunArgs]:
    if self._timer.has_saved and self.ended:
      paused_at = self.ended[-1]
      self._pauses.append(Pause('checkpoint', paused_at, time.perf_counter() - paused_at))
    self._timer.time_next_run()
    self.run_args = self._find_run_args(run_context.original_args.fetches)
    return super().before_run(run_context)

  def after_run(self, run_context: Any, run_values: Any) -> None:
    super().after_run(run_context, run_values)
    # The times of the timer exclude other hooks, which may run between session.run and this hook.
    self.began[-1], self.ended[-1] = self._timer.began, self._timer.ended

  def end(self, session: tf.Session) -> None:
    self._timer.detach(session)
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
    start_up_secs = self.start_up.secs if self._is_first_training else {}
    timing = Timing(self.began, self.ended, self.waited, start_up_secs,
                    self._global_step or steps_run, None, self._pauses,
                    discarded_steps=self.discarded_steps)
    report = throughput.make_throughput_report(timing, self._conditions, self._warmup_steps)
    report.figures['global_step'] = self._global_step
    return report

  def _write_report(self, folder: str) -> None:
    """Writes the report; an error is logged, because training has succeeded."""
    try:
      os.makedirs(folder, exist_ok=True)
      self._make_report().write(folder)
      learning_curves.write_learning_curves(folder)
      page.write_page(folder)
    except OSError as error:
      _LOG.warning('the report in %s could not be written: %s', folder, error)


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


def _tf_config() -> Dict[str, Any]:
  """Returns TF_CONFIG unchecked.

  cluster.tf_config is stricter than TensorFlow. A script with a cluster that TensorFlow accepts,
  for example with a `master`, must not fail.
  """
  return json.loads(os.environ.get('TF_CONFIG') or '{}')


def _num_workers() -> int:
  cluster = _tf_config().get('cluster', {})
  return max(1, sum(len(cluster.get(task_type, ())) for task_type in _WORKER_TYPES))


def _is_chief() -> bool:
  """Returns whether this process is the chief of the cluster, or trains without a cluster."""
  config = _tf_config()
  cluster, task = config.get('cluster', {}), config.get('task', {})
  chief = next((name for name in _WORKER_TYPES if cluster.get(name)), None)
  return chief is None or (task.get('type'), int(task.get('index', 0))) == (chief, 0)
