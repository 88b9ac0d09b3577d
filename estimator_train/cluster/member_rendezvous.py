"""Runs the rendezvous on a member that is not the chief."""

from typing import Any, Dict, List, Optional, Sequence

from estimator_train.cluster import network
from estimator_train.cluster.mesh import Address, Mesh
from estimator_train.cluster.messages import Connection, is_port, parse_task, wait_readable
from estimator_train.cluster.start_timeout import StartTimeout
from estimator_train.cluster.tf_config import Cluster, Task
from estimator_train.errors import UserError

_CONNECT_TIMEOUT_SECS = 5.
_RETRY_SECS = .5
_POLL_SECS = .2
_HEARTBEAT_SECS = 1.
# The chief answers a `hello` at once. If no answer arrives within this time, TensorFlow's server
# uses the port: the chief is still training with the previous process of this task, and has not
# detected yet that the previous process was lost. This member then tries again.
_ANSWER_TIMEOUT_SECS = 5.
_SILENCE_TIMEOUT_SECS = 30.
_MAX_NAME_CHARS = 40


def connect_as_member(cluster: Cluster, shared_values: Dict[str, str], mesh: Mesh,
                      timeout: StartTimeout) -> None:
  """Waits until the chief reports that all members are connected; see rendezvous.connect_peers.

  On return, `mesh` contains the connections.
  """
  host, port = network.split_address(cluster.address(cluster.chief))
  missing_chief = '{} at {}'.format(cluster.chief, cluster.address(cluster.chief))
  while True:
    try:
      connection = Connection(network.connect(host, port, _CONNECT_TIMEOUT_SECS))
    except OSError:
      pass
    else:
      try:
        connection.send(hello=1, task=list(cluster.task), facts=shared_values, port=mesh.port)
        chief = _ChiefConnection(cluster, shared_values, mesh, timeout, connection)
        if chief.wait_for_release():
          return
      finally:
        connection.close()
      mesh.abandon()
    timeout.log_or_raise([missing_chief])
    wait_readable(mesh.sockets(), _RETRY_SECS)
    mesh.poll()


class _ChiefConnection:
  """Handles the messages of the chief on one connection, after the `hello` of this member."""

  def __init__(self, cluster: Cluster, shared_values: Dict[str, str], mesh: Mesh,
               timeout: StartTimeout, connection: Connection) -> None:
    self._cluster, self._shared_values, self._mesh = cluster, shared_values, mesh
    self._timeout, self._connection = timeout, connection
    self._last_message_at: Optional[float] = None
    self._missing: Sequence[str] = [str(cluster.chief)]

  def wait_for_release(self) -> bool:
    """Waits until the chief releases this member; returns False if the connection is lost."""
    clock = self._timeout.clock
    started_at = clock()
    heartbeat_sent_at = started_at
    while not self._connection.end_reason:
      wait_readable([self._connection] + self._mesh.sockets(), _POLL_SECS)
      now = clock()
      for message in self._connection.receive():
        self._last_message_at = now
        if self._handle_message(message):
          return True
      was_complete = self._mesh.is_complete
      self._mesh.poll()
      if now - heartbeat_sent_at >= _HEARTBEAT_SECS or self._mesh.is_complete != was_complete:
        heartbeat_sent_at = now
        self._connection.send(meshed=self._mesh.attempt_id if self._mesh.is_complete else None)
      self._connection.flush()
      silent_since, timeout_secs = (
          (started_at, _ANSWER_TIMEOUT_SECS) if self._last_message_at is None
          else (self._last_message_at, _SILENCE_TIMEOUT_SECS))
      if now - silent_since > timeout_secs:
        return False
      self._timeout.log_or_raise(self._describe_missing())
    return False

  def _describe_missing(self) -> Sequence[str]:
    """Returns descriptions of the tasks or connections that this member waits for."""
    if self._mesh.attempt_id is not None and self._mesh.missing:
      return ['a connection to {}'.format(task) for task in self._mesh.missing]
    return self._missing

  def _handle_message(self, message: Dict[str, Any]) -> bool:
    """Handles a message of the chief; returns whether the message releases this member."""
    attempt_id = message.get('run')
    if 'refused' in message:
      raise _refusal_error(self._cluster.task, self._shared_values, message)
    if message.get('taken'):
      raise UserError('another process already runs as {}'.format(self._cluster.task),
                      'TF_CONFIG: task.type={} task.index={}'.format(*self._cluster.task),
                      'stop that process, or give each process its own task')
    if 'go' in message:
      return self._mesh.is_complete and message['go'] == self._mesh.attempt_id
    if isinstance(message.get('missing'), list):
      self._missing = [str(name)[:_MAX_NAME_CHARS] for name in message['missing']] or self._missing
      if attempt_id is None and self._mesh.attempt_id is not None:
        self._mesh.abandon()  # A member was lost; the chief will start another attempt.
    if isinstance(attempt_id, str) and isinstance(message.get('members'), list):
      self._mesh.start(attempt_id, self._addresses(message['members']))
    return False

  def _addresses(self, members: Sequence[Any]) -> Dict[Task, List[Address]]:
    """Returns the addresses to try for each member.

    The first address has the host of TF_CONFIG. The second address has the IP address from which
    the member has connected to the chief. For the chief, the second address has the IP address to
    which this task has connected.

    Args:
      members: the list `members` in a message of the chief.
    """
    addresses: Dict[Task, List[Address]] = {}
    for entry in members:
      task = parse_task(entry.get('task')) if isinstance(entry, dict) else None
      if task not in self._cluster.members or not is_port(entry.get('port')):
        continue
      assert task is not None
      ip_address = (network.peer_ip_address(self._connection.socket)
                    if task == self._cluster.chief else str(entry.get('host')))
      hosts = [network.split_address(self._cluster.address(task))[0], ip_address]
      addresses[task] = [(host, entry['port']) for host in dict.fromkeys(hosts) if host]
    return addresses


def _refusal_error(task: Task, shared_values: Dict[str, str],
                   message: Dict[str, Any]) -> UserError:
  """Returns an error with this task's shared value that differs from that of the chief."""
  name = str(message['refused'])
  given = '{} here and {} on the chief, whose log has both'.format(
      '{}={}'.format(name, shared_values[name]) if name in shared_values else 'no ' + name,
      'another value' if message.get('is_known') else 'none')
  if name.startswith('--'):
    return UserError('this {} must be started with the flags of the chief'.format(task.type),
                     given, 'give all tasks the same flags')
  if name == 'TF_CONFIG':
    return UserError('this {} must be started with the cluster of the chief'.format(task.type),
                     given, 'give all tasks the same TF_CONFIG, except for its task')
  return UserError('this {} must match the chief'.format(task.type), given,
                   'make {} the same for all tasks'.format(name))
