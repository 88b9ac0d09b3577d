"""Connects this member of a cluster to its peers.

The peers of the chief are all other members. The peers of another member are the chief and the two
neighbors in the ring of the members, so the number of connections grows linearly with the cluster.
In each pair of peers, the later one in `Cluster.members` connects to the earlier one. The later
member sends a greeting, a message with the ID of the attempt (`run`) and the sender's task
(`task`). The earlier member answers with a message of the same form.
"""

import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from estimator_train.cluster import network
from estimator_train.cluster.messages import Connection, parse_task
from estimator_train.cluster.tf_config import Task

_CONNECT_TIMEOUT_SECS = 2.
_RETRY_SECS = .5
# How long a process may take to identify itself on a new connection.
HANDSHAKE_TIMEOUT_SECS = 10.

Address = Tuple[str, int]


class _PendingConnection(NamedTuple):
  """A connection that is not established yet.

  Attributes:
    connection: the connection.
    opened_at: time at which the connection was opened, by the clock of the Mesh.
    greeting: the greeting from an incoming connection; empty until the greeting arrives.
  """
  connection: Connection
  opened_at: float
  greeting: Dict[str, Any]


def find_peers(task: Task, members: Sequence[Task]) -> Tuple[Task, ...]:
  """Returns the members to which a member is connected, in the order of `members`.

  Args:
    task: the member.
    members: all members, the chief first.
  """
  index = members.index(task)
  if index == 0:
    return tuple(members[1:])
  peers = {0, index - 1, (index + 1) % len(members)}
  return tuple(members[peer] for peer in sorted(peers))


class Mesh:
  """The connections of this task to its peers.

  Call `poll` repeatedly; no method blocks for longer than one call of `network.connect`.

  Attributes:
    peers: the members to which this task has to be connected.
    port: the port at which this task accepts connections of its peers.
    connections: the established connections, by the task of the other process.
    attempt_id: ID of the attempt to build the mesh, the same on all members; None between attempts.
  """

  def __init__(self, task: Task, members: Sequence[Task],
               clock: Callable[[], float] = time.monotonic) -> None:
    self._task, self.peers, self._clock = task, find_peers(task, members), clock
    self._preceding = [peer for peer in self.peers if members.index(peer) < members.index(task)]
    self._listener = network.listen(0)
    self.port = int(self._listener.getsockname()[1])
    self.attempt_id: Optional[str] = None
    self.connections: Dict[Task, Connection] = {}
    self._addresses: Dict[Task, List[Address]] = {}
    self._incoming: List[_PendingConnection] = []
    self._outgoing: Dict[Task, _PendingConnection] = {}
    self._last_attempt_at: Dict[Task, float] = {}

  @property
  def missing(self) -> Tuple[Task, ...]:
    """The peers to which there is no connection yet."""
    return tuple(task for task in self.peers if task not in self.connections)

  @property
  def is_complete(self) -> bool:
    """Whether this task is connected to all its peers."""
    return self.attempt_id is not None and len(self.connections) == len(self.peers)

  def sockets(self) -> List[Any]:
    """Returns the sockets to wait for; `poll` has work to do once one of them is readable."""
    return [self._listener] + [
        pending.connection for pending in self._incoming + list(self._outgoing.values())
        if not pending.greeting]

  def start(self, attempt_id: str, addresses: Dict[Task, List[Address]]) -> None:
    """Starts an attempt to connect to all peers.

    Args:
      attempt_id: ID of the attempt.
      addresses: the addresses to try for each preceding peer, in this order.
    """
    self.abandon()
    self.attempt_id, self._addresses = attempt_id, addresses

  def abandon(self) -> None:
    """Abandons any current attempt; closes all connections except pending incoming ones."""
    for connection in [*self.connections.values(),
                       *(pending.connection for pending in self._outgoing.values())]:
      connection.close()
    self.attempt_id = None
    self.connections, self._outgoing, self._last_attempt_at = {}, {}, {}

  def poll(self) -> None:
    """Accepts connections, handles handshakes, and connects to at most one peer."""
    now = self._clock()
    self._incoming += [_PendingConnection(connection, now, {})
                       for connection in accept_connections(self._listener)]
    self._incoming = [pending for pending in map(self._handle_greeting, self._incoming) if pending]
    if self.attempt_id is None:
      return
    for task, pending in list(self._outgoing.items()):
      self._handle_answer(task, pending)
    for task in self._preceding:
      waited_secs = now - self._last_attempt_at.get(task, -_RETRY_SECS)
      if (task not in self.connections and task not in self._outgoing
          and waited_secs >= _RETRY_SECS):
        self._connect(task)
        # Connecting may block, and the chief expects heartbeats in the meantime.
        return

  def close(self) -> None:
    """Closes the listener and the pending connections, but not the established connections."""
    self._listener.close()
    for pending in [*self._incoming, *self._outgoing.values()]:
      pending.connection.close()

  def _handle_greeting(self, pending: _PendingConnection) -> Optional[_PendingConnection]:
    """Establishes an incoming connection if its greeting is valid.

    Returns:
      The connection while it is pending; None once it is established or closed.
    """
    connection, opened_at, greeting = pending
    greeting = greeting or next(iter(connection.receive()), {})
    task = parse_task(greeting.get('task'))
    # A greeting with an unknown ID is kept, because the chief's message that announces a new ID may
    # reach this task later than the greeting.
    if (greeting.get('run') == self.attempt_id and self.attempt_id is not None
        and task in self.peers):
      assert task is not None
      if task in self.connections:  # The peer connects again, as it did not get the answer.
        self.connections[task].close()
      connection.send(run=self.attempt_id, task=list(self._task))
      self.connections[task] = connection
      return None
    if connection.end_reason or self._clock() - opened_at > HANDSHAKE_TIMEOUT_SECS:
      connection.close()
      return None
    return _PendingConnection(connection, opened_at, greeting)

  def _connect(self, task: Task) -> None:
    """Connects to a peer; each call tries the next of its addresses."""
    self._last_attempt_at[task] = self._clock()
    addresses = self._addresses.get(task)
    if not addresses:
      return
    self._addresses[task] = addresses[1:] + addresses[:1]
    try:
      connection = Connection(network.connect(*addresses[0], timeout_secs=_CONNECT_TIMEOUT_SECS))
    except OSError:
      return
    connection.send(run=self.attempt_id, task=list(self._task))
    self._outgoing[task] = _PendingConnection(connection, self._clock(), {})

  def _handle_answer(self, task: Task, pending: _PendingConnection) -> None:
    """Establishes an outgoing connection if the answer is valid; closes it after the timeout."""
    connection = pending.connection
    for answer in connection.receive():
      if answer.get('run') == self.attempt_id and parse_task(answer.get('task')) == task:
        self.connections[task] = self._outgoing.pop(task).connection
        return
    if connection.end_reason or self._clock() - pending.opened_at > HANDSHAKE_TIMEOUT_SECS:
      self._outgoing.pop(task).connection.close()


def accept_connections(listener: Any) -> List[Connection]:
  """Accepts and returns all connections that are waiting at a listener."""
  connections = []
  try:
    while True:
      connections.append(Connection(listener.accept()[0]))
  except OSError:  # No connection is waiting, or the next waiting connection has already ended.
    return connections
