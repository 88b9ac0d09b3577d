"""Determines the role of this process in a run, from TF_CONFIG or the variables of a launcher."""

from typing import Mapping, NamedTuple, Optional

from estimator_train.distribution import tf_config
from estimator_train.distribution.tf_config import Cluster, Task
from estimator_train.errors import UserError

CHIEF, WORKER, PARAMETER_SERVER, EVALUATOR = 'chief', 'worker', 'ps', 'evaluator'

# The variables of each launcher: the rank, the number of ranks, and the rank on the host.
_RANK_VARIABLES = (
    ('HOROVOD_RANK', 'HOROVOD_SIZE', 'HOROVOD_LOCAL_RANK'),
    ('OMPI_COMM_WORLD_RANK', 'OMPI_COMM_WORLD_SIZE', 'OMPI_COMM_WORLD_LOCAL_RANK'),
    ('PMI_RANK', 'PMI_SIZE', 'MPI_LOCALRANKID'),
    ('SLURM_PROCID', 'SLURM_STEP_NUM_TASKS', 'SLURM_LOCALID'),
)
# The values of these variables identify a launch, and are the same on all of its ranks. A launcher
# sets only some of the variables.
_LAUNCH_ID_VARIABLES = (
    'HOROVOD_GLOO_RENDEZVOUS_ADDR', 'HOROVOD_GLOO_RENDEZVOUS_PORT', 'PMIX_NAMESPACE',
    'OMPI_MCA_orte_precondition_transports', 'SLURM_JOB_ID', 'SLURM_STEP_ID',
    'SLURM_RESTART_COUNT')


class LaunchedProcess(NamedTuple):
  """One of the processes that horovodrun, mpirun or srun has started together.

  Attributes:
    rank: the index among these processes, from 0.
    local_rank: the index among the processes on the same host, from 0.
    launch_id: the same for all these processes; may be empty.
  """
  rank: int
  num_processes: int
  local_rank: int
  launch_id: str

  @property
  def task(self) -> Task:
    """The task of this process, in a cluster that has only workers."""
    return Task('worker', self.rank)


class Process(NamedTuple):
  """One process of a run.

  Attributes:
    rank: the index among the processes that train, from 0; None if this process does not train.
    num_workers: the number of processes that train.
    role: CHIEF, WORKER, PARAMETER_SERVER or EVALUATOR. The chief writes the files of the run.
    cluster: None if TF_CONFIG names no cluster.
    launch: None if the rank does not come from horovodrun, mpirun or srun.
  """
  rank: Optional[int] = 0
  num_workers: int = 1
  role: str = CHIEF
  cluster: Optional[Cluster] = None
  launch: Optional[LaunchedProcess] = None

  @property
  def is_chief(self) -> bool:
    return self.role == CHIEF

  @property
  def has_evaluator(self) -> bool:
    """Whether a separate process evaluates the checkpoints."""
    return self.cluster is not None and self.cluster.has_evaluator

  @property
  def name(self) -> str:
    """The name of the task, such as `worker 1`."""
    if self.launch is not None:
      return str(self.launch.task)
    return self.role if self.cluster is None else str(self.cluster.task)

  @property
  def local_rank(self) -> int:
    """The index of this process among the processes that train on the same host, from 0."""
    if self.launch is not None:
      return self.launch.local_rank
    return self.cluster.local_rank if self.cluster is not None else 0


SINGLE_PROCESS = Process()


def identify_process(environ: Mapping[str, str], strategy: str) -> Process:
  """Returns the place of this process in its run.

  It comes from TF_CONFIG or, for the strategy `horovod` without TF_CONFIG, from the launcher.

  Raises:
    UserError: TF_CONFIG or another variable is invalid, or TF_CONFIG does not fit the strategy.
  """
  cluster = tf_config.parse_cluster(environ)
  if cluster is not None or strategy in ('multi_worker_mirrored', 'parameter_server'):
    _check_launch_has_tasks(find_launched_process(environ), cluster)
  if cluster is None:
    launch = find_launched_process(environ) if strategy == 'horovod' else None
    if launch is None or launch.num_processes == 1:
      return SINGLE_PROCESS
    role = WORKER if launch.rank else CHIEF
    return Process(launch.rank, launch.num_processes, role, launch=launch)
  _check_cluster_suits(cluster, strategy)
  if len(cluster.members) == 1 and not cluster.has_evaluator:
    return SINGLE_PROCESS
  role = CHIEF if cluster.is_chief else cluster.task.type
  return Process(cluster.rank, len(cluster.workers), role, cluster)


def _check_launch_has_tasks(launch: Optional[LaunchedProcess], cluster: Optional[Cluster]) -> None:
  """Raises a UserError if each of several processes of a launcher would train alone."""
  num_tasks = 1 if cluster is None else len(cluster.members) + cluster.has_evaluator
  if launch is not None and launch.num_processes > num_tasks == 1:
    raise UserError(
        'each process of a launcher must be a task of TF_CONFIG', '{} processes, but {}'.format(
            launch.num_processes, 'TF_CONFIG has no cluster' if cluster is None
            else 'cluster has ' + cluster.task_summary),
        'start one process per task, such as one per node')


def _check_cluster_suits(cluster: Cluster, strategy: str) -> None:
  """Raises a UserError if the cluster does not suit the --distribution_strategy."""
  server_fields = ['cluster.ps[{}]={}'.format(task.index, cluster.address(task))
                   for task in cluster.parameter_servers]
  found = 'cluster has ' + cluster.task_summary
  flag = '--distribution_strategy=' + strategy
  if strategy in ('multi_worker_mirrored', 'horovod'):
    if server_fields:
      raise UserError(tf_config.ERROR_PREFIX + flag + ' uses no parameter servers',
                      server_fields[0],
                      'leave cluster.ps out, or give --distribution_strategy=parameter_server')
  elif strategy == 'parameter_server':
    for task_type, required in (('chief', 'a chief'), ('ps', 'a parameter server')):
      if task_type not in cluster.addresses:
        raise UserError(tf_config.ERROR_PREFIX + flag + ' needs ' + required, found,
                        'add "{}": ["HOST:PORT"] to the cluster of every task'.format(task_type))
  elif len(cluster.members) > 1:
    raise UserError(
        '{}it names several tasks, but {} runs in one'.format(tf_config.ERROR_PREFIX, flag), found,
        'give --distribution_strategy={} to every task, or unset TF_CONFIG'.format(
            'parameter_server' if server_fields else 'multi_worker_mirrored'))


def find_launched_process(environ: Mapping[str, str]) -> Optional[LaunchedProcess]:
  """Returns the place of this process in its launch; None if no launcher has started it.

  Raises:
    UserError: a variable of the launcher is invalid.
  """
  for rank_name, size_name, local_rank_name in _RANK_VARIABLES:
    if rank_name not in environ or size_name not in environ:
      continue
    rank, size = (_parse_rank_variable(environ, name) for name in (rank_name, size_name))
    local_rank = _parse_rank_variable(environ, local_rank_name) if local_rank_name in environ else 0
    if rank >= size:
      raise UserError('the rank of a process must be less than the number of ranks',
                      '{}={} {}={}'.format(rank_name, rank, size_name, size),
                      'start the program by horovodrun, mpirun or srun, or unset these variables')
    launch_id = ' '.join(environ.get(name, '') for name in _LAUNCH_ID_VARIABLES).strip()
    return LaunchedProcess(rank, size, local_rank, launch_id)
  return None


def _parse_rank_variable(environ: Mapping[str, str], name: str) -> int:
  text = environ[name]
  if not text.isdecimal():
    raise UserError(name + ' must be a whole number', '{}={}'.format(name, text),
                    'start the program by horovodrun, mpirun or srun, or unset this variable')
  return int(text)
