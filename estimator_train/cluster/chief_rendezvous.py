"""The chief, before TensorFlow starts: whom it waits for, whom it refuses, and when all may go."""

import os
import socket
from typing import Any, Dict, List, Optional, Tuple

from estimator_train.cluster import network
from estimator_train.cluster.mesh import GREETING_SECS, Mesh, accepted
from estimator_train.cluster.messages import Connection, is_port, task_of, wait_readable
from estimator_train.cluster.start_timeout import StartTimeout
from estimator_train.cluster.tf_config import Cluster, Task, take_port

_TURN_SECS = .2
_BEAT_SECS = 1.
_SILENT_SECS = 30.
# How soon the connection of a process must be heard of that another claims the task of.
_CONTEST_SECS = 10.
_GOODBYE_SECS = 2.
_SHOWN = 80


class _Member:
  """A task that has said hello.

  Attributes:
    heard_at: when something last came from it.
    meshed: the run whose mesh it has completed.
  """

  def __init__(self, connection: Connection, port: int, now: float) -> None:
    self.connection, self.port = connection, port
    self.host = network.peer_host(connection.socket)
    self.came_at = self.heard_at = now
    self.meshed: Optional[str] = None


def meet(cluster: Cluster, facts: Dict[str, str], mesh: Mesh, timeout: StartTimeout) -> None:
  """Returns once everyone's mesh is complete; the port is free again then."""
  if len(cluster.members) == 1:
    return
  listener = take_port(cluster)
  meeting = _Meeting(cluster, facts, mesh, timeout, listener)
  try:
    while not meeting.is_over:
      meeting.take_turn()
    # Before anyone goes: whoever of them calls this port next is to reach TensorFlow's server.
    listener.close()
    meeting.let_go()
  finally:
    listener.close()
    meeting.close()


class _Meeting:
  """Who is there, and who wants in."""

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
  def is_over(self) -> bool:
    """Whether all are there and connected."""
    return (self._mesh.is_complete and not self._missing()
            and all(each.meshed == self._mesh.run for each in self._members.values()))

  def take_turn(self) -> None:
    """Waits for something to happen, for a moment, and sees to it."""
    connections = [connection for connection, _ in self._callers + self._refused]
    connections += [each.connection for each in self._all()]
    wait_readable([self._listener, *connections, *self._mesh.sockets()], _TURN_SECS)
    now = self._timeout.clock()
    self._callers += [(connection, now) for connection in accepted(self._listener)]
    self._callers = [caller for caller in self._callers if not self._greet(*caller, now)]
    self._refused = [each for each in self._refused if not self._has_left(*each, now)]
    self._hear_members(now)
    self._settle_contests(now)
    if self._mesh.run is None and not self._missing():
      self._start()
    self._mesh.take_turn()
    if now - self._sent_at >= _BEAT_SECS:
      self._tell_who_is_missing(now)
    self._timeout.check([str(task) for task in self._missing()] or [
        'the connections of {}'.format(task) for task, each in self._members.items()
        if each.meshed is None])

  def let_go(self) -> None:
    """Tells all to go, and waits for them to hang up, so that nothing of it stays on the port."""
    began = self._timeout.clock()
    leaving = [each.connection for each in self._members.values()]
    for connection in leaving:
      connection.send(go=self._mesh.run)
    while leaving and self._timeout.clock() - began < _GOODBYE_SECS:
      for connection in wait_readable(leaving, _TURN_SECS):
        connection.receive()
      leaving = [connection for connection in leaving if not connection.ended]

  def close(self) -> None:
    """Hangs up on everyone."""
    for connection, _ in self._callers + self._refused:
      connection.close()
    for each in self._all():
      each.connection.close()

  def _all(self) -> List[_Member]:
    return [*self._members.values(), *self._contenders.values()]

  def _missing(self) -> List[Task]:
    return [task for task in self._cluster.members
            if task != self._cluster.task and task not in self._members]

  def _greet(self, connection: Connection, since: float, now: float) -> bool:
    """Returns whether the caller is dealt with: it has said who it is, or is given up."""
    for message in connection.receive():
      task = task_of(message.get('task'))
      facts, port = message.get('facts'), message.get('port')
      if task is not None and isinstance(facts, dict) and is_port(port):
        self._admit(task, _Member(connection, int(str(port)), now), facts)
        return True
    if connection.ended or now - since > GREETING_SECS:
      connection.close()
      return True
    return False

  def _admit(self, task: Task, newcomer: _Member, facts: Dict[str, Any]) -> None:
    # A parameter server builds no model, and so knows less than the chief.
    names = facts if task.type == 'ps' else [*self._facts, *facts]
    name = next((name for name in names if facts.get(name) != self._facts.get(name)), None)
    if name is not None:
      there = ' '.join(str(facts.get(name)).split())[:_SHOWN]
      self._timeout.log('refused {}: {}={} there and {} here'.format(
          task, name[:_SHOWN], there, self._facts.get(name)))
      self._refuse(newcomer, refused=name, chief=self._facts.get(name))
    elif task == self._cluster.task or task not in self._cluster.members:
      self._refuse(newcomer, taken=True)
    elif task not in self._members:
      self._register(task, newcomer)
    elif task in self._contenders:
      self._refuse(newcomer, taken=True)
    else:
      self._contenders[task] = newcomer
      self._bid_to_wait(newcomer)

  def _register(self, task: Task, newcomer: _Member) -> None:
    self._members[task] = newcomer
    newcomer.heard_at = self._timeout.clock()
    self._bid_to_wait(newcomer)

  def _bid_to_wait(self, newcomer: _Member) -> None:
    newcomer.connection.send(missing=[str(each) for each in self._missing()], run=None)

  def _refuse(self, newcomer: _Member, **message: Any) -> None:
    newcomer.connection.send(**message)
    newcomer.connection.end_sending()
    self._refused.append((newcomer.connection, self._timeout.clock()))

  def _has_left(self, connection: Connection, since: float, now: float) -> bool:
    connection.receive()
    if connection.ended or now - since > _GOODBYE_SECS:
      connection.close()
      return True
    return False

  def _hear_members(self, now: float) -> None:
    for task, each in list(self._members.items()):
      for message in each.connection.receive():
        each.heard_at, each.meshed = now, message.get('meshed')
      each.connection.flush()
      if each.connection.ended or now - each.heard_at > _SILENT_SECS:
        self._drop(task)

  def _drop(self, task: Task) -> None:
    """Does without a member that is gone: a mesh with it is of no use to anyone."""
    self._members.pop(task).connection.close()
    if self._mesh.run is not None:
      self._mesh.drop()
      for each in self._members.values():
        each.meshed = None
      self._tell_who_is_missing(self._timeout.clock())

  def _settle_contests(self, now: float) -> None:
    """Gives a task that two processes claim to the older if that is heard of, or the newer."""
    for task, newcomer in list(self._contenders.items()):
      newcomer.connection.receive()
      if newcomer.connection.ended:
        self._contenders.pop(task).connection.close()
        continue
      older = self._members.get(task)
      if older is not None and now - newcomer.came_at > _CONTEST_SECS:
        self._drop(task)
        older = None
      if older is None:
        self._register(task, self._contenders.pop(task))
      elif older.heard_at > newcomer.came_at:
        self._timeout.log('refused a second {}'.format(task))
        self._refuse(self._contenders.pop(task), taken=True)

  def _start(self) -> None:
    """Tells everyone where the others are."""
    run = os.urandom(16).hex()
    self._mesh.start(run, {})  # Nobody is earlier than the chief, for it to call.
    ports = [(self._cluster.task, '', self._mesh.port)] + [
        (task, each.host, each.port) for task, each in self._members.items()]
    for each in self._members.values():
      each.connection.send(run=run, members=[
          {'task': list(task), 'host': host, 'port': port} for task, host, port in ports])

  def _tell_who_is_missing(self, now: float) -> None:
    self._sent_at = now
    for each in self._members.values():
      if each.connection.is_sent:
        each.connection.send(missing=[str(task) for task in self._missing()],
                             run=self._mesh.run)
