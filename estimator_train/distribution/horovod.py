"""Trains synchronously in several processes, which exchange gradients by Horovod."""

import contextlib
import json
import logging
import os
import socket
import time
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from estimator_train.distribution import sockets
from estimator_train.distribution.devices import Devices
from estimator_train.distribution.engines import ClusterEngine
from estimator_train.distribution.process import LaunchedProcess, Process
from estimator_train.distribution.sockets import StartTimeout
from estimator_train.distribution.tf_config import Cluster
from estimator_train.errors import PeerLost, UserError
from estimator_train.settings import Settings
from estimator_train.system import json_values, storage
from estimator_train.tf_patches import strategies

_LOG = logging.getLogger('estimator_train')
# After an error of Horovod, the lost rank is found within this time.
_LOSS_DETECTION_SECS = 10.
_ADDRESS_FILE = 'rank_0_address.json'
_ADDRESS = json_values.fields({'launch_id': json_values.text, 'port': json_values.integer(1, 65535),
                               'hosts': json_values.list_of(json_values.text)})
_CONNECT_TIMEOUT_SECS, _RETRY_SECS = 5., .5
# MPI, or a launcher with support for MPI, sets one of these variables.
_MPI_VARIABLES = ('OMPI_COMM_WORLD_SIZE', 'PMI_SIZE', 'PMIX_RANK')


class HorovodEngine(ClusterEngine):
  """Trains with one replica in each rank of Horovod; see Engine.

  The ranks are the workers of TF_CONFIG, or the processes that horovodrun, mpirun or srun starts.
  """
  uses_server = False

  def __init__(self, settings: Settings, process: Process, devices: Devices) -> None:
    self._horovod = _import_horovod()
    self._rendezvous_server: Any = None
    super().__init__(settings, process, devices)
    # For TensorFlow, each rank trains alone. With TF_CONFIG, it would start a server.
    os.environ.pop('TF_CONFIG', None)

  def _wait_for_cluster(self) -> Cluster:
    launch = self.process.launch
    if launch is None:
      return super()._wait_for_cluster()
    if self.process.is_chief:
      cluster, self._listener = publish_address(launch, self.settings.run.folder)
      return cluster
    return wait_for_address(launch, self.settings.run.folder,
                            StartTimeout(self.settings.cluster.start_timeout_secs))

  def join(self, shared_values: Mapping[str, str]) -> None:
    import horovod
    super().join(dict(shared_values, Horovod=horovod.__version__))

  def _start_communication(self) -> None:
    if self.process.launch is not None and self.process.is_chief:
      remove_address(self.settings.run.folder)
    if not self._launcher_connects_ranks():
      self._connect_ranks()
    try:
      self._horovod.init()
    except Exception as error:  # Horovod raises errors of several classes.
      raise PeerLost('Horovod cannot connect the ranks: {}'.format(error)) from error
    process = self.process
    if (self._horovod.rank(), self._horovod.size()) != (process.rank, process.num_workers):
      raise UserError('Horovod must have the ranks of the launcher',
                      'rank {} of {} in Horovod, {} of {} in the launcher'.format(
                          self._horovod.rank(), self._horovod.size(), process.rank,
                          process.num_workers), 'start all ranks by the same launcher')
    _LOG.info('Horovod connects %d ranks by %s', process.num_workers,
              'MPI' if self._horovod.mpi_enabled() else 'Gloo')

  def _launcher_connects_ranks(self) -> bool:
    """Whether Horovod gets the addresses of all ranks from horovodrun or MPI."""
    return 'HOROVOD_GLOO_RENDEZVOUS_ADDR' in os.environ or (
        self.process.launch is not None
        and mpi_connects_ranks(os.environ, self._horovod.mpi_built()))

  def _connect_ranks(self) -> None:
    """Sets the variables by which Horovod finds the other ranks; the chief starts a server.

    The server listens on the port of the chief, which the rendezvous has released. It exchanges the
    addresses of the ranks. For Horovod, each process is a host of its own: Horovod needs hosts
    only for hierarchical operations.
    """
    host, port = sockets.split_address(self.cluster.address(self.cluster.chief))
    if self.process.is_chief:
      self._rendezvous_server = _start_rendezvous_server(port, self.process.num_workers)
    for name, value in _gloo_environment(self.process, host, port).items():
      os.environ.setdefault(name, value)

  def make_strategy(self) -> Optional[tf.distribute.Strategy]:
    return strategies.HorovodStrategy(self.devices.names[0])

  def hooks(self) -> Sequence[tf.train.SessionRunHook]:
    return (*super().hooks(), _BroadcastVariables())

  def _train_estimator(self, estimator: tf.estimator.Estimator, input_fn: Any,
                       hooks: Sequence[tf.train.SessionRunHook], max_steps: int) -> None:
    try:
      estimator.train(input_fn, hooks=hooks, max_steps=max_steps)
    except tf.errors.OpError as error:
      if 'Horovod' not in str(error):
        raise
      # An operation of Horovod fails if another rank has ended. The thread of Peers ends this
      # process, with the reason, as soon as it has found the lost rank.
      time.sleep(_LOSS_DETECTION_SECS)
      raise PeerLost('Horovod has failed: {}'.format(error.message)) from error


class _BroadcastVariables(tf.train.SessionRunHook):
  """Copies the variables of rank 0 to all ranks when a session has been created or restored."""

  def begin(self) -> None:
    self._broadcast = strategies.broadcast_variables()

  def after_create_session(self, session: tf.Session, coord: Any) -> None:
    session.run(self._broadcast)


def _import_horovod() -> Any:
  """Imports and returns `horovod.tensorflow`; raises a UserError if it is not installed."""
  try:
    import horovod.tensorflow  # Few users have installed it.
  except ImportError as error:
    raise UserError('--distribution_strategy=horovod requires Horovod with TensorFlow',
                    'the import of horovod.tensorflow fails ({})'.format(error),
                    'run scripts/install_horovod, or see docs/distribution.md') from error
  return horovod.tensorflow


def _start_rendezvous_server(port: int, size: int) -> Any:
  """Starts Horovod's server for the addresses of the ranks, which runs until the process ends."""
  from horovod.runner.common.util import hosts
  from horovod.runner.http import http_server
  from horovod.runner.util import threads
  server = http_server.RendezvousHTTPServer(('', port), http_server.RendezvousHandler, 0)
  server.init([hosts.SlotInfo(_hostname(rank), rank, 0, rank, size, 1, size)
               for rank in range(size)])
  threads.in_thread(server.serve_forever)
  return server


def _gloo_environment(process: Process, host: str, port: int) -> Dict[str, str]:
  """Returns Horovod's variables for a rank that finds the others by the server at an address."""
  assert process.rank is not None
  return {
      'HOROVOD_RANK': str(process.rank),
      'HOROVOD_SIZE': str(process.num_workers),
      'HOROVOD_LOCAL_RANK': '0',
      'HOROVOD_LOCAL_SIZE': '1',
      'HOROVOD_CROSS_RANK': str(process.rank),
      'HOROVOD_CROSS_SIZE': str(process.num_workers),
      'HOROVOD_HOSTNAME': _hostname(process.rank),
      'HOROVOD_CONTROLLER': 'gloo',
      'HOROVOD_CPU_OPERATIONS': 'gloo',
      'HOROVOD_GLOO_RENDEZVOUS_ADDR': host,
      'HOROVOD_GLOO_RENDEZVOUS_PORT': str(port),
      'HOROVOD_GLOO_IFACE': sockets.interface_of(sockets.route_to(host, port)),
  }


def _hostname(rank: int) -> str:
  """Returns the name of the host that Horovod assumes for a rank."""
  return 'rank-{}'.format(rank)


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


def publish_address(launch: LaunchedProcess, folder: str) -> Tuple[Cluster, socket.socket]:
  """Writes the address of this process, which has rank 0, for the other ranks.

  Args:
    launch: how this process was started.
    folder: a folder that all ranks share.

  Returns:
    The cluster, and the listener at the address of rank 0.
  """
  listener = sockets.listen(0)
  port = int(listener.getsockname()[1])
  hosts = sockets.own_addresses()
  storage.write_text(os.path.join(folder, _ADDRESS_FILE), json.dumps(
      {'launch_id': launch.launch_id, 'hosts': hosts, 'port': port}))
  return _make_cluster(launch, hosts[0], port), listener


def remove_address(folder: str) -> None:
  """Removes the file of `publish_address`."""
  os.remove(os.path.join(folder, _ADDRESS_FILE))


def wait_for_address(launch: LaunchedProcess, folder: str, timeout: StartTimeout) -> Cluster:
  """Waits until rank 0 has written its address and is reachable, and returns the cluster.

  Args:
    launch: how this process was started.
    folder: a folder that all ranks share.
    timeout: the timeout.

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
  """Returns the addresses in the file; none unless rank 0 of this launch has written it."""
  with contextlib.suppress(storage.DamagedFile):  # It may be of another program.
    record = storage.load_json(path, _ADDRESS)
    if record is not None and record['launch_id'] == launch_id:
      return [(host, record['port']) for host in record['hosts']]
  return []


def _make_cluster(launch: LaunchedProcess, host: str, port: int) -> Cluster:
  """Returns a cluster in which only the address of rank 0 is known; rendezvous finds the others."""
  addresses: List[str] = [':0'] * launch.num_processes
  addresses[0] = '{}:{}'.format('[{}]'.format(host) if ':' in host else host, port)
  return Cluster({'worker': tuple(addresses)}, launch.task)
