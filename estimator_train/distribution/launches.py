"""Finds the rank of a process that horovodrun, mpirun or srun has started, and connects the ranks.

These launchers pass each process its rank, but not the addresses of the other processes. Rank 0
writes its own address to a file in `--model_dir`, and the other ranks wait for this file.
"""

import json
import os
import socket
import time
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from estimator_train.distribution import network
from estimator_train.distribution.network import StartTimeout
from estimator_train.distribution.tf_config import Cluster, Task
from estimator_train.errors import UserError
from estimator_train.system import atomic

_ADDRESS_FILE = 'rank_0_address.json'
_CONNECT_TIMEOUT_SECS = 5.
_RETRY_SECS = .5
# The variables with the rank, the number of ranks, and the rank among the processes of the host.
_RANK_VARIABLES = (
    ('HOROVOD_RANK', 'HOROVOD_SIZE', 'HOROVOD_LOCAL_RANK'),
    ('OMPI_COMM_WORLD_RANK', 'OMPI_COMM_WORLD_SIZE', 'OMPI_COMM_WORLD_LOCAL_RANK'),
    ('PMI_RANK', 'PMI_SIZE', 'MPI_LOCALRANKID'),
    ('SLURM_PROCID', 'SLURM_STEP_NUM_TASKS', 'SLURM_LOCALID'),
)
# MPI, or a launcher with support for MPI, sets one of these variables.
_MPI_VARIABLES = ('OMPI_COMM_WORLD_SIZE', 'PMI_SIZE', 'PMIX_RANK')
# The values of these variables, if they are set, are the same on all ranks of a launch, and differ
# from those of other launches.
_LAUNCH_ID_VARIABLES = (
    'HOROVOD_GLOO_RENDEZVOUS_ADDR', 'HOROVOD_GLOO_RENDEZVOUS_PORT', 'PMIX_NAMESPACE',
    'OMPI_MCA_orte_precondition_transports', 'SLURM_JOB_ID', 'SLURM_STEP_ID',
    'SLURM_RESTART_COUNT')


class Launch(NamedTuple):
  """One process of those that a launcher has started together.

  Attributes:
    rank: index of this process, from 0.
    size: number of processes.
    local_rank: index of this process among the processes on the same host, from 0.
    launch_id: text that is the same for all processes of the launch.
  """
  rank: int
  size: int
  local_rank: int
  launch_id: str

  @property
  def task(self) -> Task:
    """The task of this process in a cluster that has only workers."""
    return Task('worker', self.rank)


def find_launch(environ: Mapping[str, str]) -> Optional[Launch]:
  """Returns how a launcher has started this process; None if no launcher has started it.

  Raises:
    UserError: a variable of the launcher is invalid.
  """
  for rank_name, size_name, local_rank_name in _RANK_VARIABLES:
    if rank_name not in environ or size_name not in environ:
      continue
    rank, size = (_parse_number(environ, name) for name in (rank_name, size_name))
    local_rank = _parse_number(environ, local_rank_name) if local_rank_name in environ else 0
    if rank >= size:
      raise UserError('the rank of a process must be less than the number of ranks',
                      '{}={} {}={}'.format(rank_name, rank, size_name, size),
                      'start the program by horovodrun, mpirun or srun, or unset these variables')
    launch_id = ' '.join(environ.get(name, '') for name in _LAUNCH_ID_VARIABLES).strip()
    return Launch(rank, size, local_rank, launch_id)
  return None


def mpi_connects_ranks(environ: Mapping[str, str], is_mpi_built: bool) -> bool:
  """Whether MPI connects the ranks of a launch, so that Horovod needs no addresses.

  srun sets variables of PMI or PMIx only with --mpi=pmi2 or --mpi=pmix. Without them, MPI would
  make a world of its own of each process.

  Args:
    environ: the environment variables; HOROVOD_CONTROLLER, `mpi` or `gloo`, takes precedence.
    is_mpi_built: whether Horovod has been built with MPI.
  """
  controller = environ.get('HOROVOD_CONTROLLER', '').lower()
  return is_mpi_built and controller != 'gloo' and (
      controller == 'mpi' or any(name in environ for name in _MPI_VARIABLES))


def _parse_number(environ: Mapping[str, str], name: str) -> int:
  text = environ[name]
  if not text.isdecimal():
    raise UserError(name + ' must be a whole number', '{}={}'.format(name, text),
                    'start the program by horovodrun, mpirun or srun, or unset this variable')
  return int(text)


def publish_address(launch: Launch, folder: str) -> Tuple[Cluster, socket.socket]:
  """Writes the address of this process, which has rank 0, for the other ranks.

  Args:
    launch: how this process was started.
    folder: a folder that all ranks share.

  Returns:
    The cluster, and the listener at the address of rank 0.
  """
  listener = network.listen(0)
  port = int(listener.getsockname()[1])
  hosts = network.own_addresses()
  atomic.write_text(os.path.join(folder, _ADDRESS_FILE), json.dumps(
      {'launch_id': launch.launch_id, 'hosts': hosts, 'port': port}))
  return _make_cluster(launch, hosts[0], port), listener


def remove_address(folder: str) -> None:
  """Removes the file of `publish_address`."""
  os.remove(os.path.join(folder, _ADDRESS_FILE))


def wait_for_address(launch: Launch, folder: str, start_timeout_secs: float,
                     log: Callable[[str], None],
                     clock: Callable[[], float] = time.monotonic,
                     sleep: Callable[[float], None] = time.sleep) -> Cluster:
  """Waits until rank 0 has written its address and is reachable.

  Args:
    launch: how this process was started.
    folder: a folder that all ranks share.
    start_timeout_secs: seconds to wait.
    log: called with each line to log.
    clock: returns the time in seconds, from any origin.
    sleep: waits for a number of seconds.

  Returns:
    The cluster.

  Raises:
    PeerLost: rank 0 was not reachable in time.
  """
  path = os.path.join(folder, _ADDRESS_FILE)
  timeout = StartTimeout(start_timeout_secs, log, clock)
  while True:
    record = _read_record(path)
    if record.get('launch_id') == launch.launch_id:
      host = _reachable_host(record['hosts'], record['port'])
      if host is not None:
        return _make_cluster(launch, host, record['port'])
    timeout.log_or_raise(['worker 0, whose address is read from {} (all ranks must share '
                          '--model_dir)'.format(path)])
    sleep(_RETRY_SECS)


def _read_record(path: str) -> Dict[str, Any]:
  """Returns the content of the file; an empty dict if the file is missing or invalid."""
  try:
    with open(path, encoding='utf-8') as file:
      record = json.load(file)
  except (OSError, ValueError):
    return {}
  return record if isinstance(record, dict) else {}


def _reachable_host(hosts: Sequence[str], port: int) -> Optional[str]:
  """Returns the first host that accepts a connection; None if none does."""
  for host in hosts:
    try:
      network.connect(host, port, _CONNECT_TIMEOUT_SECS).close()
      return host
    except OSError:
      continue
  return None


def _make_cluster(launch: Launch, host: str, port: int) -> Cluster:
  """Returns a cluster in which only the address of rank 0 is known; rendezvous finds the others."""
  addresses: List[str] = [':0'] * launch.size
  addresses[0] = '{}:{}'.format('[{}]'.format(host) if ':' in host else host, port)
  return Cluster({'worker': tuple(addresses)}, launch.task)
