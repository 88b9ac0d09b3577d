"""Process: which process of a run this is, and whether it trains, serves variables or evaluates."""

import logging
import time
from typing import Callable, Mapping, NamedTuple, Optional

from estimator_train.distribution import launches, tf_config
from estimator_train.distribution.launches import Launch
from estimator_train.distribution.tf_config import Cluster, Task
from estimator_train.errors import UserError

CHIEF, WORKER, PARAMETER_SERVER, EVALUATOR = 'chief', 'worker', 'ps', 'evaluator'

_RETRY_SECS, _LOG_EVERY_SECS = 1., 60.
_LOG = logging.getLogger('estimator_train')


class Process(NamedTuple):
  """One process of a run.

  Attributes:
    rank: index among the processes that train, from 0; None if this process does not train.
    size: number of processes that train.
    role: CHIEF, WORKER, PARAMETER_SERVER or EVALUATOR. The chief writes the files of the run.
    cluster: the cluster of TF_CONFIG; None if TF_CONFIG names no cluster.
    launch: how horovodrun, mpirun or srun has started this process; None otherwise.
  """
  rank: Optional[int] = 0
  size: int = 1
  role: str = CHIEF
  cluster: Optional[Cluster] = None
  launch: Optional[Launch] = None

  @property
  def is_chief(self) -> bool:
    """Whether this process writes the files of the run."""
    return self.role == CHIEF

  @property
  def has_evaluator(self) -> bool:
    """Whether a separate process evaluates the checkpoints."""
    return self.cluster is not None and self.cluster.has_evaluator

  @property
  def name(self) -> str:
    """The name of the task, such as `worker 1`."""
    if self.launch is not None:
      return str(Task('worker', self.launch.rank))
    return self.role if self.cluster is None else str(self.cluster.task)

  @property
  def local_rank(self) -> int:
    """Index of this process among the processes that train on the same host, from 0."""
    if self.launch is not None:
      return self.launch.local_rank
    return self.cluster.local_rank if self.cluster is not None else 0


SINGLE_PROCESS = Process()


def this_process(environ: Mapping[str, str], strategy: str) -> Process:
  """Makes the Worker that describes this process.

  Args:
    environ: the environment variables, which may include TF_CONFIG. With the strategy `horovod` and
      without TF_CONFIG, the variables of horovodrun, mpirun or srun determine the rank.
    strategy: the value of `--distribution_strategy`.

  Raises:
    UserError: TF_CONFIG or another variable is invalid, or TF_CONFIG does not fit the strategy.
  """
  cluster = tf_config.parse_cluster(environ)
  if cluster is not None or strategy in ('multi_worker_mirrored', 'parameter_server'):
    _check_launch(launches.find_launch(environ), cluster)
  if cluster is None:
    launch = launches.find_launch(environ) if strategy == 'horovod' else None
    if launch is None or launch.size == 1:
      return SINGLE_PROCESS
    return Process(launch.rank, launch.size, WORKER if launch.rank else CHIEF, launch=launch)
  check_strategy(cluster, strategy)
  if len(cluster.members) == 1 and not cluster.has_evaluator:
    return SINGLE_PROCESS
  role = CHIEF if cluster.is_chief else cluster.task.type
  return Process(cluster.rank, cluster.num_workers, role, cluster)


def _check_launch(launch: Optional[Launch], cluster: Optional[Cluster]) -> None:
  """Raises a UserError if one of several processes of a launcher would train alone."""
  num_tasks = 1 if cluster is None else len(cluster.members) + cluster.has_evaluator
  if launch is not None and launch.size > num_tasks == 1:
    raise UserError(
        'each process of a launcher must be a task of TF_CONFIG', '{} processes, but {}'.format(
            launch.size, 'TF_CONFIG has no cluster' if cluster is None
            else 'cluster has ' + tf_config.describe_task_counts(cluster)),
        'start one process per task, such as one per node')


def check_strategy(cluster: Cluster, strategy: str) -> None:
  """Raises a UserError if the --distribution_strategy cannot be used on the cluster."""
  servers = ['cluster.ps[{}]={}'.format(task.index, cluster.address(task))
             for task in cluster.parameter_servers]
  counts = 'cluster has ' + tf_config.describe_task_counts(cluster)
  flag = '--distribution_strategy=' + strategy
  if strategy in ('multi_worker_mirrored', 'horovod'):
    if servers:
      raise UserError(tf_config.ERROR_PREFIX + flag + ' uses no parameter servers', servers[0],
                      'leave cluster.ps out, or give --distribution_strategy=parameter_server')
  elif strategy == 'parameter_server':
    for task_type, required in (('chief', 'a chief'), ('ps', 'a parameter server')):
      if task_type not in cluster.addresses:
        raise UserError(tf_config.ERROR_PREFIX + flag + ' needs ' + required, counts,
                        'add "{}": ["HOST:PORT"] to the cluster of every task'.format(task_type))
  elif len(cluster.members) > 1:
    raise UserError(
        '{}it names several tasks, but {} runs in one'.format(tf_config.ERROR_PREFIX, flag), counts,
        'give --distribution_strategy={} to every task, or unset TF_CONFIG'.format(
            'parameter_server' if servers else 'multi_worker_mirrored'))


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
  deadline = clock() + timeout_secs
  next_log_at = clock()
  while True:
    try:
      tf_config.check_network(cluster)
      return
    except tf_config.UnresolvedHost as error:
      if clock() > deadline:
        raise
      if clock() >= next_log_at:
        next_log_at += _LOG_EVERY_SECS
        _LOG.info('%s; retrying for another %.0f s', error, deadline - clock())
      sleep(_RETRY_SECS)
