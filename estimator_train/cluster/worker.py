"""Which process of a run this is, however the processes of the run find each other."""

import logging
import time
from typing import Callable, Mapping, NamedTuple, Optional

from estimator_train.cluster import tf_config
from estimator_train.cluster.tf_config import Cluster

CHIEF, WORKER, PARAMETER_SERVER, EVALUATOR = 'chief', 'worker', 'ps', 'evaluator'

_RETRY_SECS, _LOG_EVERY_SECS = 1., 60.
_LOG = logging.getLogger('estimator_train')


class Worker(NamedTuple):
  """One process of a run.

  Attributes:
    rank: its place among the processes that train; None: it does not train.
    size: how many processes train.
    role: CHIEF, which writes the files of the run; WORKER; PARAMETER_SERVER; or EVALUATOR.
    cluster: the tasks and addresses of TF_CONFIG; None: this process trains alone.
  """
  rank: Optional[int] = 0
  size: int = 1
  role: str = CHIEF
  cluster: Optional[Cluster] = None

  @property
  def is_chief(self) -> bool:
    """Whether this process writes the files of the run."""
    return self.role == CHIEF

  @property
  def has_evaluator(self) -> bool:
    """Whether a process of its own evaluates the checkpoints."""
    return self.cluster is not None and self.cluster.has_evaluator

  @property
  def name(self) -> str:
    """The name of its task, such as `worker 1`."""
    return self.role if self.cluster is None else str(self.cluster.task)


ALONE = Worker()


def find(environ: Mapping[str, str], strategy: str) -> Worker:
  """Returns which process of a run by this --distribution_strategy this one is.

  Args:
    environ: the environment, which may have a TF_CONFIG.
    strategy: `--distribution_strategy`.

  Raises:
    UserError: TF_CONFIG is wrong, or not for this strategy.
  """
  cluster = tf_config.read(environ)
  if cluster is None:
    return ALONE
  tf_config.check_for(cluster, strategy)
  if len(cluster.members) == 1 and not cluster.has_evaluator:
    return ALONE
  kind = cluster.task.type
  role = CHIEF if cluster.is_chief else kind
  return Worker(cluster.worker_number, cluster.num_workers, role, cluster)


def wait_for_network(cluster: Cluster, timeout_secs: float,
                     clock: Callable[[], float] = time.monotonic,
                     sleep: Callable[[float], None] = time.sleep) -> None:
  """Waits until the name of each host has an address: in Kubernetes that is when its pod is up.

  Raises:
    UserError: the port of this task is taken, or a host has no address after this time.
  """
  deadline = clock() + timeout_secs
  log_at = clock()
  while True:
    try:
      tf_config.check_network(cluster)
      return
    except tf_config.NoAddress as error:
      if clock() > deadline:
        raise
      if clock() >= log_at:
        log_at += _LOG_EVERY_SECS
        _LOG.info('%s; retrying for another %.0f s', error, deadline - clock())
      sleep(_RETRY_SECS)
