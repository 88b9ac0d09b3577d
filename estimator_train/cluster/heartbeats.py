"""Exchanges heartbeats between the tasks until the end of the run, and detects lost tasks.

A task sends its messages to its peers; see mesh.py. The chief, whose peers are all other tasks,
adds to its messages what the others have to know about tasks that are not their peers. Each task
passes on the lowest step at which any task asks all tasks to stop, and the first lost task.

| message | content | sent |
|---|---|---|
| `state` | the state of the task; `stop_at`: the lowest known step, or null | each second |
| with it, by the chief | `busy`: a busy task and its state, or null; `all_trained` | |
| with it, by the chief | `all_stop_at`: the `stop_at` that all tasks have confirmed, or null | |
| `bye` | true; `note`: the measurements of the task | by `finish` |
| `lost` | the lost task; `reason` | by `report_failure` or once a task is lost |
"""

import itertools
import threading
import time
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from estimator_train.cluster.messages import Connection, limit_size, parse_task, wait_readable
from estimator_train.cluster.peer import STARTING, Peer
from estimator_train.cluster.tf_config import Task
from estimator_train.errors import PeerLost

_HEARTBEAT_SECS = 1.
_POLL_SECS = .2
# Time from the end of a connection until its task counts as lost. If that task ended only because
# a second task was lost, a message that names the second task arrives within this time.
_GRACE_SECS = .5
_GOODBYE_TIMEOUT_SECS = 2.
_REPORTED = ' (reported by '
_MAX_REASON_CHARS = 200

LostTaskHandler = Callable[[Task, str], None]  # Called with the lost task and the reason.


class _LostTask(NamedTuple):
  task: Task
  reason: str

  def __str__(self) -> str:
    return 'lost {}: {}'.format(*self)


def boot_clock() -> float:
  """Returns monotonic seconds, including suspensions of the machine if the system counts them."""
  try:
    return time.clock_gettime(7)  # CLOCK_BOOTTIME, for which CPython 3.6 has no constant.
  except (AttributeError, OSError):
    return time.monotonic()


class Peers:
  """The connections to the peers of this task, which are all other tasks if it is the chief.

  A thread sends a heartbeat each second, and receives the heartbeats of the peers. All methods are
  thread-safe.

  Args:
    task: the task of this process.
    chief: the chief of the cluster.
    connections: a connection to each peer.
    clock: returns the time in seconds, from any origin; monotonic.

  Attributes:
    task: the argument.
  """

  def __init__(self, task: Task, chief: Task, connections: Dict[Task, Connection],
               clock: Callable[[], float] = boot_clock) -> None:
    self.task, self._chief, self._clock = task, chief, clock
    now = clock()
    self._peers = {peer: Peer(peer, connection, now) for peer, connection in connections.items()}
    self._changed = threading.Condition()  # Guards the peers and the attributes below.
    self._state = STARTING
    self._stop_step: Optional[int] = None
    self._has_seen_all_trained = False  # Only on the chief.
    self._peer_timeout_secs: Optional[float] = None
    self._on_task_lost: Optional[LostTaskHandler] = None
    self._first_lost_task: Optional[_LostTask] = None
    self._final_message: Optional[Dict[str, Any]] = None
    self._polled_at, self._heartbeat_sent_at = now, -float('inf')
    self._longest_poll_interval_secs = 0.
    self._thread = threading.Thread(target=self._exchange_messages, name='peers', daemon=True)
    self._thread.start()

  def announce_state(self, state: str) -> None:
    """Sends this task's state: READY, TRAINING, TRAINED, or text that names a long activity."""
    with self._changed:
      self._state = state
      self._send_heartbeats_soon()

  def stop_all_at(self, global_step: int) -> None:
    """Asks all tasks to stop at a global step, and waits until all of them know it.

    Args:
      global_step: a step that no task can complete before this method returns.

    Raises:
      PeerLost: a task was lost during the wait.
    """
    with self._changed:
      self._lower_stop_step(global_step)
    if self.task == self._chief:
      self._wait_until(lambda: self._stop_step_of_all() is not None)
      return
    chief = self._peers[self._chief]
    self._wait_until(lambda: chief.is_finished or (
        chief.stop_step_of_all is not None and chief.stop_step_of_all <= global_step))

  def _stop_step_of_all(self) -> Optional[int]:
    """Returns the stop step if all peers have confirmed it; only on the chief."""
    confirmed = {peer.stop_step for peer in self._peers.values() if not peer.is_finished}
    return self._stop_step if confirmed <= {self._stop_step} else None

  @property
  def stop_step(self) -> Optional[int]:
    """The lowest global step at which any task asks all tasks to stop; None if no task asks."""
    return self._stop_step

  def set_lost_task_handler(self, peer_timeout_secs: float, on_task_lost: LostTaskHandler) -> None:
    """Sets the function to call when a task is lost; calls it soon if a task is already lost.

    Args:
      peer_timeout_secs: seconds without a message until a task counts as lost. If this process was
        suspended for longer, its own task counts as lost.
      on_task_lost: called once, in another thread, with the first lost task and the reason.
    """
    with self._changed:
      self._peer_timeout_secs, self._on_task_lost = peer_timeout_secs, on_task_lost

  def busy_peer(self) -> Optional[Tuple[Task, str]]:
    """Returns a task whose next step may take long, and its state; None: there is no such task."""
    with self._changed:
      chief = self._peers.get(self._chief)
      reported = chief.busy_task if chief and not chief.is_finished else None
      return next(self._busy_peers(), reported)

  def _busy_peers(self) -> Iterator[Tuple[Task, str]]:
    return ((task, peer.state) for task, peer in self._peers.items() if peer.is_busy)

  def wait_until_started(self, task: Task) -> None:
    """Waits until a peer has left the state STARTING.

    Raises:
      PeerLost: a task was lost during the wait.
    """
    self._wait_until(lambda: self._peers[task].state != STARTING)

  def wait_until_trained(self, workers: Sequence[Task]) -> None:
    """Waits until all workers have completed their last step; this task must have announced it.

    Raises:
      PeerLost: a task was lost during the wait.
    """
    if self.task != self._chief:
      chief = self._peers[self._chief]
      self._wait_until(lambda: chief.is_finished or chief.has_seen_all_trained)
      return
    others = [self._peers[task] for task in workers if task != self.task]
    self._wait_until(lambda: all(peer.is_trained for peer in others))
    with self._changed:
      self._has_seen_all_trained = True
      self._send_heartbeats_soon()

  def wait_until_finished(self, tasks: Sequence[Task]) -> Dict[Task, Dict[str, Any]]:
    """Waits until the given peers have called `finish`; ignores the task of this process.

    Returns:
      The measurements that each awaited peer passed to `finish`.

    Raises:
      PeerLost: a task was lost during the wait.
    """
    waited_for = {task: self._peers[task] for task in tasks if task != self.task}
    self._wait_until(lambda: all(peer.is_finished for peer in waited_for.values()))
    return {task: peer.measurements for task, peer in waited_for.items()}

  def _wait_until(self, condition: Callable[[], bool]) -> None:
    with self._changed:
      while not condition():
        if self._first_lost_task is not None:
          raise PeerLost(str(self._first_lost_task))
        self._changed.wait(_POLL_SECS)  # The timeout lets Python's signal handlers run.

  def finish(self, measurements: Optional[Dict[str, Any]] = None) -> None:
    """Sends a goodbye. From then on, this task reports no lost task, and is not reported as lost.

    Args:
      measurements: sent with the goodbye; omitted if they are too large for a message.
    """
    self._end_with({'bye': True, 'note': limit_size(measurements or {})})

  def report_failure(self, reason: str) -> None:
    """Reports this task as lost, with the reason. The report ends the run on all other tasks."""
    self._end_with({'lost': list(self.task), 'reason': reason[:_MAX_REASON_CHARS]})

  def _end_with(self, final_message: Dict[str, Any]) -> None:
    """Makes the thread send a final message, and waits until the thread has ended."""
    with self._changed:
      self._final_message = self._final_message or final_message
    if threading.current_thread() is not self._thread:
      self._thread.join(2 * _GOODBYE_TIMEOUT_SECS)

  def _exchange_messages(self) -> None:
    """Runs in the thread until the final message is sent or a task is lost."""
    try:
      while True:
        readable = wait_readable(self._open_peers(), _POLL_SECS)
        with self._changed:
          if self._final_message is not None:
            break
          self._poll(readable)
          self._changed.notify_all()
          lost, on_task_lost = self._first_lost_task, self._on_task_lost
        if lost is not None and on_task_lost is not None:
          self._send_final_message({'lost': list(lost.task), 'reason': lost.reason}, _GRACE_SECS)
          on_task_lost(*lost)
          return
      self._send_final_message(self._final_message, _GOODBYE_TIMEOUT_SECS)
    finally:
      for peer in self._peers.values():
        peer.connection.close()

  def _poll(self, readable: Sequence[Peer]) -> None:
    now = self._clock()
    interval_secs, self._polled_at = now - self._polled_at, now
    self._longest_poll_interval_secs = max(interval_secs, self._longest_poll_interval_secs)
    if self._peer_timeout_secs is not None and interval_secs > self._peer_timeout_secs:
      # The silent tasks may be alive: this process has not read their messages since the last poll.
      self._record_lost_task(
          self.task, 'this task was suspended for {:.0f} s'.format(interval_secs))
    for peer in readable:
      self._receive(peer, now)
    for peer in self._open_peers():
      peer.connection.flush()
    if now - self._heartbeat_sent_at >= _HEARTBEAT_SECS:
      self._heartbeat_sent_at = now
      self._send_heartbeats()
    self._detect_lost_tasks(now)

  def _send_heartbeats_soon(self) -> None:
    self._heartbeat_sent_at = -float('inf')

  def _send_heartbeats(self) -> None:
    message: Dict[str, Any] = {'state': self._state, 'stop_at': self._stop_step}
    busy: List[Tuple[Task, str]] = []
    if self.task == self._chief:
      message['all_trained'] = self._has_seen_all_trained
      message['all_stop_at'] = self._stop_step_of_all()
      busy = list(itertools.islice(self._busy_peers(), 2))
    for peer in self._open_peers():
      # A peer that does not read its messages gets no more, so that the queue does not grow.
      if peer.connection.has_sent_all:
        others = [entry for entry in busy if entry[0] != peer.task]
        peer.connection.send(busy=others[0] if others else None, **message)

  def _lower_stop_step(self, global_step: int) -> None:
    """Requests a stop at a global step, unless a stop at an earlier step has been requested."""
    if self._stop_step is None or global_step < self._stop_step:
      self._stop_step = global_step
      self._send_heartbeats_soon()

  def _receive(self, peer: Peer, now: float) -> None:
    """Handles the messages of a peer that concern other tasks."""
    confirmed_stop_step = peer.stop_step
    for message in peer.receive(now):
      if peer.stop_step is not None:
        self._lower_stop_step(peer.stop_step)
      lost = parse_task(message.get('lost'))
      if lost is not None:
        reason = str(message.get('reason'))[:_MAX_REASON_CHARS]
        self._record_lost_task(lost, self._complete_reason(reason, peer.task, lost))
    if peer.stop_step != confirmed_stop_step:
      self._send_heartbeats_soon()  # The chief passes on that all tasks have confirmed it.

  def _complete_reason(self, reason: str, sender: Task, lost: Task) -> str:
    """Adds the name of the sending task to a reason, unless the sender itself is lost."""
    if lost == sender:
      return reason
    if lost == self.task:
      return ('this task was reported as lost by {} ({}); the longest time in which this task read '
              'no messages was {:.1f} s').format(sender, reason, self._longest_poll_interval_secs)
    # Between other tasks, a reason may have been passed on several times.
    return reason if _REPORTED in reason else '{}{}{})'.format(reason, _REPORTED, sender)

  def _detect_lost_tasks(self, now: float) -> None:
    """Records a task whose connection has ended, or from which no message has arrived in time."""
    ended = [(peer.ended_at, task) for task, peer in self._peers.items()
             if peer.ended_at is not None]
    if ended and now - min(ended)[0] >= _GRACE_SECS:
      first = min(ended)[1]
      self._record_lost_task(first, self._peers[first].connection.end_reason)
    silent = [(peer.last_message_at, task) for task, peer in self._peers.items()
              if not peer.is_finished and peer.ended_at is None]
    if silent and self._peer_timeout_secs is not None:
      last_message_at, task = min(silent)
      if now - last_message_at > self._peer_timeout_secs:
        self._record_lost_task(
            task, 'no message from it for {:.0f} s'.format(now - last_message_at))

  def _record_lost_task(self, task: Task, reason: str) -> None:
    """Records a lost task if it is the first: the later ones are consequences of the first."""
    if self._first_lost_task is None:
      self._first_lost_task = _LostTask(task, reason)

  def _send_final_message(self, message: Dict[str, Any], timeout_secs: float) -> None:
    """Sends the final message to all tasks, and waits until the tasks close their connections."""
    for peer in self._open_peers():
      peer.connection.send(**message)
    deadline = time.monotonic() + timeout_secs
    while self._open_peers() and time.monotonic() < deadline:
      for peer in self._open_peers():
        peer.connection.end_sending()
      for peer in wait_readable(self._open_peers(), _POLL_SECS):
        peer.connection.receive()

  def _open_peers(self) -> List[Peer]:
    return [peer for peer in self._peers.values() if peer.is_open]
