"""Connects the members of a cluster to the chief before TensorFlow starts.

The members are all tasks except the evaluator. The chief listens at its address in TF_CONFIG, which
TensorFlow's server uses later. The other members connect to the chief, and send their shared
values, such as flags and versions. The chief refuses a member whose values differ from its own.
Once all members are registered, the chief closes its listener and releases the members, which
keep their connections; see peers.py. A member whose connection ends before connects again.

The variable ESTIMATOR_TRAIN_CLUSTER_KEY authenticates the members: each proves, by an HMAC of a
random challenge of the chief, that it has the same key. Without the variable, the key is empty.

| from | message | content | when |
|---|---|---|---|
| chief | `challenge` | a random ID | once connected |
| member | `task` | its task; `values`: its shared values; `proof`: the HMAC | after `challenge` |
| member | `waiting` | true | each second |
| chief | `wrong_key` | true | after `task` |
| chief | `refused` | the name of a value that differs; `is_known`: if it has one | after `task` |
| chief | `taken` | true | if another process has registered as this task |
| chief | `missing` | up to 20 missing tasks | after `task`, and each second |
| chief | `go` | true | when all are registered |
"""

import hashlib
import hmac
import ipaddress
import secrets
import socket
import time
from typing import Any, Dict, List, Optional, Sequence, Tuple

from estimator_train.distribution import network
from estimator_train.distribution.messages import Connection, parse_task, wait_readable
from estimator_train.distribution.network import StartTimeout
from estimator_train.distribution.tf_config import (
  Cluster,
  Task,
  describe_task_counts,
  listen_on_own_port,
)
from estimator_train.errors import UserError, printable

_POLL_SECS, _RETRY_SECS, _HEARTBEAT_SECS = .2, .5, 1.
_CONNECT_TIMEOUT_SECS = 5.
# The chief answers at once. If no answer arrives within this time, TensorFlow's server uses the
# port: the chief is still training with the previous process of this task, and has not detected yet
# that the previous process was lost. This member then tries again.
_ANSWER_TIMEOUT_SECS = 5.
_SILENCE_TIMEOUT_SECS = 10.
# How long a process may take to identify itself on a new connection, and to read a refusal.
_HANDSHAKE_TIMEOUT_SECS, _REFUSAL_TIMEOUT_SECS = 10., 2.
# Longer values, such as 1,000 class names, are sent as their beginning and a digest.
_MAX_VALUE_CHARS = 200
_MAX_SENT_NAMES, _MAX_NAME_CHARS, _MAX_LOGGED_CHARS = 20, 40, 80
KEY_VARIABLE = 'ESTIMATOR_TRAIN_CLUSTER_KEY'
# A process that is not of this cluster could otherwise fill the disk of the log.
_MAX_LOGGED_REFUSALS = 20


def connect(cluster: Cluster, shared_values: Dict[str, str], timeout: StartTimeout,
            listener: Optional[socket.socket] = None, key: str = '') -> Dict[Task, Connection]:
  """Waits for all other members, and returns once all of them are connected to the chief.

  Args:
    cluster: the cluster, of which this process is a member.
    shared_values: values that must be the same on all members, such as flags and versions, by name.
    timeout: the timeout.
    listener: on the chief, a listener at its address, which this function closes. None: this
      function opens the port in TF_CONFIG.
    key: the value of ESTIMATOR_TRAIN_CLUSTER_KEY; empty if it is not set.

  Returns:
    On the chief, a connection to each other member; on another member, one to the chief.

  Raises:
    PeerLost: a member did not connect in time.
    UserError: a shared value or the key of this task differs from that of the chief, another
      process has registered as this task, or the chief's port cannot be opened.
  """
  shared_values = {name: _shorten(value) for name, value in dict(
      shared_values, TF_CONFIG=describe_task_counts(cluster)).items()}
  if not cluster.is_chief:
    return {cluster.chief: _connect_to_chief(cluster, shared_values, timeout, key)}
  if len(cluster.members) == 1:
    return {}
  address = cluster.address(cluster.chief)
  if not key and not _is_loopback(address):
    timeout.log('{} accepts every process that has the same flags, because {} is not set'.format(
        address, KEY_VARIABLE))
  with listener or listen_on_own_port(cluster) as open_listener:
    rendezvous = _ChiefRendezvous(cluster, shared_values, timeout, open_listener, key)
    try:
      while rendezvous.missing_tasks():
        rendezvous.poll()
    except BaseException:
      rendezvous.close()
      raise
  # The listener has to be closed before the release, because the released members expect
  # TensorFlow's server on this port.
  return rendezvous.release()


def _shorten(value: str) -> str:
  if len(value) <= _MAX_VALUE_CHARS:
    return value
  digest = hashlib.sha256(value.encode('utf-8', 'surrogateescape')).hexdigest()
  return '{}... (SHA-256 {})'.format(value[:_MAX_VALUE_CHARS // 2], digest)


def _is_loopback(address: str) -> bool:
  host, _ = network.split_address(address)
  try:
    return ipaddress.ip_address(host).is_loopback
  except ValueError:
    return host == 'localhost'


def _make_proof(key: str, challenge: str, task: Task) -> str:
  return hmac.new(key.encode('utf-8', 'surrogateescape'),
                  '{} {}'.format(challenge, task).encode('utf-8', 'replace'), 'sha256').hexdigest()


class _Member:
  """A registered process: its connection, and the time of its last message."""

  def __init__(self, connection: Connection, now: float) -> None:
    self.connection, self.heard_at = connection, now


class _ChiefRendezvous:
  """Registers the processes that connect to the chief."""

  def __init__(self, cluster: Cluster, shared_values: Dict[str, str], timeout: StartTimeout,
               listener: socket.socket, key: str) -> None:
    self._cluster, self._shared_values, self._key = cluster, shared_values, key
    self._timeout, self._listener = timeout, listener
    # Connections that are not registered, each with its challenge and when to close it.
    self._strangers: Dict[Connection, Tuple[str, float]] = {}
    self._members: Dict[Task, _Member] = {}
    self._heartbeat_sent_at = timeout.clock()
    self._num_refusals = 0

  def missing_tasks(self) -> List[Task]:
    """Returns the members that are not registered."""
    return [task for task in self._cluster.members
            if task != self._cluster.task and task not in self._members]

  def poll(self) -> None:
    """Waits briefly for messages and new connections, and handles them."""
    wait_readable([self._listener, *self._strangers, *self._member_connections()], _POLL_SECS)
    now = self._timeout.clock()
    self._receive_from_members(now)
    for connection in _accept_connections(self._listener):
      challenge = secrets.token_hex()
      connection.send(challenge=challenge)
      self._strangers[connection] = challenge, now + _HANDSHAKE_TIMEOUT_SECS
    for connection, (_, close_at) in list(self._strangers.items()):
      messages = connection.receive()
      if connection.end_reason or now > close_at:
        self._strangers.pop(connection)
        connection.close()
      else:
        for message in messages[:1]:
          self._admit(connection, message, now)
    if now - self._heartbeat_sent_at >= _HEARTBEAT_SECS:
      self._heartbeat_sent_at = now
      for connection in self._member_connections():
        if connection.has_sent_all:
          self._send_missing(connection)
    missing = self.missing_tasks()
    if missing:
      self._timeout.log_or_raise([str(task) for task in missing])

  def release(self) -> Dict[Task, Connection]:
    """Releases the members, and returns their connections; closes all others."""
    for connection in self._member_connections():
      connection.send(go=True)
    connections = {task: member.connection for task, member in self._members.items()}
    self._members = {}
    self.close()
    return connections

  def close(self) -> None:
    """Closes all connections."""
    for connection in [*self._strangers, *self._member_connections()]:
      connection.close()

  def _member_connections(self) -> List[Connection]:
    return [member.connection for member in self._members.values()]

  def _receive_from_members(self, now: float) -> None:
    """Handles the messages of the registered members, and removes the lost members."""
    for task, member in list(self._members.items()):
      if member.connection.receive():
        member.heard_at = now
      member.connection.flush()
      if member.connection.end_reason or now - member.heard_at > _SILENCE_TIMEOUT_SECS:
        self._members.pop(task).connection.close()

  def _admit(self, connection: Connection, message: Dict[str, Any], now: float) -> None:
    """Registers a process as a member, or refuses it; ignores other messages."""
    task, values = parse_task(message.get('task')), message.get('values')
    if task is None or not isinstance(values, dict):
      return
    expected = _make_proof(self._key, self._strangers[connection][0], task)
    proof = str(message.get('proof')).encode('utf-8', 'replace')
    if not hmac.compare_digest(proof, expected.encode()):
      self._log_refusal('refused {}: it has another {}'.format(task, KEY_VARIABLE))
      self._refuse(connection, now, wrong_key=True)
      return
    # Compares only the values that a parameter server sends: they are fewer than those of the
    # chief, because a parameter server builds no model.
    names = values if task.type == 'ps' else [*self._shared_values, *values]
    name = next((name for name in names if values.get(name) != self._shared_values.get(name)), None)
    if name is not None:
      self._log_refusal('refused {}: it has {}={}, the chief has {}'.format(
          task, *(printable(str(text))[:_MAX_LOGGED_CHARS] for text in (name, values.get(name))),
          self._shared_values.get(name)))
      # Without the chief's value, because the process may not belong to the cluster.
      self._refuse(connection, now, refused=name, is_known=name in self._shared_values)
    elif task == self._cluster.task or task not in self._cluster.members:
      self._refuse(connection, now, taken=True)
    else:
      if task in self._members:
        # The earlier connection is of the same process, of one that this process replaces, or of
        # one that has the same task by mistake, and reads this message.
        self._log_refusal('another process has started as {}'.format(task))
        self._refuse(self._members[task].connection, now, taken=True)
      self._strangers.pop(connection)
      self._members[task] = _Member(connection, now)
      self._send_missing(connection)

  def _send_missing(self, connection: Connection) -> None:
    connection.send(missing=[str(task) for task in self.missing_tasks()[:_MAX_SENT_NAMES]])

  def _refuse(self, connection: Connection, now: float, **message: Any) -> None:
    connection.send(**message)
    connection.end_sending()
    self._strangers[connection] = '', now + _REFUSAL_TIMEOUT_SECS

  def _log_refusal(self, text: str) -> None:
    self._num_refusals += 1
    if self._num_refusals <= _MAX_LOGGED_REFUSALS:
      self._timeout.log(text)
    elif self._num_refusals == _MAX_LOGGED_REFUSALS + 1:
      self._timeout.log('refused further processes, which are not logged')


def _accept_connections(listener: socket.socket) -> List[Connection]:
  """Accepts and returns all connections that are waiting at a listener."""
  connections = []
  try:
    while True:
      connections.append(Connection(listener.accept()[0]))
  except OSError:  # No connection is waiting, or the next waiting connection has already ended.
    return connections


def _connect_to_chief(cluster: Cluster, shared_values: Dict[str, str],
                      timeout: StartTimeout, key: str) -> Connection:
  """Returns a connection to the chief once the chief has released this member."""
  host, port = network.split_address(cluster.address(cluster.chief))
  while True:
    try:
      connection = Connection(network.connect(host, port, _CONNECT_TIMEOUT_SECS))
    except OSError:
      pass
    else:
      try:
        if _wait_for_release(connection, cluster, shared_values, timeout, key):
          return connection
      except BaseException:
        connection.close()
        raise
      connection.close()
    timeout.log_or_raise(['{} at {}'.format(cluster.chief, cluster.address(cluster.chief))])
    time.sleep(_RETRY_SECS)


def _wait_for_release(connection: Connection, cluster: Cluster, shared_values: Dict[str, str],
                      timeout: StartTimeout, key: str) -> bool:
  """Waits until the chief releases this member; returns False if the connection is lost."""
  missing: Sequence[str] = [str(cluster.chief)]
  heard_at, sent_at = timeout.clock(), float('inf')
  silence_secs = _ANSWER_TIMEOUT_SECS
  while not connection.end_reason and timeout.clock() - heard_at <= silence_secs:
    wait_readable([connection], _POLL_SECS)
    messages = connection.receive()
    for index, message in enumerate(messages):
      heard_at, silence_secs = timeout.clock(), _SILENCE_TIMEOUT_SECS
      if message.get('go') is True:
        connection.unread = messages[index + 1:]
        return True
      _raise_refusal(cluster.task, shared_values, message, bool(key))
      if 'challenge' in message:
        connection.send(task=list(cluster.task), values=shared_values, proof=_make_proof(
            key, str(message['challenge']), cluster.task))
        sent_at = timeout.clock()
      if isinstance(message.get('missing'), list):
        missing = [str(name)[:_MAX_NAME_CHARS] for name in message['missing']] or missing
    if timeout.clock() - sent_at >= _HEARTBEAT_SECS:
      sent_at = timeout.clock()
      connection.send(waiting=True)
    timeout.log_or_raise(missing)
  return False


def _raise_refusal(task: Task, shared_values: Dict[str, str], message: Dict[str, Any],
                   has_key: bool) -> None:
  """Raises a UserError if the chief has refused this task."""
  if message.get('wrong_key'):
    raise UserError('this {} must have the key of the chief'.format(task.type),
                    '{} is {} here, and not the same on the chief'.format(
                        KEY_VARIABLE, 'set' if has_key else 'not set'),
                    'set it to the same value for all tasks, or for none')
  if message.get('taken'):
    raise UserError('another process runs as {}'.format(task),
                    'TF_CONFIG: task.type={} task.index={}'.format(*task),
                    'stop that process, or give each process its own task')
  if 'refused' not in message:
    return
  name = str(message['refused'])
  given = '{} here and {} on the chief, whose log has both'.format(
      '{}={}'.format(name, shared_values[name]) if name in shared_values else 'no ' + name,
      'another value' if message.get('is_known') else 'none')
  if name.startswith('--'):
    raise UserError('this {} must be started with the flags of the chief'.format(task.type),
                    given, 'give all tasks the same flags')
  if name == 'TF_CONFIG':
    raise UserError('this {} must be started with the cluster of the chief'.format(task.type),
                    given, 'give all tasks the same TF_CONFIG, except for its task')
  raise UserError('this {} must match the chief'.format(task.type), given,
                  'make {} the same for all tasks'.format(name))
