"""Connects the ranks of Horovod, which exchange gradients; see HorovodEngine."""

import contextlib
import json
import logging
import os
import socket
import time
from typing import Any, Dict, List, Mapping, Tuple

from estimator_train.distribution import rendezvous, sockets
from estimator_train.distribution.cluster_peers import ClusterPeers
from estimator_train.distribution.process import LaunchedProcess, Process
from estimator_train.distribution.sockets import StartTimeout
from estimator_train.distribution.tf_config import Cluster
from estimator_train.errors import PeerLost, UserError
from estimator_train.settings import Settings
from estimator_train.system import json_values, storage

_LOG = logging.getLogger('estimator_train')
_ADDRESS_FILE = 'rank_0_address.json'
_check_address_record = json_values.fields({
    'launch_id': json_values.text, 'port': json_values.integer(1, 65535),
    'hosts': json_values.list_of(json_values.text)})
_CONNECT_TIMEOUT_SECS, _RETRY_SECS = 5., .5
# MPI, or a launcher with support for MPI, sets one of these variables.
_MPI_VARIABLES = ('OMPI_COMM_WORLD_SIZE', 'PMI_SIZE', 'PMIX_RANK')


class HorovodPeers(ClusterPeers):
  """The ranks of Horovod, from TF_CONFIG, horovodrun, mpirun or srun."""

  def __init__(self, settings: Settings, process: Process) -> None:
    try:
      import horovod.tensorflow  # Not imported at the top, because few users have installed it.
    except ImportError as error:
      raise UserError('--distribution_strategy=horovod requires Horovod with TensorFlow',
                      'the import of horovod.tensorflow fails ({})'.format(error),
                      'run scripts/install_horovod, or see docs/distribution.md') from error
    self._horovod, self._process = horovod, process
    self._model_dir = settings.run.required_model_dir
    self._address_server: Any = None
    cluster, listener, timeout_secs = process.cluster, None, settings.cluster.start_timeout_secs
    if process.launch is None:
      assert cluster is not None
      rendezvous.wait_until_hosts_resolve(cluster, timeout_secs)
    elif process.is_chief:
      cluster, listener = publish_address(process.launch, self._model_dir)
    else:
      cluster = wait_for_address(process.launch, self._model_dir, StartTimeout(timeout_secs))
    super().__init__(settings, cluster, listener)

  def connect(self, shared_values: Mapping[str, str]) -> None:
    super().connect(dict(shared_values, Horovod=self._horovod.__version__))
    process, horovod_tf = self._process, self._horovod.tensorflow
    if process.launch is not None and process.is_chief:
      os.remove(os.path.join(self._model_dir, _ADDRESS_FILE))
    launcher_connects_ranks = 'HOROVOD_GLOO_RENDEZVOUS_ADDR' in os.environ or (
        process.launch is not None and mpi_connects_ranks(os.environ, horovod_tf.mpi_built()))
    if not launcher_connects_ranks:
      # The rendezvous has closed its listener on the port of the chief, so the port is free.
      host, port = sockets.split_address(self._cluster.address(self._cluster.chief))
      if process.is_chief:
        self._address_server = _start_address_server(port, process.num_workers)
      for name, value in _gloo_environment(process, host, port).items():
        os.environ.setdefault(name, value)
    try:
      horovod_tf.init()
    except Exception as error:  # Horovod raises errors of several classes.
      raise PeerLost('Horovod cannot connect the ranks: {}'.format(error)) from error
    if (horovod_tf.rank(), horovod_tf.size()) != (process.rank, process.num_workers):
      raise UserError('Horovod must have the ranks of the launcher',
                      'rank {} of {} in Horovod, {} of {} in the launcher'.format(
                          horovod_tf.rank(), horovod_tf.size(), process.rank, process.num_workers),
                      'start all ranks by the same launcher')
    _LOG.info('Horovod connects %d ranks by %s', process.num_workers,
              'MPI' if horovod_tf.mpi_enabled() else 'Gloo')


def _start_address_server(port: int, size: int) -> Any:
  """Starts the server by which the ranks exchange their addresses. It runs until the process ends.

  Horovod gets a separate host name for each rank, because it needs the real hosts only for
  hierarchical operations.
  """
  from horovod.runner.common.util import hosts
  from horovod.runner.http import http_server
  from horovod.runner.util import threads
  server = http_server.RendezvousHTTPServer(('', port), http_server.RendezvousHandler, 0)
  server.init([hosts.SlotInfo(_unique_host_name(rank), rank, 0, rank, size, 1, size)
               for rank in range(size)])
  threads.in_thread(server.serve_forever)
  return server


def _gloo_environment(process: Process, host: str, port: int) -> Dict[str, str]:
  """Returns the environment variables by which Horovod in this rank finds the address server."""
  assert process.rank is not None
  return {
      'HOROVOD_RANK': str(process.rank),
      'HOROVOD_SIZE': str(process.num_workers),
      'HOROVOD_LOCAL_RANK': '0',
      'HOROVOD_LOCAL_SIZE': '1',
      'HOROVOD_CROSS_RANK': str(process.rank),
      'HOROVOD_CROSS_SIZE': str(process.num_workers),
      'HOROVOD_HOSTNAME': _unique_host_name(process.rank),
      'HOROVOD_CONTROLLER': 'gloo',
      'HOROVOD_CPU_OPERATIONS': 'gloo',
      'HOROVOD_GLOO_RENDEZVOUS_ADDR': host,
      'HOROVOD_GLOO_RENDEZVOUS_PORT': str(port),
      'HOROVOD_GLOO_IFACE': _find_interface(host, port),
  }


def _find_interface(host: str, port: int) -> str:
  """Returns the name of the network interface that leads to a host; '' if unknown."""
  import psutil
  family, socket_type, protocol, _, address = socket.getaddrinfo(
      host, port, 0, socket.SOCK_DGRAM)[0]
  with socket.socket(family, socket_type, protocol) as udp_socket:
    udp_socket.connect(address)  # Selects the interface, but sends nothing.
    local_address = udp_socket.getsockname()[0]
  return next((name for name, addresses in psutil.net_if_addrs().items()
               if any(address.address == local_address for address in addresses)), '')


def _unique_host_name(rank: int) -> str:
  return 'rank-{}'.format(rank)


def mpi_connects_ranks(environ: Mapping[str, str], is_mpi_built: bool) -> bool:
  """Whether MPI connects the ranks of a launch, so that Horovod needs no addresses.

  srun sets the variables of MPI only with --mpi=pmi2 or --mpi=pmix. Without them, each process
  would be the only rank of its MPI. If HOROVOD_CONTROLLER is `mpi` or `gloo`, it takes precedence.

  Args:
    is_mpi_built: whether Horovod has been built with MPI.
  """
  controller = environ.get('HOROVOD_CONTROLLER', '').lower()
  return is_mpi_built and controller != 'gloo' and (
      controller == 'mpi' or any(name in environ for name in _MPI_VARIABLES))


def publish_address(launch: LaunchedProcess, folder: str) -> Tuple[Cluster, socket.socket]:
  """Writes the address of this process, rank 0, to a folder that all ranks share.

  Returns:
    The cluster, and the listener at the address of rank 0.
  """
  listener = sockets.open_listener(0)
  port = int(listener.getsockname()[1])
  hosts = _find_ip_addresses()
  storage.write_text(os.path.join(folder, _ADDRESS_FILE), json.dumps(
      {'launch_id': launch.launch_id, 'hosts': hosts, 'port': port}))
  return _make_cluster(launch, hosts[0], port), listener


def _find_ip_addresses() -> List[str]:
  """Returns the IP addresses of this host; the loopback address only if there is no other one."""
  import psutil  # Not imported at the top, because few runs need psutil.
  ip_addresses = [address.address for addresses in psutil.net_if_addrs().values()
                  for address in addresses if address.family in (socket.AF_INET, socket.AF_INET6)]
  # Other hosts cannot use link-local IPv6 addresses, such as fe80::1%eth0, because these name an
  # interface of this host.
  return [address for address in ip_addresses
          if not address.startswith(('127.', 'fe80:')) and address != '::1'] or ['127.0.0.1']


def wait_for_address(launch: LaunchedProcess, folder: str, timeout: StartTimeout) -> Cluster:
  """Waits until rank 0 has written its address and is reachable, and returns the cluster.

  Raises:
    PeerLost: rank 0 was not reachable in time.
  """
  path = os.path.join(folder, _ADDRESS_FILE)
  while True:
    for host, port in _read_addresses(path, launch.launch_id):
      with contextlib.suppress(OSError):
        sockets.connect(host, port, _CONNECT_TIMEOUT_SECS).close()
        return _make_cluster(launch, host, port)
    timeout.log_or_raise(['worker 0, whose address is read from {} (all ranks must share '
                          '--model_dir)'.format(path)])
    time.sleep(_RETRY_SECS)


def _read_addresses(path: str, launch_id: str) -> List[Tuple[str, int]]:
  """Returns the addresses in the file; [] unless rank 0 of this launch has written the file."""
  with contextlib.suppress(storage.DamagedFile):  # Another program may have written the file.
    record = storage.load_json(path, _check_address_record)
    if record is not None and record['launch_id'] == launch_id:
      return [(host, record['port']) for host in record['hosts']]
  return []


def _make_cluster(launch: LaunchedProcess, host: str, port: int) -> Cluster:
  """Returns a cluster in which only rank 0 has an address, because no other rank listens."""
  addresses: List[str] = [':0'] * launch.num_processes
  addresses[0] = '{}:{}'.format('[{}]'.format(host) if ':' in host else host, port)
  return Cluster({'worker': tuple(addresses)}, launch.task)
