"""A member that is not the chief, before TensorFlow starts: calls the chief and does as told."""

from typing import Any, Dict, List, Optional, Sequence

from estimator_train.cluster import network
from estimator_train.cluster.mesh import Mesh, Place
from estimator_train.cluster.messages import Connection, is_port, task_of, wait_readable
from estimator_train.cluster.start_timeout import StartTimeout
from estimator_train.cluster.tf_config import Cluster, Task
from estimator_train.errors import UserError

_CONNECT_SECS = 5.
_PAUSE_SECS = .5
_TURN_SECS = .2
_BEAT_SECS = 1.
# What answers otherwise, or not at all, is no waiting chief: TensorFlow's server, where the chief
# is training still because the others have not noticed yet that this task was lost.
_ANSWER_SECS = 5.
_SILENT_SECS = 30.


def meet(cluster: Cluster, facts: Dict[str, str], mesh: Mesh, timeout: StartTimeout) -> None:
  """Returns once the mesh is complete and everyone else's is too."""
  host, port = network.split_address(cluster.address(cluster.chief))
  missing = '{} at {}'.format(cluster.chief, cluster.address(cluster.chief))
  while True:
    try:
      connection = Connection(network.connect(host, port, _CONNECT_SECS))
    except OSError:
      pass
    else:
      try:
        connection.send(hello=1, task=list(cluster.task), facts=facts, port=mesh.port)
        if _Stay(cluster, facts, mesh, timeout, connection).until_told_to_go():
          return
      finally:
        connection.close()
      mesh.drop()
    timeout.check([missing])
    wait_readable(mesh.sockets(), _PAUSE_SECS)
    mesh.take_turn()


class _Stay:
  """One connection to the chief, until it ends."""

  def __init__(self, cluster: Cluster, facts: Dict[str, str], mesh: Mesh, timeout: StartTimeout,
               connection: Connection) -> None:
    self._cluster, self._facts, self._mesh = cluster, facts, mesh
    self._timeout, self._chief = timeout, connection
    self._heard_at: Optional[float] = None
    self._missing: Sequence[str] = [str(cluster.chief)]

  def until_told_to_go(self) -> bool:
    """Returns True when told so; False when the chief is gone, or was none."""
    clock = self._timeout.clock
    began = clock()
    sent_at = began
    while not self._chief.ended:
      wait_readable([self._chief] + self._mesh.sockets(), _TURN_SECS)
      now = clock()
      for message in self._chief.receive():
        self._heard_at = now
        if self._obey(message):
          return True
      was_complete = self._mesh.is_complete
      self._mesh.take_turn()
      if now - sent_at >= _BEAT_SECS or self._mesh.is_complete != was_complete:
        sent_at = now
        self._chief.send(meshed=self._mesh.run if self._mesh.is_complete else None)
      self._chief.flush()
      silent_since, limit = ((began, _ANSWER_SECS) if self._heard_at is None
                             else (self._heard_at, _SILENT_SECS))
      if now - silent_since > limit:
        return False
      self._timeout.check(self._waits_for())
    return False

  def _waits_for(self) -> Sequence[str]:
    if self._mesh.run is not None and self._mesh.missing:
      return ['a connection to {}'.format(task) for task in self._mesh.missing]
    return self._missing

  def _obey(self, message: Dict[str, Any]) -> bool:
    """Does what the chief says; returns whether that is to go."""
    run = message.get('run')
    if 'refused' in message:
      raise _refusal(self._cluster.task, self._facts, message)
    if message.get('taken'):
      raise UserError('another process is {} already'.format(self._cluster.task),
                      'TF_CONFIG: task.type={} task.index={}'.format(*self._cluster.task),
                      'end that one, or give each process a task of its own')
    if 'go' in message:
      return self._mesh.is_complete and message['go'] == self._mesh.run
    if isinstance(message.get('missing'), list):
      self._missing = [str(name)[:40] for name in message['missing']] or self._missing
      if run is None and self._mesh.run is not None:  # One was lost: it begins anew.
        self._mesh.drop()
    if isinstance(run, str) and isinstance(message.get('members'), list):
      self._mesh.start(run, self._places(message['members']))
    return False

  def _places(self, members: Sequence[Any]) -> Dict[Task, List[Place]]:
    """Returns where to call each: at its address in TF_CONFIG, and at that which the chief sees."""
    places: Dict[Task, List[Place]] = {}
    for entry in members:
      task = task_of(entry.get('task')) if isinstance(entry, dict) else None
      if task not in self._cluster.members or not is_port(entry.get('port')):
        continue
      assert task is not None
      seen = (network.peer_host(self._chief.socket) if task == self._cluster.chief
              else str(entry.get('host')))
      hosts = [network.split_address(self._cluster.address(task))[0], seen]
      places[task] = [(host, entry['port']) for host in dict.fromkeys(hosts) if host]
    return places


def _refusal(task: Task, facts: Dict[str, str], message: Dict[str, Any]) -> UserError:
  """Returns the error that says which fact differs from the chief's."""
  name, theirs = str(message['refused']), message.get('chief')
  shown = ['{}={}'.format(name, facts[name]) if name in facts else 'no {}'.format(name),
           'none' if theirs is None else str(theirs)]
  given = '{} here and {} on the chief'.format(*shown)
  if name.startswith('--'):
    return UserError('this {} was started with other flags than the chief'.format(task.type),
                     given, 'give all tasks the same flags')
  if name == 'TF_CONFIG':
    return UserError('this {} was started with another cluster than the chief'.format(task.type),
                     given, 'give all tasks the same TF_CONFIG but for its task')
  return UserError('this {} is not like the chief'.format(task.type), given,
                   'make {} the same for all tasks'.format(name))
