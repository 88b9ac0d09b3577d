"""Connects the members of a cluster to the chief before TensorFlow starts.

The members are all tasks except the evaluator. The chief listens at its address in TF_CONFIG, which
TensorFlow's server uses later. The other members connect to the chief, and send their shared
values, such as flags and versions. The chief refuses a member whose values differ from its own. A
member that loses its connection connects again. Once all members are registered, the chief closes
its listener and releases the members, which keep their connections; see cluster_peers.py.

The variable ESTIMATOR_TRAIN_CLUSTER_KEY authenticates the members and the chief: each proves, by an
HMAC of two random challenges, that it has the same key. Without the variable, the key is empty.

| from | message | content | when |
|---|---|---|---|
| chief | `challenge` | a random ID | once connected |
| member | `task` | its task; `challenge`: a random ID; `proof`: the HMAC | after `challenge` |
| chief | `wrong_key` | true | after a wrong `proof` |
| chief | `proof` | its own HMAC | after `task` |
| member | `values` | its shared values | after the chief's `proof` |
| member | `waiting` | true | each second |
| chief | `refused` | the name of a differing value; `is_known`: the chief has it | after `values` |
| chief | `taken` | true | if another process has registered as this task |
| chief | `missing` | up to 20 missing tasks | after `values`, and each second |
| chief | `go` | true | when all are registered |
"""

import contextlib
import hashlib
import hmac
import json
import logging
import secrets
import socket
import time
from typing import Any, Callable, Dict, Generator, Iterator, List, Optional, Sequence

from estimator_train.distribution import sockets, tf_config
from estimator_train.distribution.messages import (
  Connection,
  accept_connections,
  wait_until_readable,
)
from estimator_train.distribution.sockets import StartTimeout
from estimator_train.distribution.tf_config import Cluster, Task
from estimator_train.errors import UserError, printable

_POLL_SECS, _RETRY_SECS, _HEARTBEAT_SECS = .2, .5, 1.
_CONNECT_TIMEOUT_SECS = 5.
# How long a member waits for the first message of the chief, which the chief sends at once. If no
# message arrives, TensorFlow's server still has the port, because the chief has not yet noticed
# that the previous process of this task was lost. The member then connects again.
_ANSWER_TIMEOUT_SECS = 5.
_SILENCE_TIMEOUT_SECS = 10.
# The time that a process has to identify itself on a new connection, or to read a refusal.
_HANDSHAKE_TIMEOUT_SECS = 10.
# Of a longer value, such as 1,000 class names, only the beginning and a digest are sent.
_MAX_VALUE_CHARS = 200
_MAX_NAMES, _MAX_NAME_CHARS, _MAX_LOGGED_CHARS = 20, 40, 80
KEY_VARIABLE = 'ESTIMATOR_TRAIN_CLUSTER_KEY'
# Without a limit, processes outside the cluster could fill the disk that has the log.
_MAX_LOGGED_REFUSALS = 20
_NETWORK_RETRY_SECS, _LOG_EVERY_SECS = 1., 60.
_LOG = logging.getLogger('estimator_train')
_Registration = Generator[None, Dict[str, Any], None]


def wait_until_hosts_resolve(cluster: Cluster, timeout_secs: float,
                     clock: Callable[[], float] = time.monotonic,
                     sleep: Callable[[float], None] = time.sleep) -> None:
  """Checks the port of this task, and waits until the host names of all members can be resolved.

  In Kubernetes, the host name of a pod cannot be resolved until the pod has started.

  Raises:
    UserError: the port of this task is in use, or a host name is not resolved in time.
  """
  tf_config.listen_on_task_port(cluster).close()
  deadline, next_log_at = clock() + timeout_secs, clock()
  while True:
    error = tf_config.find_host_name_error(cluster)
    if error is None:
      return
    if clock() > deadline:
      raise error
    if clock() >= next_log_at:
      next_log_at += _LOG_EVERY_SECS
      _LOG.info('%s; retrying for another %.0f s', error, deadline - clock())
    sleep(_NETWORK_RETRY_SECS)


def connect(cluster: Cluster, shared_values: Dict[str, str], timeout: StartTimeout,
            listener: Optional[socket.socket] = None, key: str = '') -> Dict[Task, Connection]:
  """Waits until all members are connected to the chief.

  Args:
    shared_values: values that must be the same on all members, by name.
    listener: only for the chief; this function closes it. None to listen on the port in TF_CONFIG.
    key: the value of ESTIMATOR_TRAIN_CLUSTER_KEY; empty if it is not set.

  Returns:
    The connections to all other members on the chief, and to the chief on the other members.

  Raises:
    PeerLost: a member did not connect in time.
    UserError: a shared value or the key of this task differs from the chief's, another process has
      registered as this task, or the port of the chief cannot be opened.
  """
  shared_values = {name: _digest_if_long(value) for name, value in dict(
      shared_values, TF_CONFIG=cluster.task_summary).items()}
  if not cluster.is_chief:
    return {cluster.chief: _MemberRegistrar(cluster, shared_values, timeout, key).connect()}
  if len(cluster.members) == 1:
    return {}
  address = cluster.address(cluster.chief)
  if not key and not sockets.is_loopback(address):
    timeout.log('{} accepts every process that has the same flags, because {} is not set'.format(
        address, KEY_VARIABLE))
  with listener or tf_config.listen_on_task_port(cluster) as open_listener:
    chief = _ChiefRegistrar(cluster, shared_values, timeout, open_listener, key)
    while chief.missing_tasks():
      chief.handle_events()
  # The listener is closed before the release, because the released members expect TensorFlow's
  # server on this port.
  return chief.release_members()


def _digest_if_long(value: str) -> str:
  if len(value) <= _MAX_VALUE_CHARS:
    return value
  digest = hashlib.sha256(value.encode('utf-8', 'surrogateescape')).hexdigest()
  return '{}... (SHA-256 {})'.format(value[:_MAX_VALUE_CHARS // 2], digest)


def _make_proof(key: str, sender: str, chief_challenge: str, member_challenge: str,
                task: Task) -> str:
  """Returns the proof that the sender, `chief` or `member`, has the key."""
  return hmac.new(key.encode('utf-8', 'surrogateescape'), json.dumps(
      [sender, chief_challenge, member_challenge, *task]).encode(), 'sha256').hexdigest()


def _contains_proof(message: Dict[str, Any], expected_proof: str) -> bool:
  return hmac.compare_digest(
      message.get('proof', '').encode('utf-8', 'replace'), expected_proof.encode())


class _ChiefRegistrar:
  """Registers the members that connect to the chief."""

  def __init__(self, cluster: Cluster, shared_values: Dict[str, str], timeout: StartTimeout,
               listener: socket.socket, key: str) -> None:
    self._cluster, self._shared_values, self._key = cluster, shared_values, key
    self._timeout, self._listener = timeout, listener
    self._registrations: Dict[Connection, _Registration] = {}
    self._deadlines: Dict[Connection, float] = {}
    self._registered_members: Dict[Task, Connection] = {}
    self._last_heartbeat_at = timeout.clock()
    self._num_refusals = 0

  def missing_tasks(self) -> List[Task]:
    return [task for task in self._cluster.members
            if task != self._cluster.task and task not in self._registered_members]

  def handle_events(self) -> None:
    """Waits briefly for messages and new connections, and handles them."""
    wait_until_readable([self._listener, *self._registrations], _POLL_SECS)
    now = self._timeout.clock()
    for connection, registration in list(self._registrations.items()):
      messages = connection.receive()
      connection.flush()
      if connection.end_reason or now > self._deadlines[connection]:
        connection.close()
        del self._registrations[connection], self._deadlines[connection]
        self._registered_members = {
            task: member for task, member in self._registered_members.items()
            if member is not connection}
        continue
      for message in messages:
        with contextlib.suppress(StopIteration):  # A refusal ends the registration.
          registration.send(message)
    for connection in accept_connections(self._listener):
      self._registrations[connection] = self._run_registration(connection)
      next(self._registrations[connection])
    if now - self._last_heartbeat_at >= _HEARTBEAT_SECS:
      self._last_heartbeat_at = now
      for member in self._registered_members.values():
        if member.has_sent_all:
          self._send_missing_tasks(member)
    missing = self.missing_tasks()
    if missing:
      self._timeout.log_or_raise([str(task) for task in missing])

  def release_members(self) -> Dict[Task, Connection]:
    """Releases the members, and returns their connections. Closes all other connections."""
    for connection in set(self._registrations).difference(self._registered_members.values()):
      connection.close()
    for member in self._registered_members.values():
      member.send(go=True)
    return self._registered_members

  def _run_registration(self, connection: Connection) -> _Registration:
    """Identifies a process, and registers or refuses it. Each `yield` receives a message."""
    self._deadlines[connection] = self._timeout.clock() + _HANDSHAKE_TIMEOUT_SECS
    challenge = secrets.token_hex()
    connection.send(challenge=challenge)

    message = yield from _wait_for_message_with('task')
    task = Task(*message['task'])
    challenges = challenge, message.get('challenge', ''), task
    if not _contains_proof(message, _make_proof(self._key, 'member', *challenges)):
      self._log_refusal('refused {}: it has another {}'.format(task, KEY_VARIABLE))
      self._refuse(connection, wrong_key=True)
      return
    connection.send(proof=_make_proof(self._key, 'chief', *challenges))

    values = (yield from _wait_for_message_with('values'))['values']
    differing_name = self._find_differing_name(task, values)
    if differing_name is not None:
      # The value of the chief is not sent, because the process may not belong to the cluster.
      self._refuse(connection, refused=differing_name,
                   is_known=differing_name in self._shared_values)
    elif task == self._cluster.task or task not in self._cluster.members:
      self._refuse(connection, taken=True)
    else:
      if task in self._registered_members:
        # Either the earlier connection is a lost one of this task, or another process has the same
        # task by mistake. Only that other process reads the refusal.
        self._log_refusal('another process has started as {}'.format(task))
        self._refuse(self._registered_members[task], taken=True)
      self._registered_members[task] = connection
      self._send_missing_tasks(connection)
      while self._registered_members.get(task) is connection:
        self._deadlines[connection] = self._timeout.clock() + _SILENCE_TIMEOUT_SECS
        yield

  def _find_differing_name(self, task: Task, values: Dict[str, str]) -> Optional[str]:
    """Returns the name of a value that differs from the chief's, and logs it; None if none does."""
    # A parameter server builds no model, so it sends fewer values, and only these are compared.
    names = values if task.type == 'ps' else [*self._shared_values, *values]
    name = next((name for name in names if values.get(name) != self._shared_values.get(name)), None)
    if name is not None:
      self._log_refusal('refused {}: it has {}={}, the chief has {}'.format(
          task, *(printable(str(text))[:_MAX_LOGGED_CHARS] for text in (name, values.get(name))),
          self._shared_values.get(name)))
    return name

  def _send_missing_tasks(self, member: Connection) -> None:
    member.send(missing=[str(task) for task in self.missing_tasks()[:_MAX_NAMES]])

  def _refuse(self, connection: Connection, **message: Any) -> None:
    connection.send(**message)
    connection.end_sending()
    self._deadlines[connection] = self._timeout.clock() + _HANDSHAKE_TIMEOUT_SECS

  def _log_refusal(self, text: str) -> None:
    self._num_refusals += 1
    if self._num_refusals <= _MAX_LOGGED_REFUSALS:
      self._timeout.log(text)
    elif self._num_refusals == _MAX_LOGGED_REFUSALS + 1:
      self._timeout.log('refused further processes, which are not logged')


def _wait_for_message_with(field: str) -> Generator[None, Dict[str, Any], Dict[str, Any]]:
  """Waits for a message that has a field, and ignores the messages before it."""
  message = yield
  while field not in message:
    message = yield
  return message


class _MemberRegistrar:
  """Registers this task with the chief."""

  def __init__(self, cluster: Cluster, shared_values: Dict[str, str], timeout: StartTimeout,
               key: str) -> None:
    self._cluster, self._shared_values, self._key = cluster, shared_values, key
    self._timeout = timeout
    self._missing: Sequence[str] = [str(cluster.chief)]

  def connect(self) -> Connection:
    """Returns a connection to the chief once the chief has released this member."""
    address = self._cluster.address(self._cluster.chief)
    while True:
      with contextlib.suppress(OSError):
        connection = Connection(sockets.connect(
            *sockets.split_address(address), timeout_secs=_CONNECT_TIMEOUT_SECS))
        try:
          self._register(connection)
          return connection
        except BaseException:
          connection.close()
          raise
      self._timeout.log_or_raise(['{} at {}'.format(self._cluster.chief, address)])
      time.sleep(_RETRY_SECS)

  def _register(self, connection: Connection) -> None:
    """Registers this task with the chief; raises a ConnectionError if the chief does not answer."""
    messages, task = self._receive_messages(connection), self._cluster.task
    challenges = next(message['challenge'] for message in messages
                      if 'challenge' in message), secrets.token_hex(), task
    connection.send(task=list(task), challenge=challenges[1],
                    proof=_make_proof(self._key, 'member', *challenges))
    proof_or_refusal = next(
        message for message in messages if 'proof' in message or 'wrong_key' in message)
    if not _contains_proof(proof_or_refusal, _make_proof(self._key, 'chief', *challenges)):
      raise UserError('this {} must have the key of the chief'.format(task.type),
                      '{} is {} here, and not the same on the chief'.format(
                          KEY_VARIABLE, 'set' if self._key else 'not set'),
                      'set it to the same value for all tasks, or for none')
    connection.send(values=self._shared_values)
    for message in self._receive_messages(connection, sends_heartbeats=True):
      if message.get('go'):
        return
      if message.get('taken'):
        raise UserError('another process runs as {}'.format(task),
                        'TF_CONFIG: task.type={} task.index={}'.format(*task),
                        'stop that process, or give each process its own task')
      if 'refused' in message:
        raise self._make_mismatch_error(message['refused'], bool(message.get('is_known')))
      self._missing = [name[:_MAX_NAME_CHARS]
                       for name in message.get('missing', ())] or self._missing

  def _receive_messages(self, connection: Connection,
                        sends_heartbeats: bool = False) -> Iterator[Dict[str, Any]]:
    """Yields the messages of the chief; raises a ConnectionError if the chief does not answer.

    Messages that the caller has not taken stay in `connection.unhandled_messages`.
    """
    clock = self._timeout.clock
    last_message_at = last_heartbeat_at = clock()
    silence_secs = _SILENCE_TIMEOUT_SECS if sends_heartbeats else _ANSWER_TIMEOUT_SECS
    while not connection.end_reason and clock() - last_message_at <= silence_secs:
      wait_until_readable([connection], _POLL_SECS)
      connection.unhandled_messages = connection.receive()
      if connection.unhandled_messages:
        last_message_at, silence_secs = clock(), _SILENCE_TIMEOUT_SECS
      while connection.unhandled_messages:
        yield connection.unhandled_messages.pop(0)
      if sends_heartbeats and clock() - last_heartbeat_at >= _HEARTBEAT_SECS:
        last_heartbeat_at = clock()
        connection.send(waiting=True)
      self._timeout.log_or_raise(self._missing)
    raise ConnectionError(connection.end_reason or 'no answer')

  def _make_mismatch_error(self, name: str, is_known: bool) -> UserError:
    """Returns the error for a value that differs from the chief's, or is unknown to the chief."""
    return UserError(
        'this {} must match the chief'.format(self._cluster.task.type),
        '{} here and {} on the chief, whose log has both'.format(
            '{}={}'.format(name, self._shared_values[name]) if name in self._shared_values
            else 'no ' + name, 'another value' if is_known else 'none'),
        'give all tasks the same ' + (
            'TF_CONFIG, except for its task' if name == 'TF_CONFIG' else name))
