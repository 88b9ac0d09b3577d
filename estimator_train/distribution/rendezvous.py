"""Connects the members of a cluster to the chief before TensorFlow starts.

The members are all tasks except the evaluator. The chief listens at its address in TF_CONFIG, which
TensorFlow's server uses later. The other members connect to the chief, and send their shared
values, such as flags and versions. The chief refuses a member whose values differ from its own.
Once all members are registered, the chief closes its listener and releases the members, which
keep their connections; see peers.py. A member whose connection ends earlier connects again.

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
from typing import Any, Callable, Dict, List, Optional, Sequence

from estimator_train.distribution import sockets, tf_config
from estimator_train.distribution.sockets import Connection, StartTimeout, wait_readable
from estimator_train.distribution.tf_config import Cluster, Task
from estimator_train.errors import UserError, printable

_POLL_SECS, _RETRY_SECS, _HEARTBEAT_SECS = .2, .5, 1.
_CONNECT_TIMEOUT_SECS = 5.
# The chief answers at once. No answer within this time means that TensorFlow's server still has the
# port, because the chief has not yet noticed that the previous process of this task was lost. The
# member then tries again.
_ANSWER_TIMEOUT_SECS = 5.
_SILENCE_TIMEOUT_SECS = 10.
# How long a process may take to identify itself on a new connection, or to read a refusal.
_HANDSHAKE_TIMEOUT_SECS = 10.
# Longer values, such as 1,000 class names, are sent as their beginning and a digest.
_MAX_VALUE_CHARS = 200
_MAX_NAMES, _MAX_NAME_CHARS, _MAX_LOGGED_CHARS = 20, 40, 80
KEY_VARIABLE = 'ESTIMATOR_TRAIN_CLUSTER_KEY'
# A process that is not of this cluster could otherwise fill the disk of the log.
_MAX_LOGGED_REFUSALS = 20
_NETWORK_RETRY_SECS, _LOG_EVERY_SECS = 1., 60.
_LOG = logging.getLogger('estimator_train')


def wait_for_network(cluster: Cluster, timeout_secs: float,
                     clock: Callable[[], float] = time.monotonic,
                     sleep: Callable[[float], None] = time.sleep) -> None:
  """Checks the port of this task, and waits until the host names of all members can be resolved.

  In Kubernetes, the host name of a pod cannot be resolved until the pod has started.

  Raises:
    UserError: the port of this task is in use, or a host name cannot be resolved in time.
  """
  tf_config.listen_on_own_port(cluster).close()
  deadline, next_log_at = clock() + timeout_secs, clock()
  while True:
    error = tf_config.find_unresolved_host(cluster)
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
      shared_values, TF_CONFIG=tf_config.describe_task_counts(cluster)).items()}
  if not cluster.is_chief:
    return {cluster.chief: _connect_to_chief(cluster, shared_values, timeout, key)}
  if len(cluster.members) == 1:
    return {}
  address = cluster.address(cluster.chief)
  if not key and not sockets.is_loopback(address):
    timeout.log('{} accepts every process that has the same flags, because {} is not set'.format(
        address, KEY_VARIABLE))
  with listener or tf_config.listen_on_own_port(cluster) as open_listener:
    rendezvous = _ChiefRendezvous(cluster, shared_values, timeout, open_listener, key)
    while rendezvous.missing_tasks():
      rendezvous.poll()
  # The listener has to be closed before the release, because the released members expect
  # TensorFlow's server on this port.
  return rendezvous.release()


def _shorten(value: str) -> str:
  if len(value) <= _MAX_VALUE_CHARS:
    return value
  digest = hashlib.sha256(value.encode('utf-8', 'surrogateescape')).hexdigest()
  return '{}... (SHA-256 {})'.format(value[:_MAX_VALUE_CHARS // 2], digest)


def _make_proof(key: str, sender: str, chief_challenge: str, member_challenge: str,
                task: Task) -> bytes:
  """Returns the proof of the chief or of a member, the sender, that it has the key."""
  return hmac.new(key.encode('utf-8', 'surrogateescape'), json.dumps(
      [sender, chief_challenge, member_challenge, *task]).encode(), 'sha256').hexdigest().encode()


def _is_proof(proof: Any, expected: bytes) -> bool:
  return hmac.compare_digest(str(proof).encode('utf-8', 'replace'), expected)


class _Caller:
  """A process that has connected to the chief.

  Attributes:
    connection: the connection.
    challenge: the random ID that its proof must contain; empty once the process is refused.
    task: the task of the process, once it has proved that it has the key.
    close_at: when to close the connection.
  """

  def __init__(self, connection: Connection, close_at: float) -> None:
    self.connection, self.close_at = connection, close_at
    self.challenge = secrets.token_hex()
    self.task: Optional[Task] = None


class _ChiefRendezvous:
  """Registers the processes that connect to the chief."""

  def __init__(self, cluster: Cluster, shared_values: Dict[str, str], timeout: StartTimeout,
               listener: socket.socket, key: str) -> None:
    self._cluster, self._shared_values, self._key = cluster, shared_values, key
    self._timeout, self._listener = timeout, listener
    self._unregistered: List[_Caller] = []
    self._members: Dict[Task, _Caller] = {}
    self._heartbeat_sent_at = timeout.clock()
    self._num_refusals = 0

  def missing_tasks(self) -> List[Task]:
    """Returns the members that are not registered."""
    return [task for task in self._cluster.members
            if task != self._cluster.task and task not in self._members]

  def poll(self) -> None:
    """Waits briefly for messages and new connections, and handles them."""
    callers = [*self._members.values(), *self._unregistered]
    wait_readable([self._listener, *(caller.connection for caller in callers)], _POLL_SECS)
    now = self._timeout.clock()
    for caller in callers:
      self._receive(caller, now)
    for connection in sockets.accept_connections(self._listener):
      self._unregistered.append(_Caller(connection, now + _HANDSHAKE_TIMEOUT_SECS))
      connection.send(challenge=self._unregistered[-1].challenge)
    if now - self._heartbeat_sent_at >= _HEARTBEAT_SECS:
      self._heartbeat_sent_at = now
      for member in self._members.values():
        if member.connection.has_sent_all:
          self._send_missing(member)
    missing = self.missing_tasks()
    if missing:
      self._timeout.log_or_raise([str(task) for task in missing])

  def release(self) -> Dict[Task, Connection]:
    """Releases the members, and returns their connections; closes all others."""
    for caller in self._unregistered:
      caller.connection.close()
    for member in self._members.values():
      member.connection.send(go=True)
    return {task: member.connection for task, member in self._members.items()}

  def _receive(self, caller: _Caller, now: float) -> None:
    """Handles what a process has sent, and removes the process if it is lost."""
    messages = caller.connection.receive()
    caller.connection.flush()
    is_member = caller not in self._unregistered
    if messages and is_member:
      caller.close_at = now + _SILENCE_TIMEOUT_SECS
    if caller.connection.end_reason or now > caller.close_at:
      caller.connection.close()
      if not is_member:
        self._unregistered.remove(caller)
      elif caller.task is not None:
        del self._members[caller.task]
    # An unregistered process sends one message, and then waits for the answer.
    elif messages and not is_member and caller.challenge:
      if caller.task is None:
        self._authenticate(caller, messages[0], now)
      elif isinstance(messages[0].get('values'), dict):
        self._admit(caller, caller.task, messages[0]['values'], now)

  def _authenticate(self, caller: _Caller, message: Dict[str, Any], now: float) -> None:
    """Checks the proof of a process, and sends that of the chief; ignores other messages."""
    task = tf_config.parse_task(message.get('task'))
    if task is None:
      return
    challenges = caller.challenge, str(message.get('challenge')), task
    if _is_proof(message.get('proof'), _make_proof(self._key, 'member', *challenges)):
      caller.task = task
      caller.connection.send(proof=_make_proof(self._key, 'chief', *challenges).decode())
    else:
      self._log_refusal('refused {}: it has another {}'.format(task, KEY_VARIABLE))
      self._refuse(caller, now, wrong_key=True)

  def _admit(self, caller: _Caller, task: Task, values: Dict[str, Any], now: float) -> None:
    """Registers a process as a member, or refuses it."""
    # A parameter server builds no model, and sends fewer values. Only those are compared.
    names = values if task.type == 'ps' else [*self._shared_values, *values]
    name = next((name for name in names if values.get(name) != self._shared_values.get(name)), None)
    if name is not None:
      self._log_refusal('refused {}: it has {}={}, the chief has {}'.format(
          task, *(printable(str(text))[:_MAX_LOGGED_CHARS] for text in (name, values.get(name))),
          self._shared_values.get(name)))
      # Without the chief's value, because the process may not belong to the cluster.
      self._refuse(caller, now, refused=name, is_known=name in self._shared_values)
    elif task == self._cluster.task or task not in self._cluster.members:
      self._refuse(caller, now, taken=True)
    else:
      if task in self._members:
        # The earlier connection is an old one of this process or of its predecessor, or that of a
        # process that has the same task by mistake. Only the latter reads this message.
        self._log_refusal('another process has started as {}'.format(task))
        self._unregistered.append(self._members[task])
        self._refuse(self._members[task], now, taken=True)
      self._unregistered.remove(caller)
      self._members[task] = caller
      caller.close_at = now + _SILENCE_TIMEOUT_SECS
      self._send_missing(caller)

  def _send_missing(self, member: _Caller) -> None:
    member.connection.send(missing=[str(task) for task in self.missing_tasks()[:_MAX_NAMES]])

  def _refuse(self, caller: _Caller, now: float, **message: Any) -> None:
    caller.connection.send(**message)
    caller.connection.end_sending()
    caller.challenge, caller.close_at = '', now + _HANDSHAKE_TIMEOUT_SECS

  def _log_refusal(self, text: str) -> None:
    self._num_refusals += 1
    if self._num_refusals <= _MAX_LOGGED_REFUSALS:
      self._timeout.log(text)
    elif self._num_refusals == _MAX_LOGGED_REFUSALS + 1:
      self._timeout.log('refused further processes, which are not logged')


def _connect_to_chief(cluster: Cluster, shared_values: Dict[str, str],
                      timeout: StartTimeout, key: str) -> Connection:
  """Returns a connection to the chief once the chief has released this member."""
  address = cluster.address(cluster.chief)
  while True:
    with contextlib.suppress(OSError):
      connection = Connection(sockets.connect(
          *sockets.split_address(address), timeout_secs=_CONNECT_TIMEOUT_SECS))
      try:
        if _Registration(connection, cluster, shared_values, timeout, key).wait_for_release():
          return connection
      except UserError:
        connection.close()
        raise
      connection.close()
    timeout.log_or_raise(['{} at {}'.format(cluster.chief, address)])
    time.sleep(_RETRY_SECS)


class _Registration:
  """Registers this member over a connection to a process at the chief's address."""

  def __init__(self, connection: Connection, cluster: Cluster, shared_values: Dict[str, str],
               timeout: StartTimeout, key: str) -> None:
    self._connection, self._task, self._timeout = connection, cluster.task, timeout
    self._shared_values, self._key = shared_values, key
    self._challenge, self._expected_proof = secrets.token_hex(), b''
    self._chief_is_authenticated = False
    self._missing: Sequence[str] = [str(cluster.chief)]

  def wait_for_release(self) -> bool:
    """Waits until the chief releases this member; returns False if the connection is lost."""
    clock = self._timeout.clock
    heard_at = sent_at = clock()
    silence_secs = _ANSWER_TIMEOUT_SECS
    while not self._connection.end_reason and clock() - heard_at <= silence_secs:
      wait_readable([self._connection], _POLL_SECS)
      messages = self._connection.receive()
      for index, message in enumerate(messages):
        heard_at, silence_secs = clock(), _SILENCE_TIMEOUT_SECS
        if not self._chief_is_authenticated:
          self._authenticate(message)
        elif message.get('go') is True:
          self._connection.unread = messages[index + 1:]
          return True
        else:
          _raise_refusal(self._task, self._shared_values, message)
          if isinstance(message.get('missing'), list):
            self._missing = [
                str(name)[:_MAX_NAME_CHARS] for name in message['missing']] or self._missing
      if self._chief_is_authenticated and clock() - sent_at >= _HEARTBEAT_SECS:
        sent_at = clock()
        self._connection.send(waiting=True)
      self._timeout.log_or_raise(self._missing)
    return False

  def _authenticate(self, message: Dict[str, Any]) -> None:
    """Sends the proof of this member, and its values once the chief has proved to be the chief."""
    if 'challenge' in message:
      challenges = str(message['challenge']), self._challenge, self._task
      self._expected_proof = _make_proof(self._key, 'chief', *challenges)
      self._connection.send(task=list(self._task), challenge=self._challenge, proof=_make_proof(
          self._key, 'member', *challenges).decode())
    elif message.get('wrong_key') or (
        'proof' in message and not _is_proof(message['proof'], self._expected_proof)):
      raise UserError('this {} must have the key of the chief'.format(self._task.type),
                      '{} is {} here, and not the same on the chief'.format(
                          KEY_VARIABLE, 'set' if self._key else 'not set'),
                      'set it to the same value for all tasks, or for none')
    elif 'proof' in message:
      self._chief_is_authenticated = True
      self._connection.send(values=self._shared_values)


def _raise_refusal(task: Task, shared_values: Dict[str, str], message: Dict[str, Any]) -> None:
  """Raises a UserError if the chief has refused this task."""
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
  raise UserError('this {} must match the chief'.format(task.type), given,
                  'give all tasks the same ' + (
                      'TF_CONFIG, except for its task' if name == 'TF_CONFIG' else name))
