"""A connection between each two members of a cluster."""

import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from estimator_train.cluster import network
from estimator_train.cluster.messages import Connection, task_of
from estimator_train.cluster.tf_config import Task

_CONNECT_SECS = 2.
_PAUSE_SECS = .5
# Whoever calls must say in this time who it is, and whoever is called answer.
GREETING_SECS = 10.

Place = Tuple[str, int]


class _Caller(NamedTuple):
  """Someone at the other end of a connection who is yet to say, or to be believed, who it is."""
  connection: Connection
  since: float
  greeting: Dict[str, Any]


class Mesh:
  """This task's part in it: the later of two members calls the earlier.

  Nothing in it blocks for longer than a connection takes; `take_turn` is called again and again.

  Attributes:
    connections: those that both ends agree on, by the task at the other end.
    run: what all members of this attempt were told to call it; None while there is none.
  """

  def __init__(self, task: Task, members: Sequence[Task],
               clock: Callable[[], float] = time.monotonic) -> None:
    self._task, self._members, self._clock = task, tuple(members), clock
    self._listener = network.listen(0)
    self.port = int(self._listener.getsockname()[1])
    self.run: Optional[str] = None
    self.connections: Dict[Task, Connection] = {}
    self._places: Dict[Task, List[Place]] = {}
    self._callers: List[_Caller] = []
    self._called: Dict[Task, _Caller] = {}
    self._tried_at: Dict[Task, float] = {}

  @property
  def missing(self) -> Tuple[Task, ...]:
    """The members to which there is no connection yet."""
    return tuple(task for task in self._members
                 if task != self._task and task not in self.connections)

  @property
  def is_complete(self) -> bool:
    """Whether there is one to every other member."""
    return self.run is not None and not self.missing

  def sockets(self) -> List[Any]:
    """Returns what to wait for: when one of it can be read, it is time for a turn."""
    return [self._listener] + [
        caller.connection for caller in self._callers + list(self._called.values())
        if not caller.greeting]

  def start(self, run: str, places: Dict[Task, List[Place]]) -> None:
    """Begins an attempt.

    Args:
      run: the name of it.
      places: of each member that is to be called, where it may be listening; the likeliest first.
    """
    self.drop()
    self.run, self._places = run, places

  def drop(self) -> None:
    """Gives the attempt up, and closes what it has brought."""
    for connection in [*self.connections.values(),
                       *(called.connection for called in self._called.values())]:
      connection.close()
    self.run = None
    self.connections, self._called, self._tried_at = {}, {}, {}

  def take_turn(self) -> None:
    """Accepts, greets and calls whom there is to accept, greet and call."""
    now = self._clock()
    self._callers += [_Caller(connection, now, {}) for connection in accepted(self._listener)]
    self._callers = [caller for caller in map(self._listen_to, self._callers) if caller]
    if self.run is None:
      return
    for task, called in list(self._called.items()):
      self._hear_answer(task, called)
    earlier = self._members[:self._members.index(self._task)]
    for task in earlier:
      waited = now - self._tried_at.get(task, -_PAUSE_SECS)
      if task not in self.connections and task not in self._called and waited >= _PAUSE_SECS:
        self._call(task)
        return  # One a turn: each may take its time, and the chief is to hear of this task.

  def close(self) -> None:
    """Ends everything but the connections that have been made."""
    self._listener.close()
    for caller in [*self._callers, *self._called.values()]:
      caller.connection.close()

  def _listen_to(self, caller: _Caller) -> Optional[_Caller]:
    """Returns the caller with what it has said; None once it is accepted or given up."""
    connection, since, greeting = caller
    greeting = greeting or next(iter(connection.receive()), {})
    task = task_of(greeting.get('task'))
    # One may call before this task was told the name of the run.
    if greeting.get('run') == self.run and self.run is not None and task in self._members:
      assert task is not None
      if task in self.connections:  # It calls again because it has not heard the answer.
        self.connections[task].close()
      connection.send(run=self.run, task=list(self._task))
      self.connections[task] = connection
      return None
    if connection.ended or self._clock() - since > GREETING_SECS:
      connection.close()
      return None
    return _Caller(connection, since, greeting)

  def _call(self, task: Task) -> None:
    """Calls a member: at another of its places each time."""
    self._tried_at[task] = self._clock()
    places = self._places.get(task)
    if not places:
      return
    self._places[task] = places[1:] + places[:1]
    try:
      connection = Connection(network.connect(*places[0], timeout_secs=_CONNECT_SECS))
    except OSError:
      return
    connection.send(run=self.run, task=list(self._task))
    self._called[task] = _Caller(connection, self._clock(), {})

  def _hear_answer(self, task: Task, called: _Caller) -> None:
    connection = called.connection
    for answer in connection.receive():
      if answer.get('run') == self.run and task_of(answer.get('task')) == task:
        self.connections[task] = self._called.pop(task).connection
        return
    if connection.ended or self._clock() - called.since > GREETING_SECS:
      self._called.pop(task).connection.close()


def accepted(listener: Any) -> List[Connection]:
  """Returns the connections to all who have called a listener."""
  connections = []
  try:
    while True:
      connections.append(Connection(listener.accept()[0]))
  except OSError:  # There are no more, or one has hung up already.
    return connections
