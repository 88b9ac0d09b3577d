"""The rendezvous on the chief: registers the other members, and releases all of them together."""

import os
import socket
from typing import Any, Dict, List, Optional, Tuple

from estimator_train.cluster import network
from estimator_train.cluster.mesh import HANDSHAKE_TIMEOUT_SECS, Mesh, accept_connections
from estimator_train.cluster.messages import Connection, is_port, parse_task, wait_readable
from estimator_train.cluster.start_timeout import StartTimeout
from estimator_train.cluster.tf_config import Cluster, Task, listen_on_own_port

_POLL_SECS = .2
_HEARTBEAT_SECS = 1.
_SILENCE_TIMEOUT_SECS = 30.
# How long the first of two processes with the same task may take to send its next message.
_DUPLICATE_TIMEOUT_SECS = 10.
_DISCONNECT_TIMEOUT_SECS = 2.
_MAX_VALUE_CHARS = 80


class _Member:
  """A process that is registered as a member, or asks to be.

  Attributes:
    connection: the connection to the process.
    host, port: the address at which it accepts connections of other members.
    joined_at: time of its `hello`.
    last_message_at: time of its last message.
    meshed_attempt_id: ID of the attempt in which it has connected to all members.
  """

  def __init__(self, connection: Connection, port: int, now: float) -> None:
    self.connection, self.port = connection, port
    self.host = network.peer_host(connection.socket)
    self.joined_at = self.last_message_at = now
    self.meshed_attempt_id: Optional[str] = None


def connect_as_chief(cluster: Cluster, facts: Dict[str, str], mesh: Mesh,
                     timeout: StartTimeout) -> None:
  """Waits until every two members are connected; on return the chief's port is free again."""
  if len(cluster.members) == 1:
    return
  listener = listen_on_own_port(cluster)
  rendezvous = _ChiefRendezvous(cluster, facts, mesh, timeout, listener)
  try:
    while not rendezvous.is_complete:
      rendezvous.poll()
    # Closed first, because released members connect to TensorFlow's server on the same port.
    listener.close()
    rendezvous.release_members()
  finally:
    listener.close()
    rendezvous.close()


class _ChiefRendezvous:
  """The registered members, and the other processes that have connected to the chief."""

  def __init__(self, cluster: Cluster, facts: Dict[str, str], mesh: Mesh, timeout: StartTimeout,
               listener: socket.socket) -> None:
    self._cluster, self._facts, self._mesh = cluster, facts, mesh
    self._timeout, self._listener = timeout, listener
    # Connections, each with the time of its acceptance or refusal.
    self._unidentified: List[Tuple[Connection, float]] = []
    self._refused: List[Tuple[Connection, float]] = []
    self._members: Dict[Task, _Member] = {}
    self._duplicates: Dict[Task, _Member] = {}
    self._heartbeat_sent_at = timeout.clock()

  @property
  def is_complete(self) -> bool:
    """Whether all members are registered and connected to each other."""
    return (self._mesh.is_complete and not self._missing()
            and all(each.meshed_attempt_id == self._mesh.attempt_id
                    for each in self._members.values()))

  def poll(self) -> None:
    """Waits briefly for messages and new connections, and handles them."""
    connections = [connection for connection, _ in self._unidentified + self._refused]
    connections += [each.connection for each in self._members_and_duplicates()]
    wait_readable([self._listener, *connections, *self._mesh.sockets()], _POLL_SECS)
    now = self._timeout.clock()
    self._unidentified += [(each, now) for each in accept_connections(self._listener)]
    self._unidentified = [
        each for each in self._unidentified if not self._handle_hello(*each, now)]
    self._refused = [each for each in self._refused if not self._close_refused(*each, now)]
    self._receive_from_members(now)
    self._resolve_duplicates(now)
    if self._mesh.attempt_id is None and not self._missing():
      self._start_mesh()
    self._mesh.poll()
    if now - self._heartbeat_sent_at >= _HEARTBEAT_SECS:
      self._send_missing_tasks(now)
    self._timeout.log_or_raise([str(task) for task in self._missing()] or [
        'the connections of {}'.format(task) for task, each in self._members.items()
        if each.meshed_attempt_id is None])

  def release_members(self) -> None:
    """Releases all members, and waits until they disconnect, so that the port is unused."""
    started_at = self._timeout.clock()
    connected = [each.connection for each in self._members.values()]
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
    for each in self._members_and_duplicates():
      each.connection.close()

  def _members_and_duplicates(self) -> List[_Member]:
    return [*self._members.values(), *self._duplicates.values()]

  def _missing(self) -> List[Task]:
    return [task for task in self._cluster.members
            if task != self._cluster.task and task not in self._members]

  def _handle_hello(self, connection: Connection, accepted_at: float, now: float) -> bool:
    """Handles a connection's hello; returns whether it was handled, or the connection closed."""
    for message in connection.receive():
      task = parse_task(message.get('task'))
      facts, port = message.get('facts'), message.get('port')
      if task is not None and isinstance(facts, dict) and is_port(port):
        self._admit(task, _Member(connection, int(str(port)), now), facts)
        return True
    if connection.end_reason or now - accepted_at > HANDSHAKE_TIMEOUT_SECS:
      connection.close()
      return True
    return False

  def _admit(self, task: Task, newcomer: _Member, facts: Dict[str, Any]) -> None:
    # A parameter server builds no model, and sends fewer facts: only those are compared.
    names = facts if task.type == 'ps' else [*self._facts, *facts]
    name = next((name for name in names if facts.get(name) != self._facts.get(name)), None)
    if name is not None:
      value = ' '.join(str(facts.get(name)).split())[:_MAX_VALUE_CHARS]
      self._timeout.log('refused {}: it has {}={}, the chief has {}'.format(
          task, name[:_MAX_VALUE_CHARS], value, self._facts.get(name)))
      self._refuse(newcomer, refused=name, chief=self._facts.get(name))
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
    newcomer.connection.send(missing=[str(each) for each in self._missing()], run=None)

  def _refuse(self, newcomer: _Member, **message: Any) -> None:
    newcomer.connection.send(**message)
    newcomer.connection.end_sending()
    self._refused.append((newcomer.connection, self._timeout.clock()))

  def _close_refused(self, connection: Connection, refused_at: float, now: float) -> bool:
    """Closes a refused connection if it has ended or timed out; returns whether it is closed."""
    connection.receive()
    if connection.end_reason or now - refused_at > _DISCONNECT_TIMEOUT_SECS:
      connection.close()
      return True
    return False

  def _receive_from_members(self, now: float) -> None:
    for task, each in list(self._members.items()):
      for message in each.connection.receive():
        each.last_message_at, each.meshed_attempt_id = now, message.get('meshed')
      each.connection.flush()
      if each.connection.end_reason or now - each.last_message_at > _SILENCE_TIMEOUT_SECS:
        self._remove(task)

  def _remove(self, task: Task) -> None:
    """Removes a lost member; abandons the attempt, which cannot be completed without it."""
    self._members.pop(task).connection.close()
    if self._mesh.attempt_id is not None:
      self._mesh.abandon()
      for each in self._members.values():
        each.meshed_attempt_id = None
      self._send_missing_tasks(self._timeout.clock())

  def _resolve_duplicates(self, now: float) -> None:
    """For each task with two processes, keeps the first if it is alive, else the second."""
    for task, newcomer in list(self._duplicates.items()):
      newcomer.connection.receive()
      if newcomer.connection.end_reason:
        self._duplicates.pop(task).connection.close()
        continue
      registered = self._members.get(task)
      if registered is not None and now - newcomer.joined_at > _DUPLICATE_TIMEOUT_SECS:
        self._remove(task)
        registered = None
      if registered is None:
        self._register(task, self._duplicates.pop(task))
      elif registered.last_message_at > newcomer.joined_at:
        self._timeout.log('refused a second process for {}'.format(task))
        self._refuse(self._duplicates.pop(task), taken=True)

  def _start_mesh(self) -> None:
    """Sends the addresses of all members to each of them."""
    attempt_id = os.urandom(16).hex()
    self._mesh.start(attempt_id, {})  # No addresses, since no member precedes the chief.
    addresses = [(self._cluster.task, '', self._mesh.port)] + [
        (task, each.host, each.port) for task, each in self._members.items()]
    for each in self._members.values():
      each.connection.send(run=attempt_id, members=[
          {'task': list(task), 'host': host, 'port': port} for task, host, port in addresses])

  def _send_missing_tasks(self, now: float) -> None:
    self._heartbeat_sent_at = now
    for each in self._members.values():
      if each.connection.has_sent_all:
        each.connection.send(missing=[str(task) for task in self._missing()],
                             run=self._mesh.attempt_id)
