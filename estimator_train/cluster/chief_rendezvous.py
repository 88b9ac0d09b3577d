"""The chief's side of the rendezvous: registers the members, and releases them all together."""

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
# When a second process claims a task, how long the first one has to send its next message.
_CONTEST_TIMEOUT_SECS = 10.
_GOODBYE_TIMEOUT_SECS = 2.
_MAX_VALUE_CHARS = 80


class _Member:
  """A registered task.

  Attributes:
    last_message_at: time of its last message.
    meshed_run: the run for which its mesh is complete.
  """

  def __init__(self, connection: Connection, port: int, now: float) -> None:
    self.connection, self.port = connection, port
    self.host = network.peer_host(connection.socket)
    self.joined_at = self.last_message_at = now
    self.meshed_run: Optional[str] = None


def connect_as_chief(cluster: Cluster, facts: Dict[str, str], mesh: Mesh,
                     timeout: StartTimeout) -> None:
  """Waits until the mesh of every member is complete; the chief's port is free again then."""
  if len(cluster.members) == 1:
    return
  listener = listen_on_own_port(cluster)
  rendezvous = _ChiefRendezvous(cluster, facts, mesh, timeout, listener)
  try:
    while not rendezvous.is_complete:
      rendezvous.poll()
    # Before the release: the next connection of a member to this port is for TensorFlow's server.
    listener.close()
    rendezvous.release_members()
  finally:
    listener.close()
    rendezvous.close()


class _ChiefRendezvous:
  """The registered members, and the processes that ask to be registered."""

  def __init__(self, cluster: Cluster, facts: Dict[str, str], mesh: Mesh, timeout: StartTimeout,
               listener: socket.socket) -> None:
    self._cluster, self._facts, self._mesh = cluster, facts, mesh
    self._timeout, self._listener = timeout, listener
    self._callers: List[Tuple[Connection, float]] = []
    self._refused: List[Tuple[Connection, float]] = []
    self._members: Dict[Task, _Member] = {}
    self._contenders: Dict[Task, _Member] = {}
    self._sent_at = timeout.clock()

  @property
  def is_complete(self) -> bool:
    """Whether all members are registered and connected to each other."""
    return (self._mesh.is_complete and not self._missing()
            and all(each.meshed_run == self._mesh.run for each in self._members.values()))

  def poll(self) -> None:
    """Waits briefly for messages and new connections, and handles them."""
    connections = [connection for connection, _ in self._callers + self._refused]
    connections += [each.connection for each in self._members_and_contenders()]
    wait_readable([self._listener, *connections, *self._mesh.sockets()], _POLL_SECS)
    now = self._timeout.clock()
    self._callers += [(connection, now) for connection in accept_connections(self._listener)]
    self._callers = [caller for caller in self._callers if not self._handle_hello(*caller, now)]
    self._refused = [each for each in self._refused if not self._close_refused(*each, now)]
    self._receive_from_members(now)
    self._settle_contests(now)
    if self._mesh.run is None and not self._missing():
      self._start_mesh()
    self._mesh.poll()
    if now - self._sent_at >= _HEARTBEAT_SECS:
      self._send_missing_tasks(now)
    self._timeout.check([str(task) for task in self._missing()] or [
        'the connections of {}'.format(task) for task, each in self._members.items()
        if each.meshed_run is None])

  def release_members(self) -> None:
    """Releases all members, and waits until they disconnect, so that the port is unused."""
    began = self._timeout.clock()
    leaving = [each.connection for each in self._members.values()]
    for connection in leaving:
      connection.send(go=self._mesh.run)
    while leaving and self._timeout.clock() - began < _GOODBYE_TIMEOUT_SECS:
      for connection in wait_readable(leaving, _POLL_SECS):
        connection.receive()
      leaving = [connection for connection in leaving if not connection.ended]

  def close(self) -> None:
    """Closes all connections of the rendezvous."""
    for connection, _ in self._callers + self._refused:
      connection.close()
    for each in self._members_and_contenders():
      each.connection.close()

  def _members_and_contenders(self) -> List[_Member]:
    return [*self._members.values(), *self._contenders.values()]

  def _missing(self) -> List[Task]:
    return [task for task in self._cluster.members
            if task != self._cluster.task and task not in self._members]

  def _handle_hello(self, connection: Connection, since: float, now: float) -> bool:
    """Returns whether the connection is done with: its hello was handled, or it is closed."""
    for message in connection.receive():
      task = parse_task(message.get('task'))
      facts, port = message.get('facts'), message.get('port')
      if task is not None and isinstance(facts, dict) and is_port(port):
        self._admit(task, _Member(connection, int(str(port)), now), facts)
        return True
    if connection.ended or now - since > HANDSHAKE_TIMEOUT_SECS:
      connection.close()
      return True
    return False

  def _admit(self, task: Task, newcomer: _Member, facts: Dict[str, Any]) -> None:
    # A parameter server builds no model, so it sends fewer facts than the chief has.
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
    elif task in self._contenders:
      self._refuse(newcomer, taken=True)
    else:
      self._contenders[task] = newcomer
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

  def _close_refused(self, connection: Connection, since: float, now: float) -> bool:
    """Closes a refused connection when it has ended or timed out; returns whether it did."""
    connection.receive()
    if connection.ended or now - since > _GOODBYE_TIMEOUT_SECS:
      connection.close()
      return True
    return False

  def _receive_from_members(self, now: float) -> None:
    for task, each in list(self._members.items()):
      for message in each.connection.receive():
        each.last_message_at, each.meshed_run = now, message.get('meshed')
      each.connection.flush()
      if each.connection.ended or now - each.last_message_at > _SILENCE_TIMEOUT_SECS:
        self._drop(task)

  def _drop(self, task: Task) -> None:
    """Removes a lost member, and the mesh, which cannot be completed without it."""
    self._members.pop(task).connection.close()
    if self._mesh.run is not None:
      self._mesh.drop()
      for each in self._members.values():
        each.meshed_run = None
      self._send_missing_tasks(self._timeout.clock())

  def _settle_contests(self, now: float) -> None:
    """Settles which of two processes keeps a task: the first if it is alive, else the second."""
    for task, newcomer in list(self._contenders.items()):
      newcomer.connection.receive()
      if newcomer.connection.ended:
        self._contenders.pop(task).connection.close()
        continue
      older = self._members.get(task)
      if older is not None and now - newcomer.joined_at > _CONTEST_TIMEOUT_SECS:
        self._drop(task)
        older = None
      if older is None:
        self._register(task, self._contenders.pop(task))
      elif older.last_message_at > newcomer.joined_at:
        self._timeout.log('refused a second process for {}'.format(task))
        self._refuse(self._contenders.pop(task), taken=True)

  def _start_mesh(self) -> None:
    """Sends the addresses of all members to each of them."""
    run = os.urandom(16).hex()
    self._mesh.start(run, {})  # The chief is the first member, so it calls no other.
    ports = [(self._cluster.task, '', self._mesh.port)] + [
        (task, each.host, each.port) for task, each in self._members.items()]
    for each in self._members.values():
      each.connection.send(run=run, members=[
          {'task': list(task), 'host': host, 'port': port} for task, host, port in ports])

  def _send_missing_tasks(self, now: float) -> None:
    self._sent_at = now
    for each in self._members.values():
      if each.connection.is_sent:
        each.connection.send(missing=[str(task) for task in self._missing()],
                             run=self._mesh.run)
