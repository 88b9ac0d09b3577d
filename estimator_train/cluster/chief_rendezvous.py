"""Runs the rendezvous on the chief: registers the other members, and then releases them."""

import os
import socket
from typing import Any, Dict, List, Optional, Tuple

from estimator_train.cluster import network
from estimator_train.cluster.mesh import (
  HANDSHAKE_TIMEOUT_SECS,
  Mesh,
  accept_connections,
  find_peers,
)
from estimator_train.cluster.messages import Connection, is_port, parse_task, wait_readable
from estimator_train.cluster.start_timeout import StartTimeout
from estimator_train.cluster.tf_config import Cluster, Task, listen_on_own_port
from estimator_train.errors import printable

_POLL_SECS = .2
_HEARTBEAT_SECS = 1.
_SILENCE_TIMEOUT_SECS = 30.
# If two processes claim the same task, the first process keeps the task, provided that it sends
# another message within this time.
_DUPLICATE_TIMEOUT_SECS = 10.
# How long the chief waits for a process to disconnect after a release or a refusal.
_DISCONNECT_TIMEOUT_SECS = 2.
_MAX_LOGGED_CHARS = 80
# A process that is not of this cluster could otherwise fill the disk of the log.
_MAX_LOGGED_REFUSALS = 20
_MAX_SENT_NAMES = 20


class _Member:
  """A process that has sent a `hello`, even if the process is not registered as a member.

  Attributes:
    connection: the connection to the process.
    host, port: the address at which the process accepts connections of other members.
    hello_at: time of the process's `hello`, by the clock of the StartTimeout.
    last_message_at: time of the process's last message, by the same clock.
    meshed_attempt_id: ID of the attempt to build the mesh, once this attempt has connected the
      process to all its peers; None before.
  """

  def __init__(self, connection: Connection, port: int, now: float) -> None:
    self.connection, self.port = connection, port
    self.host = network.peer_ip_address(connection.socket)
    self.hello_at = self.last_message_at = now
    self.meshed_attempt_id: Optional[str] = None


def connect_as_chief(cluster: Cluster, shared_values: Dict[str, str], mesh: Mesh,
                     timeout: StartTimeout, listener: Optional[socket.socket] = None) -> None:
  """Waits until all members are connected to their peers; see rendezvous.connect_peers.

  On return, the chief's port is free again, and `mesh` contains the connections.
  """
  if len(cluster.members) == 1:
    return
  listener = listener or listen_on_own_port(cluster)
  rendezvous = _ChiefRendezvous(cluster, shared_values, mesh, timeout, listener)
  try:
    while not rendezvous.is_complete:
      rendezvous.poll()
    # The listener has to be closed before the release, because the released members expect
    # TensorFlow's server on this port.
    listener.close()
    rendezvous.release_members()
  finally:
    listener.close()
    rendezvous.close()


class _ChiefRendezvous:
  """Registers the processes that connect to the chief, and connects the members to their peers."""

  def __init__(self, cluster: Cluster, shared_values: Dict[str, str], mesh: Mesh,
               timeout: StartTimeout, listener: socket.socket) -> None:
    self._cluster, self._shared_values, self._mesh = cluster, shared_values, mesh
    self._timeout, self._listener = timeout, listener
    # Connections without a `hello` yet, each with the time at which it was accepted.
    self._unidentified: List[Tuple[Connection, float]] = []
    # Connections of refused processes, each with the time of the refusal.
    self._refused: List[Tuple[Connection, float]] = []
    self._members: Dict[Task, _Member] = {}
    self._duplicates: Dict[Task, _Member] = {}
    self._heartbeat_sent_at = timeout.clock()
    self._num_refusals = 0

  @property
  def is_complete(self) -> bool:
    """Whether all members are registered and connected to their peers."""
    return (self._mesh.is_complete and not self._missing_tasks()
            and all(member.meshed_attempt_id == self._mesh.attempt_id
                    for member in self._members.values()))

  def poll(self) -> None:
    """Waits briefly for messages and new connections, and handles them."""
    connections = [connection for connection, _ in self._unidentified + self._refused]
    connections += [member.connection for member in self._members_and_duplicates()]
    wait_readable([self._listener, *connections, *self._mesh.sockets()], _POLL_SECS)
    now = self._timeout.clock()
    self._unidentified += [(connection, now) for connection in accept_connections(self._listener)]
    self._unidentified = [
        entry for entry in self._unidentified if not self._handle_hello(*entry, now)]
    self._refused = [entry for entry in self._refused if not self._close_refused(*entry, now)]
    self._receive_from_members(now)
    self._resolve_duplicates(now)
    if self._mesh.attempt_id is None and not self._missing_tasks():
      self._start_mesh()
    self._mesh.poll()
    if now - self._heartbeat_sent_at >= _HEARTBEAT_SECS:
      self._send_missing_tasks(now)
    self._timeout.log_or_raise([str(task) for task in self._missing_tasks()] or [
        'the connections of {}'.format(task) for task, member in self._members.items()
        if member.meshed_attempt_id is None])

  def release_members(self) -> None:
    """Releases all members, then waits until they disconnect, so that the port is unused."""
    started_at = self._timeout.clock()
    connected = [member.connection for member in self._members.values()]
    for connection in connected:
      connection.send(go=self._mesh.attempt_id)
    while connected and self._timeout.clock() - started_at < _DISCONNECT_TIMEOUT_SECS:
      for connection in wait_readable(connected, _POLL_SECS):
        connection.receive()
      connected = [connection for connection in connected if not connection.end_reason]

  def close(self) -> None:
    """Closes all connections of the rendezvous."""
    for connection, _ in self._unidentified + self._refused:
      connection.close()
    for member in self._members_and_duplicates():
      member.connection.close()

  def _members_and_duplicates(self) -> List[_Member]:
    """Returns the registered processes and the second processes of their tasks."""
    return [*self._members.values(), *self._duplicates.values()]

  def _missing_tasks(self) -> List[Task]:
    return [task for task in self._cluster.members
            if task != self._cluster.task and task not in self._members]

  def _missing_names(self) -> List[str]:
    return [str(task) for task in self._missing_tasks()[:_MAX_SENT_NAMES]]

  def _handle_hello(self, connection: Connection, accepted_at: float, now: float) -> bool:
    """Handles the `hello` on a connection; closes the connection if no `hello` arrives in time.

    Returns:
      False while the chief still waits for the `hello`, otherwise True.
    """
    for message in connection.receive():
      task = parse_task(message.get('task'))
      values, port = message.get('facts'), message.get('port')
      if task is not None and isinstance(values, dict) and is_port(port):
        self._admit(task, _Member(connection, int(str(port)), now), values)
        return True
    if connection.end_reason or now - accepted_at > HANDSHAKE_TIMEOUT_SECS:
      connection.close()
      return True
    return False

  def _admit(self, task: Task, newcomer: _Member, values: Dict[str, Any]) -> None:
    """Registers a process, keeps it as the second process of its task, or refuses it."""
    # Compares only the values that a parameter server sends: they are fewer than those of the
    # chief, because a parameter server builds no model.
    names = values if task.type == 'ps' else [*self._shared_values, *values]
    name = next((name for name in names if values.get(name) != self._shared_values.get(name)), None)
    if name is not None:
      name_and_value = (printable(str(text))[:_MAX_LOGGED_CHARS]
                        for text in (name, values.get(name)))
      self._log_refusal('refused {}: it has {}={}, the chief has {}'.format(
          task, *name_and_value, self._shared_values.get(name)))
      # Without the chief's value, because the process may not belong to the cluster.
      self._refuse(newcomer, refused=name, is_known=name in self._shared_values)
    elif task == self._cluster.task or task not in self._cluster.members:
      self._refuse(newcomer, taken=True)
    elif task not in self._members:
      self._register(task, newcomer)
    elif task in self._duplicates:
      self._refuse(newcomer, taken=True)
    else:
      self._duplicates[task] = newcomer
      self._acknowledge(newcomer)

  def _register(self, task: Task, newcomer: _Member) -> None:
    self._members[task] = newcomer
    newcomer.last_message_at = self._timeout.clock()
    self._acknowledge(newcomer)

  def _acknowledge(self, newcomer: _Member) -> None:
    """Answers the `hello` of a process that is not refused."""
    newcomer.connection.send(missing=self._missing_names(), run=None)

  def _refuse(self, newcomer: _Member, **message: Any) -> None:
    """Sends the reason of a refusal; `_close_refused` closes the connection later."""
    newcomer.connection.send(**message)
    newcomer.connection.end_sending()
    self._refused.append((newcomer.connection, self._timeout.clock()))

  def _log_refusal(self, text: str) -> None:
    self._num_refusals += 1
    if self._num_refusals <= _MAX_LOGGED_REFUSALS:
      self._timeout.log(text)
    elif self._num_refusals == _MAX_LOGGED_REFUSALS + 1:
      self._timeout.log('refused further processes, which are not logged')

  def _close_refused(self, connection: Connection, refused_at: float, now: float) -> bool:
    """Closes a refused connection if it has ended or timed out; returns whether it was closed."""
    connection.receive()
    if connection.end_reason or now - refused_at > _DISCONNECT_TIMEOUT_SECS:
      connection.close()
      return True
    return False

  def _receive_from_members(self, now: float) -> None:
    """Handles the messages of the registered members, and removes the lost members."""
    for task, member in list(self._members.items()):
      for message in member.connection.receive():
        member.last_message_at, member.meshed_attempt_id = now, message.get('meshed')
      member.connection.flush()
      if member.connection.end_reason or now - member.last_message_at > _SILENCE_TIMEOUT_SECS:
        self._remove(task)

  def _remove(self, task: Task) -> None:
    """Removes a lost member, and abandons the mesh, which needs all members."""
    self._members.pop(task).connection.close()
    if self._mesh.attempt_id is not None:
      self._mesh.abandon()
      for member in self._members.values():
        member.meshed_attempt_id = None
      self._send_missing_tasks(self._timeout.clock())

  def _resolve_duplicates(self, now: float) -> None:
    """Decides which process keeps a task that two processes claim: the first one, if alive."""
    for task, newcomer in list(self._duplicates.items()):
      newcomer.connection.receive()
      if newcomer.connection.end_reason:
        self._duplicates.pop(task).connection.close()
        continue
      registered = self._members.get(task)
      if registered is not None and now - newcomer.hello_at > _DUPLICATE_TIMEOUT_SECS:
        self._remove(task)
        registered = None
      if registered is None:
        self._register(task, self._duplicates.pop(task))
      elif registered.last_message_at > newcomer.hello_at:
        self._log_refusal('refused a second process for {}'.format(task))
        self._refuse(self._duplicates.pop(task), taken=True)

  def _start_mesh(self) -> None:
    """Starts an attempt to build the mesh, and sends the addresses of its peers to each member."""
    attempt_id = os.urandom(16).hex()
    self._mesh.start(attempt_id, {})  # The chief needs no addresses: it only accepts connections.
    addresses = {task: {'task': list(task), 'host': member.host, 'port': member.port}
                 for task, member in self._members.items()}
    addresses[self._cluster.task] = {
        'task': list(self._cluster.task), 'host': '', 'port': self._mesh.port}
    for task, member in self._members.items():
      member.connection.send(run=attempt_id, members=[
          addresses[peer] for peer in find_peers(task, self._cluster.members)])

  def _send_missing_tasks(self, now: float) -> None:
    self._heartbeat_sent_at = now
    missing = self._missing_names()
    for member in self._members.values():
      if member.connection.has_sent_all:
        member.connection.send(missing=missing, run=self._mesh.attempt_id)
