"""The base class of engines for several processes: peers, and TensorFlow's coordinator."""

import contextlib
import logging
from typing import Any, Dict, Iterator, Mapping, Optional, Sequence

import tensorflow.compat.v1 as tf

from estimator_train.cluster import heartbeats, rendezvous, tf_config
from estimator_train.cluster.heartbeats import Peers
from estimator_train.cluster.tf_config import Cluster, Task
from estimator_train.cluster.worker import Worker, wait_for_network
from estimator_train.distribution.devices import Devices
from estimator_train.distribution.engines.engine import Engine
from estimator_train.errors import CheckpointNotSaved, TrainingFailed
from estimator_train.settings import Settings
from estimator_train.tf_patches import estimator as estimator_patches

_LOG = logging.getLogger('estimator_train')
# Flags that may differ between tasks.
_TASK_FLAGS = ('data_dir', 'cache', 'inter_op_parallelism_threads', 'intra_op_parallelism_threads',
               'num_parallel_calls', 'prefetch', 'gpu_memory_growth',
               'report_page', 'verbosity')


class ClusterEngine(Engine):
  """Trains in the tasks of TF_CONFIG; see Engine."""

  def __init__(self, settings: Settings, worker: Worker, devices: Devices) -> None:
    super().__init__(settings, worker, devices)
    assert worker.cluster is not None
    self._cluster: Cluster = worker.cluster
    self._joined: Optional[Peers] = None
    wait_for_network(self._cluster, settings.start_timeout_secs)

  def join(self, facts: Mapping[str, str]) -> None:
    self._joined = join_peers(self.settings, self._cluster, facts)
    if not self.worker.is_chief:  # The chief writes the initial weights, which the others read.
      self._joined.wait_until_started(self._cluster.chief)

  def train(self, estimator: tf.estimator.Estimator, input_fn: Any,
            hooks: Sequence[tf.train.SessionRunHook], max_steps: int) -> None:
    try:
      # Only this function uses TensorFlow's coordinator of workers. It does not evaluate here.
      tf.estimator.train_and_evaluate(
          estimator, tf.estimator.TrainSpec(input_fn, max_steps, hooks),
          tf.estimator.EvalSpec(input_fn))
      self.peers.announce_state(heartbeats.TRAINED)
      # The last step of another worker may still need this one.
      self.peers.wait_until_trained(self._cluster.workers)
    except BaseException as error:
      self._report_failure(error)
      raise
    finally:
      estimator_patches.release_server()

  def hooks(self) -> Sequence[tf.train.SessionRunHook]:
    return (_AnnounceTraining(self),)

  def announce(self, state: str) -> None:
    self.peers.announce_state(state)

  @contextlib.contextmanager
  def busy(self, activity: str) -> Iterator[None]:
    self.peers.announce_state(activity)
    yield
    self.peers.announce_state(heartbeats.TRAINING)

  def is_waiting_for_peer(self) -> bool:
    return self.peers.busy_peer() is not None

  @property
  def stop_step(self) -> Optional[int]:  # type: ignore[override]
    return self.peers.stop_step

  def stop_all_at(self, global_step: int) -> None:
    self.peers.stop_all_at(global_step)

  def finish(self, figures: Optional[Dict[str, Any]] = None) -> Dict[str, Dict[str, Any]]:
    if not self.worker.is_chief:
      self.peers.finish(figures)
      return {}
    figures_by_task = self.peers.wait_until_finished(self._cluster.workers)
    self.peers.finish()
    return {str(task): figures for task, figures in figures_by_task.items()}

  @property
  def peers(self) -> Peers:
    """The other tasks, after `join`."""
    assert self._joined is not None
    return self._joined

  def _report_failure(self, error: BaseException) -> None:
    """Reports the error that ends this task to the others, unless it occurs on all of them."""
    if isinstance(error, TrainingFailed) and not isinstance(error, CheckpointNotSaved):
      self.peers.finish()  # All workers have the same loss, and each reports the error itself.
    else:
      self.peers.report_failure(str(error) or type(error).__name__)


def join_peers(settings: Settings, cluster: Cluster, facts: Mapping[str, str]) -> Peers:
  """Connects to the other tasks; from then on this process ends when one of them is lost.

  Args:
    settings: the flags, which must be the same on all tasks, except those of `_TASK_FLAGS`.
    cluster: the tasks.
    facts: further values that must be the same on all tasks.

  Raises:
    PeerLost: a task did not connect in time.
    UserError: the flags or facts of this task differ from those of the chief.
  """
  shared = {'--' + name: str(value) for name, value in settings.items() if name not in _TASK_FLAGS}
  peers = rendezvous.connect_peers(
      cluster, dict(shared, **facts, TensorFlow=tf.version.VERSION), settings.start_timeout_secs,
      _LOG.info)
  peers.set_loss_handler(settings.peer_timeout_secs, _end_process)
  _LOG.info('all %d tasks are connected: %s', len(cluster.members), tf_config.count_tasks(cluster))
  return peers


class _AnnounceTraining(tf.train.SessionRunHook):
  """Announces to the other tasks that this one trains."""

  def __init__(self, engine: ClusterEngine) -> None:
    self._engine = engine

  def after_create_session(self, session: tf.Session, coord: Any) -> None:
    self._engine.announce(heartbeats.TRAINING)


def _end_process(task: Task, reason: str) -> None:
  heartbeats.exit_now('lost {}: {}; the same command resumes from the last checkpoint'.format(
      task, reason))
