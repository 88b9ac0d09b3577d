"""Engines, which train an Estimator in one process or together with the workers of a cluster."""

import logging
import os
import time
from typing import TYPE_CHECKING, Any, Dict, Optional, Sequence

import tensorflow.compat.v1 as tf

from estimator_train.distribution.devices import (
  Devices,
  make_cpu_config,
  make_local_strategy,
  make_session_config,
)
from estimator_train.distribution.peers import TRAINED, TRAINING, Peers
from estimator_train.distribution.process import EVALUATOR, Process
from estimator_train.distribution.tf_config import Cluster
from estimator_train.errors import NonFiniteLoss, PeerLost, UserError
from estimator_train.settings import Settings, per_replica_batch_size
from estimator_train.settings.flags import MULTI_WORKER_STRATEGIES
from estimator_train.tf_patches import estimator as estimator_patches, strategies

# Most runs have only one process. Only a run of several processes imports cluster_peers.
if TYPE_CHECKING:
  from estimator_train.distribution.cluster_peers import ClusterPeers

_LOG = logging.getLogger('estimator_train')
# TensorFlow's names of the all-reduce algorithms between workers.
_COLLECTIVE_COMMUNICATION = {None: 'AUTO', 'nccl': 'NCCL', 'ring': 'RING'}
# The maximum time from an error of Horovod until the thread that exchanges messages detects the
# lost rank.
_LOST_RANK_DETECTION_SECS = 10.


class Engine:
  """Trains an Estimator. This base class trains on one or several replicas in one process.

  Attributes:
    num_workers: 1 for an evaluator.
    examples_per_replica: the number of examples of one replica in a step.
    is_synchronous: whether this process takes part in every global step.
    uses_server: whether the sessions of this process run on its tf.train.Server.

  Raises:
    UserError: the batch size does not suit the number of replicas.
  """
  is_synchronous = True
  uses_server = False

  def __init__(self, settings: Settings, process: Process, devices: Devices) -> None:
    self.settings, self.process, self.devices = settings, process, devices
    self.num_workers = 1 if process.role == EVALUATOR else process.num_workers
    trains = settings.run.trains
    self.examples_per_replica = per_replica_batch_size(
        settings.optimizer.batch_size, self.num_replicas,
        settings.optimizer.gradient_accumulation_steps if trains else 1)
    if trains and settings.input.mixup_alpha and self.examples_per_replica % 2:
      raise UserError('--mixup_alpha mixes pairs, and requires an even number of examples per '
                      'replica', '--batch_size={} for {} replica(s)'.format(
                          settings.optimizer.batch_size, self.num_replicas),
                      'give --batch_size={}'.format(
                          settings.optimizer.batch_size + self.num_replicas))
    self.peers = self._make_peers()

  def _make_peers(self) -> Peers:
    return Peers()

  @property
  def num_replicas(self) -> int:
    """The number of replicas in all processes."""
    return self.devices.num_replicas * self.num_workers

  @property
  def examples_per_step(self) -> int:
    """The number of examples per global step."""
    # In an asynchronous cluster, each global step uses only the examples of one worker.
    # `is_synchronous` does not show this, because it is also True for the evaluator of the cluster.
    is_asynchronous = self.settings.devices.distribution_strategy == 'parameter_server'
    return self.settings.optimizer.batch_size // (
        self.process.num_workers if is_asynchronous else 1)

  @property
  def examples_per_worker(self) -> int:
    """The number of examples that this process uses per step."""
    return self.examples_per_replica * self.devices.num_replicas

  def next_example_index(self, examples_seen: int) -> int:
    """Returns the index of the first example to read, counted over all epochs.

    Args:
      examples_seen: the number up to the checkpoint.
    """
    return examples_seen

  def make_strategy(self) -> Optional[tf.distribute.Strategy]:
    """Makes the strategy for training; returns None if the Estimator needs no strategy."""
    return make_local_strategy(self.settings.devices, self.devices,
                               make_session_config(self.settings.devices, self.devices))

  def make_run_config(self) -> tf.estimator.RunConfig:
    """Makes the RunConfig for training and evaluation. Call `peers.join_run` before."""
    return tf.estimator.RunConfig(
        model_dir=self.settings.run.model_dir,
        tf_random_seed=self.settings.optimizer.seed,
        train_distribute=self.make_strategy(),
        session_config=make_session_config(self.settings.devices, self.devices,
                                           uses_server=self.uses_server),
        save_checkpoints_steps=None,  # The hook SaveCheckpoints saves them.
        save_checkpoints_secs=None,
        keep_checkpoint_max=self.settings.checkpoints.keep_checkpoint_max,
        # In a cluster, Estimator would compute summaries only on the chief. A summary can contain
        # collective operations, which would then wait forever for the other workers. So only the
        # hook WriteSummaries writes summaries there.
        save_summary_steps=self.settings.reporting.log_every_steps if self.num_workers == 1 else 0,
        log_step_count_steps=None)

  def train(self, estimator: tf.estimator.Estimator, input_fn: Any,
            hooks: Sequence[tf.train.SessionRunHook], max_steps: int) -> None:
    """Trains up to the global step `max_steps`, or until a hook stops the training."""
    estimator.train(input_fn, hooks=hooks, max_steps=max_steps)


def _make_cluster_peers(settings: Settings, cluster: Cluster) -> 'ClusterPeers':
  """Waits until the host names of all tasks can be resolved, and makes the peers of this task."""
  from estimator_train.distribution import cluster_peers, rendezvous
  rendezvous.wait_until_hosts_resolve(cluster, settings.cluster.start_timeout_secs)
  return cluster_peers.ClusterPeers(settings, cluster)


class _ClusterEngine(Engine):
  uses_server = True
  peers: 'ClusterPeers'

  def _make_peers(self) -> 'ClusterPeers':
    assert self.process.cluster is not None
    return _make_cluster_peers(self.settings, self.process.cluster)

  def train(self, estimator: tf.estimator.Estimator, input_fn: Any,
            hooks: Sequence[tf.train.SessionRunHook], max_steps: int) -> None:
    try:
      self._run_estimator(estimator, input_fn, [*hooks, _AnnounceTraining(self.peers)], max_steps)
      self.peers.announce_state(TRAINED)
      # The last step of another worker may still need the TensorFlow server of this worker.
      self.peers.wait_until_trained()
    except NonFiniteLoss:  # Every worker raises and prints this error, so no report is needed.
      self.peers.send_goodbye()
      raise
    except BaseException as error:
      self.peers.report_failure(str(error) or type(error).__name__,
                                getattr(error, 'exit_code', None))
      raise
    finally:
      estimator_patches.release_server()

  def _run_estimator(self, estimator: tf.estimator.Estimator, input_fn: Any,
                     hooks: Sequence[tf.train.SessionRunHook], max_steps: int) -> None:
    # With a cluster in TF_CONFIG, Estimator.train raises a ValueError. train_and_evaluate only
    # trains here, because it evaluates only in an evaluator, which does not use this class.
    tf.estimator.train_and_evaluate(
        estimator, tf.estimator.TrainSpec(input_fn, max_steps, hooks),
        tf.estimator.EvalSpec(input_fn))


class _AnnounceTraining(tf.train.SessionRunHook):
  def __init__(self, peers: Peers) -> None:
    self._peers = peers

  def after_create_session(self, session: tf.Session, coord: Any) -> None:
    self._peers.announce_state(TRAINING)


class CollectiveEngine(_ClusterEngine):
  """Trains with MultiWorkerMirroredStrategy, which sums gradients by collective operations."""

  def make_strategy(self) -> Optional[tf.distribute.Strategy]:
    return strategies.MultiWorkerMirroredStrategy(
        self.devices.names, _COLLECTIVE_COMMUNICATION[self.settings.devices.all_reduce_alg])


class ParameterServerEngine(_ClusterEngine):
  """Trains with ParameterServerStrategy, in which each step of a worker is a global step."""
  is_synchronous = False

  def next_example_index(self, examples_seen: int) -> int:
    # The workers use their shards of a batch in different global steps. If the checkpoint was saved
    # between two of these steps, the resumed run repeats the whole batch.
    batch_size = self.settings.optimizer.batch_size
    return examples_seen // batch_size * batch_size

  def make_strategy(self) -> Optional[tf.distribute.Strategy]:
    return tf.distribute.experimental.ParameterServerStrategy()


class HorovodEngine(_ClusterEngine):
  """Trains with Horovod, with one replica per rank. TensorFlow itself sees no cluster."""
  uses_server = False

  def _make_peers(self) -> 'ClusterPeers':
    from estimator_train.distribution import horovod
    return horovod.HorovodPeers(self.settings, self.process)

  def make_strategy(self) -> Optional[tf.distribute.Strategy]:
    return strategies.HorovodStrategy(self.devices.names[0])

  def _run_estimator(self, estimator: tf.estimator.Estimator, input_fn: Any,
                     hooks: Sequence[tf.train.SessionRunHook], max_steps: int) -> None:
    try:
      estimator.train(input_fn, hooks=[*hooks, _BroadcastVariables()], max_steps=max_steps)
    except tf.errors.OpError as error:
      if 'Horovod' not in str(error):
        raise
      # An operation of Horovod fails if another rank has ended. During the sleep, the thread that
      # exchanges messages usually detects the lost rank, and ends this process with the reason.
      time.sleep(_LOST_RANK_DETECTION_SECS)
      raise PeerLost('Horovod has failed: {}'.format(error.message)) from error


class _BroadcastVariables(tf.train.SessionRunHook):
  def begin(self) -> None:
    self._broadcast = strategies.broadcast_variables()

  def after_create_session(self, session: tf.Session, coord: Any) -> None:
    session.run(self._broadcast)


_CLUSTER_ENGINES = {'multi_worker_mirrored': CollectiveEngine, 'horovod': HorovodEngine,
                    'parameter_server': ParameterServerEngine}


def make_engine(settings: Settings, process: Process, devices: Devices) -> Engine:
  """Makes the engine of a process that trains or evaluates, and sets TF_CONFIG for TensorFlow.

  In a cluster, this function waits until the host names of the other tasks can be resolved.

  Raises:
    PeerLost: the first rank of Horovod did not publish its address in time.
    UserError: the batch size does not suit the replicas, or TF_CONFIG does not suit the network.
  """
  # If TensorFlow found TF_CONFIG, it would connect to the other tasks. Only an engine with its own
  # server needs that.
  tf_config_text = os.environ.pop('TF_CONFIG', None)
  strategy = settings.devices.distribution_strategy
  if process.num_workers > 1 and process.role != EVALUATOR:
    engine = _CLUSTER_ENGINES[strategy](settings, process, devices)
    if engine.uses_server and process.cluster is not None:
      os.environ['TF_CONFIG'] = process.cluster.to_tf_config()
    return engine
  if settings.run.trains and strategy in MULTI_WORKER_STRATEGIES and process.role != EVALUATOR:
    _LOG.info('--distribution_strategy=%s with one worker: TF_CONFIG %s', strategy,
              'names no other task' if tf_config_text is not None else 'is not set'
              + (', and no launcher has started several processes' if strategy == 'horovod'
                 else ''))
  return Engine(settings, process, devices)


def serve_variables(settings: Settings, process: Process) -> Dict[str, Any]:
  """Serves variables until the chief has left the run, and returns the result of the mode."""
  cluster = process.cluster
  assert cluster is not None
  peers = _make_cluster_peers(settings, cluster)
  peers.connect({})  # There are no values to compare, because the server has no data and no model.
  server = tf.train.Server(
      tf.train.ClusterSpec({kind: list(addresses) for kind, addresses in cluster.addresses.items()
                            if kind != 'evaluator'}),
      cluster.task.type, cluster.task.index, config=make_cpu_config())
  peers.announce_state(TRAINING)
  peers.leave_run()
  del server
  return {'mode': settings.run.mode, 'model_dir': settings.run.model_dir, 'task': process.name}
