"""Trains in several processes by TensorFlow's strategies: collectives, or parameter servers."""

import contextlib
import logging
import os
import socket
import time
from typing import Any, Callable, Dict, Iterator, Mapping, Optional, Sequence

import tensorflow.compat.v1 as tf

from estimator_train.distribution import rendezvous, tf_config
from estimator_train.distribution.cluster_state import TRAINED, TRAINING, Lost
from estimator_train.distribution.devices import Devices, collective_communication
from estimator_train.distribution.engine import Engine
from estimator_train.distribution.peers import Peers
from estimator_train.distribution.process import Process
from estimator_train.distribution.sockets import StartTimeout
from estimator_train.distribution.tf_config import Cluster
from estimator_train.errors import NonFiniteLoss
from estimator_train.settings import Settings
from estimator_train.settings.flags import OUTPUT_FLAGS
from estimator_train.system.signals import exit_now
from estimator_train.tf_patches import estimator as estimator_patches, strategies
from estimator_train.version import __version__

_LOG = logging.getLogger('estimator_train')
_FLAGS_THAT_MAY_DIFFER = (
    'data_dir', 'cache', 'inter_op_parallelism_threads', 'intra_op_parallelism_threads',
    'num_parallel_calls', 'prefetch', 'gpu_memory_growth', 'report_page', *OUTPUT_FLAGS)
_NETWORK_RETRY_SECS, _LOG_EVERY_SECS = 1., 60.


class ClusterEngine(Engine):
  """Trains together with the other tasks of a cluster; see Engine."""
  uses_server = True

  def __init__(self, settings: Settings, process: Process, devices: Devices) -> None:
    super().__init__(settings, process, devices)
    # The chief's listener, if its port was opened before the rendezvous.
    self._listener: Optional[socket.socket] = None
    self._connected_peers: Optional[Peers] = None
    self.cluster: Cluster = self._wait_for_cluster()

  def _wait_for_cluster(self) -> Cluster:
    """Returns the cluster, after a check of the addresses of its tasks."""
    cluster = self.process.cluster
    assert cluster is not None
    wait_for_network(cluster, self.settings.cluster.start_timeout_secs)
    return cluster

  def join(self, shared_values: Mapping[str, str]) -> None:
    self._connected_peers = join_peers(self.settings, self.cluster, shared_values, self._listener)
    self._start_communication()
    if not self.process.is_chief:
      # This worker reads the initial weights, so it waits until the chief has written them.
      self.peers.wait_until_chief_started()

  def train(self, estimator: tf.estimator.Estimator, input_fn: Any,
            hooks: Sequence[tf.train.SessionRunHook], max_steps: int) -> None:
    try:
      self._train_estimator(estimator, input_fn, hooks, max_steps)
      self.peers.announce_state(TRAINED)
      # The last step of another worker may still need TensorFlow's server of this worker.
      self.peers.wait_until_trained()
    except BaseException as error:
      self._report_failure(error)
      raise
    finally:
      estimator_patches.release_server()

  def _start_communication(self) -> None:
    """Connects this process to the others for the exchange of tensors, if the engine must."""

  def _train_estimator(self, estimator: tf.estimator.Estimator, input_fn: Any,
                       hooks: Sequence[tf.train.SessionRunHook], max_steps: int) -> None:
    """Trains up to the global step `max_steps`, or until a hook stops the training."""
    # In a cluster of TF_CONFIG, Estimator.train raises a ValueError. train_and_evaluate evaluates
    # only in an evaluator, which does not use this class.
    tf.estimator.train_and_evaluate(
        estimator, tf.estimator.TrainSpec(input_fn, max_steps, hooks),
        tf.estimator.EvalSpec(input_fn))

  def hooks(self) -> Sequence[tf.train.SessionRunHook]:
    return (_AnnounceTraining(self),)

  def announce(self, state: str) -> None:
    self.peers.announce_state(state)

  @contextlib.contextmanager
  def busy(self, activity: str) -> Iterator[None]:
    self.peers.announce_state(activity)
    yield
    self.peers.announce_state(TRAINING)

  def is_waiting_for_peer(self) -> bool:
    return self.peers.busy_peer() is not None

  @property
  def announced_stop_step(self) -> Optional[int]:  # type: ignore[override]
    return self.peers.stop_step

  def stop_all_at(self, global_step: int) -> None:
    self.peers.stop_all_at(global_step)

  def finish(self, measurements: Optional[Dict[str, Any]] = None) -> Dict[str, Dict[str, Any]]:
    if not self.process.is_chief:
      self.peers.finish(measurements)
      return {}
    measurements_by_task = self.peers.wait_until_finished()
    self.peers.finish()
    return {str(task): values for task, values in measurements_by_task.items()}

  @property
  def peers(self) -> Peers:
    """The connections to the other tasks; available after `join`."""
    assert self._connected_peers is not None
    return self._connected_peers

  def _report_failure(self, error: BaseException) -> None:
    """Reports the error that ends this task to the others, which raise NonFiniteLoss themselves."""
    if isinstance(error, NonFiniteLoss):
      self.peers.finish()
    else:
      self.peers.report_failure(str(error) or type(error).__name__,
                                getattr(error, 'exit_code', None))


class CollectiveEngine(ClusterEngine):
  """Trains with MultiWorkerMirroredStrategy, whose workers exchange gradients by collectives."""

  def make_strategy(self) -> Optional[tf.distribute.Strategy]:
    return strategies.MultiWorkerMirroredStrategy(
        self.devices.names, collective_communication(self.settings.devices))


class ParameterServerEngine(ClusterEngine):
  """Trains with ParameterServerStrategy: each step of a worker is a global step; see Engine."""
  is_synchronous = False

  def first_example(self, examples_seen: int) -> int:
    # The workers use their shards of a batch in different global steps, and a checkpoint may be
    # saved between two of these steps. A resumed run repeats the whole batch.
    batch_size = self.settings.optimizer.batch_size
    return examples_seen // batch_size * batch_size

  def make_strategy(self) -> Optional[tf.distribute.Strategy]:
    return tf.distribute.experimental.ParameterServerStrategy()


def wait_for_network(cluster: Cluster, timeout_secs: float,
                     clock: Callable[[], float] = time.monotonic,
                     sleep: Callable[[float], None] = time.sleep) -> None:
  """Checks the port of this task, and waits until the host names of all members can be resolved.

  In Kubernetes, the host name of a pod cannot be resolved until the pod has started.

  Args:
    cluster: the cluster.
    timeout_secs: maximum number of seconds to wait.
    clock: returns the time in seconds, from any origin.
    sleep: waits for a number of seconds.

  Raises:
    UserError: the port of this task is in use, or a host name cannot be resolved in time.
  """
  tf_config.listen_on_own_port(cluster).close()
  deadline, next_log_at = clock() + timeout_secs, clock()
  while True:
    error = tf_config.find_unresolved_host(cluster)
    if error is None:
      return
    if clock() > deadline:
      raise error
    if clock() >= next_log_at:
      next_log_at += _LOG_EVERY_SECS
      _LOG.info('%s; retrying for another %.0f s', error, deadline - clock())
    sleep(_NETWORK_RETRY_SECS)


def join_peers(settings: Settings, cluster: Cluster, shared_values: Mapping[str, str],
               listener: Optional[socket.socket] = None) -> Peers:
  """Connects to the other tasks. From then on, this process ends when another task is lost.

  Args:
    settings: the flags. Only `_FLAGS_THAT_MAY_DIFFER` may differ between tasks.
    cluster: the tasks.
    shared_values: further values that must be the same on all tasks, by name.
    listener: see rendezvous.connect.

  Raises:
    PeerLost: a task did not connect in time.
    UserError: a flag or another shared value of this task differs from that of the chief.
  """
  flag_values = {'--' + name: str(value) for name, value in settings.items()
                 if name not in _FLAGS_THAT_MAY_DIFFER}
  connections = rendezvous.connect(
      cluster, dict(flag_values, **shared_values, TensorFlow=tf.version.VERSION,
                    estimator_train=__version__),
      StartTimeout(settings.cluster.start_timeout_secs), listener,
      os.environ.get(rendezvous.KEY_VARIABLE, ''))
  peers = Peers(cluster, connections, settings.cluster.peer_timeout_secs, _end_process)
  _LOG.info('all %d tasks are connected: %s', len(cluster.members),
            tf_config.describe_task_counts(cluster))
  return peers


def serve_variables(settings: Settings, process: Process) -> Dict[str, Any]:
  """Serves variables to the workers until all workers have finished.

  Args:
    settings: the settings of the run.
    process: the role of this process, which is a parameter server.

  Returns:
    The result of the mode for this process.
  """
  cluster = process.cluster
  assert cluster is not None
  wait_for_network(cluster, settings.cluster.start_timeout_secs)
  peers = join_peers(settings, cluster, {})  # The other shared values describe data and model.
  server = tf.train.Server(
      tf.train.ClusterSpec({kind: list(addresses) for kind, addresses in cluster.addresses.items()
                            if kind != 'evaluator'}),
      cluster.task.type, cluster.task.index, config=tf.ConfigProto(device_count={'GPU': 0}))
  peers.announce_state(TRAINING)
  peers.wait_until_finished()  # The chief waits for the other workers.
  peers.finish()
  del server
  return {'mode': settings.run.mode, 'model_dir': settings.run.model_dir, 'task': process.name}


class _AnnounceTraining(tf.train.SessionRunHook):
  """Announces to the other tasks that this task trains, once its session has been created."""

  def __init__(self, engine: ClusterEngine) -> None:
    self._engine = engine

  def after_create_session(self, session: tf.Session, coord: Any) -> None:
    self._engine.announce(TRAINING)


def _end_process(lost: Lost) -> None:
  """Ends this process because another task was lost."""
  exit_now(str(lost), lost.exit_code)
