"""The states of the tasks of a cluster, and the messages by which the tasks exchange them.

The chief is connected to all other tasks, which are connected only to the chief. The chief forwards
what concerns all tasks: the lowest step at which any task asks all tasks to stop, a busy task, and
the first lost task. cluster_peers.py sends and receives the messages.

| message | content | from | sent |
|---|---|---|---|
| `state` | the state of the task; `stop_at`: the lowest known step, or null | all | each second |
| added to `state` | `busy`: a busy task and its state, or null; `all_trained` | chief | |
| added to `state` | `all_stop_at`: the `stop_at` that all tasks have confirmed, or null | chief | |
| `bye` | true; `measurements`: what the task measured | all | at the end |
| `failed` | why the task ends, and with it the run; `code`: its exit code | all | at the end |
| `lost` | the first lost task; `reason`; `code` | chief | once a task is lost |
"""

import itertools
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

from estimator_train.distribution.peers import READY, STARTING, TRAINED, TRAINING
from estimator_train.distribution.tf_config import Cluster, Task
from estimator_train.errors import PeerLost, TrainingFailed, UserError

_HEARTBEAT_SECS = 1.
# The exit codes of failures that a restart cannot fix, so all tasks end with the same code.
_PERMANENT_EXIT_CODES = UserError.exit_code, TrainingFailed.exit_code
MAX_REASON_CHARS, _MAX_STATE_CHARS = 200, 40


class LostTask(NamedTuple):
  """The first lost task. Later losses are consequences of the first, and are ignored.

  Attributes:
    exit_code: the code with which all tasks end.
  """
  task: Task
  reason: str
  exit_code: int = PeerLost.exit_code

  def __str__(self) -> str:
    if self.exit_code == PeerLost.exit_code:
      return 'lost {}: {}; the same command resumes from the last checkpoint'.format(*self)
    return '{} failed: {}'.format(*self)


class OutgoingMessage(NamedTuple):
  task: Task
  message: Dict[str, Any]


class _Peer:
  """The last known state of a task to which this task is connected.

  Attributes:
    state_message: the last `state` message; empty until one has arrived.
    measurements: None until the task has sent its goodbye.
    last_message_at: the time of the tick that followed the last message; None before that tick.
  """

  def __init__(self) -> None:
    self.state_message: Dict[str, Any] = {}
    self.state = STARTING
    self.has_trained = False
    self.measurements: Optional[Dict[str, Any]] = None
    self.last_message_at: Optional[float] = None

  @property
  def has_left(self) -> bool:
    return self.measurements is not None


class ClusterState:
  """The states of this task and of the tasks to which it is connected.

  Args:
    peer_timeout_secs: another task is lost if no message from it arrives for this time. This task
      is lost if it does not call `tick` for this time, because it was suspended.

  Attributes:
    stop_step: None if no task has asked all tasks to stop.
    lost: None if no task is lost.
  """

  def __init__(self, cluster: Cluster, peer_timeout_secs: float) -> None:
    self._cluster, self._peer_timeout_secs = cluster, peer_timeout_secs
    self._peers = {task: _Peer() for task in (
        cluster.members if cluster.is_chief else (cluster.chief,)) if task != cluster.task}
    self._state, self._has_trained = STARTING, False
    self.stop_step: Optional[int] = None
    self.lost: Optional[LostTask] = None
    self._last_tick_at: Optional[float] = None
    self._longest_tick_interval_secs = 0.
    # The last heartbeat without its field `busy`, and the time at which it was sent.
    self._last_heartbeat: Tuple[Dict[str, Any], float] = ({}, 0.)

  def announce_state(self, state: str) -> None:
    self._state = state
    self._has_trained = self._has_trained or state == TRAINED

  def request_stop(self, global_step: int) -> None:
    """Requests a stop of all tasks at a step, unless a stop at an earlier step is requested."""
    if self.stop_step is None or global_step < self.stop_step:
      self.stop_step = global_step

  def handle_message(self, task: Task, message: Dict[str, Any]) -> None:
    peer = self._peers[task]
    peer.last_message_at = None
    if 'state' in message:
      peer.state_message, peer.state = message, message['state'][:_MAX_STATE_CHARS]
      peer.has_trained = peer.has_trained or peer.state == TRAINED
      if message.get('stop_at') is not None:
        self.request_stop(message['stop_at'])
    if message.get('bye'):
      peer.measurements = message.get('measurements', {})
    if 'failed' in message:
      self._record_loss(task, message['failed'], message.get('code'))
    elif 'lost' in message:
      lost, reason = Task(*message['lost']), message.get('reason', '')
      if lost == self._cluster.task:
        reason = ('this task was reported as lost by {} ({}); the longest time in which this task '
                  'read no messages was {:.1f} s').format(
                      task, reason[:MAX_REASON_CHARS // 4], self._longest_tick_interval_secs)
      self._record_loss(lost, reason, message.get('code'))

  def handle_disconnection(self, task: Task, reason: str) -> None:
    """Records a task whose connection has ended as lost, unless it has sent a goodbye."""
    if not self._peers[task].has_left:
      self._record_loss(task, reason)

  def tick(self, now: float) -> List[OutgoingMessage]:
    """Detects silent tasks, and returns the messages that must be sent now.

    Must be called several times per second, until a task is lost.

    Args:
      now: the time in seconds from any origin.
    """
    interval_secs = 0. if self._last_tick_at is None else now - self._last_tick_at
    self._last_tick_at = now
    self._longest_tick_interval_secs = max(interval_secs, self._longest_tick_interval_secs)
    self._detect_silent_tasks(now, interval_secs)
    if self.lost is None:
      return list(self._heartbeats_due(now))
    task, reason, code = self.lost
    if self._cluster.is_chief:
      return self.messages_to_all(lost=list(task), reason=reason, code=code)
    return self.messages_to_all(failed=reason) if task == self._cluster.task else []

  def messages_to_all(self, **message: Any) -> List[OutgoingMessage]:
    """Addresses a message to all connected tasks that have not sent a goodbye."""
    return [OutgoingMessage(task, message)
            for task, peer in self._peers.items() if not peer.has_left]

  def is_another_task_busy(self) -> bool:
    """Whether the next step of another task may take long."""
    return any(self._busy_tasks_and_states()) or bool(
        not self._cluster.is_chief and not self._chief.has_left
        and self._chief.state_message.get('busy'))

  def has_chief_started(self) -> bool:
    """Whether the chief has left the state STARTING. Only for other tasks."""
    return self._chief.state != STARTING

  def is_stop_confirmed(self, global_step: int) -> bool:
    """Whether all tasks know that they stop at this step or before it."""
    if self._cluster.is_chief:
      return self._confirmed_stop_step() is not None
    confirmed = self._chief.state_message.get('all_stop_at')
    return self._chief.has_left or (confirmed is not None and confirmed <= global_step)

  def have_all_trained(self) -> bool:
    """Whether all workers have completed their last step."""
    if not self._cluster.is_chief:
      return self._chief.has_left or bool(self._chief.state_message.get('all_trained'))
    return self._has_trained and all(
        peer.has_left or peer.has_trained for _, peer in self._worker_peers())

  def measurements(self) -> Optional[Dict[Task, Dict[str, Any]]]:
    """Returns the measurements of the connected workers; None until all have sent goodbyes."""
    by_task = {task: peer.measurements for task, peer in self._worker_peers()}
    return None if None in by_task.values() else {
        task: values for task, values in by_task.items() if values is not None}

  @property
  def _chief(self) -> _Peer:
    return self._peers[self._cluster.chief]

  def _worker_peers(self) -> List[Tuple[Task, _Peer]]:
    return [(task, peer) for task, peer in self._peers.items() if task in self._cluster.workers]

  def _busy_tasks_and_states(self) -> Iterator[Tuple[Task, str]]:
    """Yields each connected task whose next step may take long, with its state."""
    return ((task, peer.state) for task, peer in self._peers.items()
            if not peer.has_left and peer.state not in (READY, TRAINING, TRAINED))

  def _confirmed_stop_step(self) -> Optional[int]:
    """Returns the stop step once all connected tasks have confirmed it. Only for the chief."""
    confirmed = {peer.state_message.get('stop_at')
                 for peer in self._peers.values() if not peer.has_left}
    return self.stop_step if confirmed <= {self.stop_step} else None

  def _heartbeats_due(self, now: float) -> Iterator[OutgoingMessage]:
    """Yields a heartbeat to each task if the content has changed, or a second has passed."""
    message: Dict[str, Any] = {'state': self._state, 'stop_at': self.stop_step}
    if self._cluster.is_chief:
      message.update(all_trained=self.have_all_trained(), all_stop_at=self._confirmed_stop_step())
    last_message, sent_at = self._last_heartbeat
    if message == last_message and now - sent_at < _HEARTBEAT_SECS:
      return
    self._last_heartbeat = message, now
    # Of two busy tasks, at least one is not the receiver.
    busy = list(itertools.islice(
        self._busy_tasks_and_states(), 2)) if self._cluster.is_chief else []
    for heartbeat in self.messages_to_all(**message):
      other_busy = [(task, state) for task, state in busy if task != heartbeat.task]
      yield heartbeat if not other_busy else heartbeat._replace(
          message=dict(message, busy=other_busy[0]))

  def _detect_silent_tasks(self, now: float, interval_secs: float) -> None:
    if interval_secs > self._peer_timeout_secs:
      # Tasks that seem silent may be alive, because this task has not read their messages.
      self._record_loss(self._cluster.task,
                        'this task was suspended for {:.0f} s'.format(interval_secs))
    for task, peer in self._peers.items():
      if peer.last_message_at is None:
        peer.last_message_at = now
      elif now - peer.last_message_at > self._peer_timeout_secs and not peer.has_left:
        self._record_loss(
            task, 'no message from it for {:.0f} s'.format(now - peer.last_message_at))

  def _record_loss(self, task: Task, reason: str, task_exit_code: Optional[int] = None) -> None:
    if self.lost is None:
      exit_code = task_exit_code if task_exit_code in _PERMANENT_EXIT_CODES else None
      self.lost = LostTask(task, reason[:MAX_REASON_CHARS], exit_code or PeerLost.exit_code)
