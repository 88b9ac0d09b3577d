"""What the tasks of a cluster do for each other around TensorFlow's own training."""

import hashlib
import json
import logging
import math
import os
import time
from typing import Any, Callable, Dict, Optional

import tensorflow.compat.v1 as tf

from estimator_train.cluster import heartbeats, rendezvous, tf_config
from estimator_train.cluster.heartbeats import Peers
from estimator_train.cluster.tf_config import Cluster, Task
from estimator_train.datasets import fingerprint
from estimator_train.datasets.description import ArraySplit, DataSet, ImageSplit
from estimator_train.distribution.devices import Devices
from estimator_train.errors import NotSaved, PeerLost, TrainingFailed, UserError
from estimator_train.settings import Settings
from estimator_train.settings.choices import MULTI_WORKER_STRATEGIES
from estimator_train.training.hooks import watchdog
from estimator_train.training.hooks.watchdog import StepWatchdog

_LOOK_SECS, _LOG_EVERY_SECS = 1., 60.
_LOG = logging.getLogger('estimator_train')
# Of these each task may have its own.
_OWN_FLAGS = ('data_dir', 'cache', 'inter_op_parallelism_threads', 'intra_op_parallelism_threads',
              'num_parallel_calls', 'prefetch', 'gpu_memory_growth',
              'report_page', 'verbosity')


def find_cluster(settings: Settings) -> Optional[Cluster]:
  """Returns the tasks that TF_CONFIG names, where the run is to train with them.

  Raises:
    UserError: TF_CONFIG is wrong, or not for this strategy.
  """
  cluster = None
  if settings.trains:
    cluster = tf_config.of_run(os.environ, settings.distribution_strategy)
  if cluster is not None and cluster.has_evaluator and (
      settings.early_stopping_steps or settings.stop_at_accuracy):
    raise UserError('a task of type evaluator cannot stop the others',
                    '--early_stopping_steps or --stop_at_accuracy with an evaluator in TF_CONFIG',
                    'leave the evaluator out, so that the chief evaluates, or the flags')
  if cluster is not None and len(cluster.members) > 1:
    if cluster.task.type == 'evaluator':
      _hide_tf_config()  # It trains nothing, and TensorFlow would have it take part.
    _wait_for_names(cluster, settings.start_timeout_secs)
    return cluster
  if settings.trains and settings.distribution_strategy in MULTI_WORKER_STRATEGIES:
    _LOG.info('--distribution_strategy=%s with one worker: TF_CONFIG %s',
              settings.distribution_strategy,
              'is not set' if cluster is None else 'names no other')
  _hide_tf_config()
  return None


def _hide_tf_config() -> None:
  """Has TensorFlow, which reads it too, train or evaluate in this process alone."""
  os.environ.pop('TF_CONFIG', None)


def _wait_for_names(cluster: Cluster, timeout_secs: float) -> None:
  """Waits until each host's name is known: in Kubernetes that is when its pod is up."""
  give_up = time.monotonic() + timeout_secs
  log_at = time.monotonic()
  while True:
    try:
      tf_config.check_network(cluster)
      return
    except tf_config.NoAddress as error:
      if time.monotonic() > give_up:
        raise
      if time.monotonic() >= log_at:
        log_at += _LOG_EVERY_SECS
        _LOG.info('%s; trying for another %.0f s', error, give_up - time.monotonic())
      time.sleep(_LOOK_SECS)


def join(cluster: Cluster, settings: Settings, facts: Dict[str, str]) -> Peers:
  """Waits for the other tasks; from then on this process ends when one is lost.

  Args:
    cluster: the tasks.
    settings: that all must share, but for some.
    facts: what they must agree on besides.

  Raises:
    PeerLost: one did not come in time.
    UserError: this task was started otherwise than the chief.
  """
  facts = dict({'--' + name: str(value) for name, value in settings.items()
                if name not in _OWN_FLAGS}, **facts, **{'TensorFlow': tf.version.VERSION})
  peers = rendezvous.meet(cluster, facts, settings.start_timeout_secs, _LOG.info)
  peers.watch(settings.peer_timeout_secs, _end)
  _LOG.info('all %d tasks are there: %s', len(cluster.members), tf_config.counts(cluster))
  return peers


def facts_of_worker(first_step: int, devices: Devices, dataset: DataSet,
                    model: tf.keras.Model) -> Dict[str, str]:
  """Returns what the workers must agree on besides their flags.

  Args:
    first_step: of the checkpoint that the worker finds.
    devices: that it has.
    dataset: that it reads.
    model: that it builds.
  """
  layers = json.dumps([[weight.op.name, weight.shape.as_list()] for weight in model.weights])
  return {
      'the step of the checkpoint in --model_dir': str(first_step),
      'the number of replicas': str(devices.num_replicas),
      'the image shape': str(dataset.image_shape),
      'the labels': ','.join(dataset.labels)[:1000],
      'the training examples (a digest of their classes)': _digest_of_classes(dataset),
      "the model's weights (a digest)": hashlib.md5(layers.encode('utf-8')).hexdigest(),
  }


def _digest_of_classes(dataset: DataSet) -> str:
  """Returns what tells lists of examples apart, which files or arrays of this machine may be."""
  if not isinstance(dataset.train, (ImageSplit, ArraySplit)):
    return ''  # The same everywhere: checked when it was got, or made up.
  return fingerprint.of_arrays([dataset.train.classes])


def serve_parameters(cluster: Cluster, settings: Settings) -> Dict[str, Any]:
  """Holds variables for the workers until all of them are done.

  Returns:
    The result of this task.
  """
  peers = join(cluster, settings, {})
  config = tf.ConfigProto(device_count={'GPU': 0})
  server = tf.train.Server(
      tf.train.ClusterSpec({kind: list(addresses) for kind, addresses in cluster.addresses.items()
                            if kind != 'evaluator'}),
      cluster.task.type, cluster.task.index, config=config)
  peers.state(heartbeats.TRAINING)
  peers.wait_until_finished(cluster.workers)
  peers.finish()
  del server
  return {'mode': settings.mode, 'model_dir': settings.model_dir, 'task': str(cluster.task)}


def wait_for_checkpoint(settings: Settings) -> None:
  """Waits until the chief has saved a first checkpoint, for the evaluator.

  Raises:
    PeerLost: there is none for too long.
  """
  assert settings.model_dir is not None
  give_up = time.monotonic() + settings.start_timeout_secs
  while tf.train.latest_checkpoint(settings.model_dir) is None:
    if time.monotonic() > give_up:
      raise PeerLost('no checkpoint came to {} for {} s (--start_timeout_secs)'.format(
          settings.model_dir, settings.start_timeout_secs))
    time.sleep(_LOOK_SECS)


def leave(peers: Optional[Peers], error: BaseException) -> None:
  """Tells the other tasks that this one ends by an error, which all of them share or not."""
  if peers is None:
    return
  if isinstance(error, TrainingFailed) and not isinstance(error, NotSaved):
    peers.finish()  # The loss is that of all workers, and each says so itself.
  else:
    peers.leave(str(error) or type(error).__name__)


def told_as(word: str, peers: Optional[Peers], call: Callable[[], Any]) -> Callable[[], Any]:
  """Returns the function, which the other tasks know of while it runs, as they wait for it."""
  def called() -> Any:
    if peers is not None:
      peers.state(word)
    result = call()
    if peers is not None:
      peers.state(heartbeats.TRAINING)
    return result

  return called


class TellPeers(tf.train.SessionRunHook):
  """Tells the other tasks when this one trains."""

  def __init__(self, peers: Peers) -> None:
    self._peers = peers

  def after_create_session(self, session: tf.Session, coord: Any) -> None:
    self._peers.state(heartbeats.TRAINING)


def make_watchdog(settings: Settings, peers: Optional[Peers]) -> StepWatchdog:
  """Makes the hook that ends this process when no step comes to its end."""
  def is_excused() -> bool:
    return peers is not None and peers.busy() is not None

  def end(secs: float) -> None:
    watchdog.dump_stacks()
    heartbeats.end_now(
        'no step came to its end for {:.0f} s (--step_timeout_secs): above is where each thread '
        'is; what was saved is kept, and the same command goes on from there; on several GPUs '
        'NCCL_DEBUG=INFO tells more, and --all_reduce_alg=hierarchical_copy (in one machine) or '
        'ring (over several) does without NCCL'.format(secs))

  return StepWatchdog(settings.step_timeout_secs or math.inf, is_excused, end)


def _end(task: Task, reason: str) -> None:
  heartbeats.end_now('lost {}: {}; what was saved is kept, and the same command goes on from '
                     'there'.format(task, reason))
