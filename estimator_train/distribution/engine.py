"""Engines: the objects that train an Estimator, in this process or together with others."""

import contextlib
import logging
import os
from typing import Any, Dict, Iterator, Mapping, Optional, Sequence, Type

import tensorflow.compat.v1 as tf

from estimator_train.distribution.devices import Devices, make_local_strategy, make_session_config
from estimator_train.distribution.process import EVALUATOR, Process
from estimator_train.errors import UserError
from estimator_train.settings import Settings, per_replica_batch_size
from estimator_train.settings.flags import MULTI_WORKER_STRATEGIES

_LOG = logging.getLogger('estimator_train')


class Engine:
  """Trains an Estimator. This base class trains in one process, on one or several replicas.

  Args:
    settings: the settings of the run.
    process: the role of this process in the run.
    devices: the devices of this process, with one replica on each.

  Attributes:
    settings, process, devices: the arguments.
    num_workers: number of processes that train together; 1 for an evaluator.
    examples_per_replica: number of examples that each replica uses per step.
    is_synchronous: whether this process takes part in every global step.
    uses_server: whether this process trains through a tf.train.Server of its own, whose threads
      are then used.
    announced_stop_step: the global step at which all processes are asked to stop; None if no
      process asks.

  Raises:
    UserError: the batch size is not divisible by the number of replicas or, with `--mixup_alpha`,
      a replica would have an odd number of examples.
  """
  is_synchronous = True
  uses_server = False
  announced_stop_step: Optional[int] = None

  def __init__(self, settings: Settings, process: Process, devices: Devices) -> None:
    self.settings, self.process, self.devices = settings, process, devices
    self.num_workers = 1 if process.role == EVALUATOR else process.num_workers
    self.examples_per_replica = per_replica_batch_size(
        settings.optimizer.batch_size, self.num_replicas,
        settings.optimizer.gradient_accumulation_steps if settings.run.trains else 1)
    if settings.run.trains and settings.input.mixup_alpha and self.examples_per_replica % 2:
      raise UserError('--mixup_alpha mixes pairs, and requires an even number of examples per '
                      'replica', '--batch_size={} for {} replica(s)'.format(
                          settings.optimizer.batch_size, self.num_replicas),
                      'give --batch_size={}'.format(
                          settings.optimizer.batch_size + self.num_replicas))

  @property
  def num_replicas(self) -> int:
    """Number of replicas in all processes."""
    return self.devices.num_replicas * self.num_workers

  @property
  def examples_per_step(self) -> int:
    """Number of examples per global step."""
    # `is_synchronous` is not enough: it is also True for the evaluator of an asynchronous cluster,
    # where each global step uses only the part of the batch of one worker.
    is_asynchronous = self.settings.devices.distribution_strategy == 'parameter_server'
    return self.settings.optimizer.batch_size // (
        self.process.num_workers if is_asynchronous else 1)

  @property
  def examples_per_worker(self) -> int:
    """Number of examples that this process uses per step."""
    return self.examples_per_replica * self.devices.num_replicas

  def first_example(self, examples_seen: int) -> int:
    """Returns the position from which a resumed run reads.

    The position is an index in the sequence of training examples over all epochs.

    Args:
      examples_seen: number of examples that previous runs have used up to the checkpoint.
    """
    return examples_seen

  def make_strategy(self) -> Optional[tf.distribute.Strategy]:
    """Makes the strategy for training; returns None for an Estimator without a strategy."""
    return make_local_strategy(self.settings.devices, self.devices)

  def make_run_config(self) -> tf.estimator.RunConfig:
    """Makes the RunConfig for training and evaluation."""
    return tf.estimator.RunConfig(
        model_dir=self.settings.run.model_dir,
        tf_random_seed=self.settings.optimizer.seed,
        train_distribute=self.make_strategy(),
        session_config=make_session_config(self.settings.devices, self.devices,
                                           in_cluster=self.uses_server),
        save_checkpoints_steps=None,  # The hook SaveCheckpoints saves them.
        save_checkpoints_secs=None,
        keep_checkpoint_max=self.settings.checkpoints.keep_checkpoint_max,
        # In a cluster, Estimator must not compute summaries: it would do so only on the chief, and
        # a summary can contain collective operations, which wait for all workers. Only the hook
        # WriteSummaries then writes summaries.
        save_summary_steps=self.settings.reporting.log_every_steps if self.num_workers == 1 else 0,
        log_step_count_steps=None)

  def join(self, shared_values: Mapping[str, str]) -> None:
    """Waits for the other processes, and checks that their flags and shared values are the same.

    Args:
      shared_values: values, besides the flags, that must be the same in all processes, by name.

    Raises:
      PeerLost: a process did not connect in time.
      UserError: a flag or shared value of this process differs from that of the chief.
    """

  def train(self, estimator: tf.estimator.Estimator, input_fn: Any,
            hooks: Sequence[tf.train.SessionRunHook], max_steps: int) -> None:
    """Trains up to the global step `max_steps`, or until a hook stops the training."""
    estimator.train(input_fn, hooks=hooks, max_steps=max_steps)

  def hooks(self) -> Sequence[tf.train.SessionRunHook]:
    """Returns the hooks that this engine needs."""
    return ()

  def announce(self, state: str) -> None:
    """Sends the state, such as READY or TRAINED, to the other processes.

    For a temporary activity, use `busy`.
    """

  @contextlib.contextmanager
  def busy(self, activity: str) -> Iterator[None]:
    """Announces an activity between steps, so that waiting processes do not run into a timeout."""
    yield

  def is_waiting_for_peer(self) -> bool:
    """Whether another process is busy between steps, so that a step of this process must wait."""
    return False

  def stop_all_at(self, global_step: int) -> None:
    """Asks all processes to stop at a global step; returns when all of them know the step."""
    self.announced_stop_step = global_step

  def finish(self, measurements: Optional[Dict[str, Any]] = None) -> Dict[str, Dict[str, Any]]:
    """Leaves the cluster; the chief first waits until the other workers have finished.

    Args:
      measurements: the measurements of this process, for the report of the chief.

    Returns:
      On the chief, the measurements of the other workers, by the name of the worker; otherwise an
      empty dict.
    """
    return {}


def make_engine(settings: Settings, process: Process, devices: Devices) -> Engine:
  """Makes the engine of a process that trains or evaluates.

  Raises:
    UserError: the batch size is not divisible by the number of replicas.
  """
  strategy = settings.devices.distribution_strategy
  if process.num_workers > 1 and process.role != EVALUATOR:
    if process.cluster is not None:
      os.environ['TF_CONFIG'] = process.cluster.to_tf_config()
    return _cluster_engine_class(strategy)(settings, process, devices)
  if settings.run.trains and strategy in MULTI_WORKER_STRATEGIES and process.role != EVALUATOR:
    _LOG.info('--distribution_strategy=%s with one worker: TF_CONFIG %s', strategy,
              'names no other task' if 'TF_CONFIG' in os.environ else 'is not set'
              + (', and no launcher has started several processes' if strategy == 'horovod'
                 else ''))
  # TensorFlow reads TF_CONFIG, too, and would connect to the other tasks.
  os.environ.pop('TF_CONFIG', None)
  return Engine(settings, process, devices)


def _cluster_engine_class(strategy: str) -> Type[Engine]:
  """Returns the class of the engine for several workers; other runs do not import its module."""
  from estimator_train.distribution import engines, horovod
  return {'multi_worker_mirrored': engines.CollectiveEngine,
          'parameter_server': engines.ParameterServerEngine,
          'horovod': horovod.HorovodEngine}[strategy]
