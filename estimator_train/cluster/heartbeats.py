"""Exchanges heartbeats between the tasks until the end of the run, and detects lost tasks."""

import os
import sys
import threading
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from estimator_train.cluster.messages import Connection, parse_task, wait_readable
from estimator_train.cluster.tf_config import Task
from estimator_train.errors import PeerLost

# States of a task. A task is READY once its model is prepared, and TRAINED after its last step.
STARTING, READY, TRAINING, TRAINED = 'starting', 'ready', 'training', 'trained'
_HEARTBEAT_SECS = 1.
_POLL_SECS = .2
# Time from the end of a connection until its task counts as lost. If that task ended only because
# a second task was lost, a message that names the second task arrives within this time.
_GRACE_SECS = .5
_GOODBYE_TIMEOUT_SECS = 2.
_PRINT_TIMEOUT_SECS = 2.
_MAX_STATE_CHARS, _MAX_REASON_CHARS = 40, 200

LostTaskHandler = Callable[[Task, str], None]  # Called with the lost task and the reason.


class _LostTask(NamedTuple):
  task: Task
  reason: str

  def __str__(self) -> str:
    return 'lost {}: {}'.format(*self)


class _Peer:
  """Another task, as known from its messages.

  Attributes:
    last_message_at: time of the last message of the task, by the clock of Peers.
    state: the last announced state of the task.
    is_finished: whether the task has sent its goodbye.
    measurements: the measurements that the task sent with its goodbye.
    stop_step: the global step at which the task asks all tasks to stop; None: no such request.
    ended_at: time at which the connection ended without a goodbye; None otherwise.
  """

  def __init__(self, connection: Connection, now: float) -> None:
    self.connection, self.last_message_at = connection, now
    self.state = STARTING
    self.is_finished = False
    self.measurements: Dict[str, Any] = {}
    self.stop_step: Optional[int] = None
    self.ended_at: Optional[float] = None

  @property
  def is_open(self) -> bool:
    return not self.connection.end_reason


def boot_clock() -> float:
  """Returns monotonic seconds, including suspensions of the machine if the system counts them."""
  try:
    return time.clock_gettime(7)  # CLOCK_BOOTTIME, for which CPython 3.6 has no constant.
  except (AttributeError, OSError):
    return time.monotonic()


class Peers:
  """The connections to all other members of the cluster.

  A thread sends a heartbeat each second, and receives the heartbeats of the other members. All
  methods are thread-safe.

  Args:
    task: the task of this process.
    connections: a connection to each other member.
    clock: returns the time in seconds, from any origin; monotonic.
  """

  def __init__(self, task: Task, connections: Dict[Task, Connection],
               clock: Callable[[], float] = boot_clock) -> None:
    self.task, self._clock = task, clock
    now = clock()
    self._peers = {peer: _Peer(connection, now) for peer, connection in connections.items()}
    self._changed = threading.Condition()  # Guards the peers and the attributes below.
    self._state = STARTING
    self._stop_step: Optional[int] = None
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
      self._heartbeat_sent_at = -float('inf')

  def stop_all_at(self, global_step: int) -> None:
    """Asks all tasks to stop at a global step that none of them has reached yet."""
    with self._changed:
      self._stop_step = global_step
      self._heartbeat_sent_at = -float('inf')

  @property
  def stop_step(self) -> Optional[int]:
    """The lowest global step at which any task asks all tasks to stop; None if no task asks."""
    with self._changed:
      steps = [self._stop_step] + [peer.stop_step for peer in self._peers.values()]
    return min((step for step in steps if step is not None), default=None)

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
      for task, peer in self._peers.items():
        if not peer.is_finished and peer.state not in (READY, TRAINING, TRAINED):
          return task, peer.state
    return None

  def wait_until_started(self, task: Task) -> None:
    """Waits until another task has left the state STARTING.

    Raises:
      PeerLost: a task was lost during the wait.
    """
    self._wait_until(lambda: self._peers[task].state != STARTING)

  def wait_until_trained(self, tasks: Sequence[Task]) -> None:
    """Waits until the given tasks, except the task of this process, have completed their last step.

    Raises:
      PeerLost: a task was lost during the wait.
    """
    others = [self._peers[task] for task in tasks if task != self.task]
    self._wait_until(lambda: all(peer.is_finished or peer.state == TRAINED for peer in others))

  def wait_until_finished(self, tasks: Sequence[Task]) -> Dict[Task, Dict[str, Any]]:
    """Waits until the given tasks, except the task of this process, have called `finish`.

    Returns:
      The measurements that each awaited task passed to `finish`.

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
      measurements: sent with the goodbye; less than 60 kB as JSON.
    """
    self._end_with({'bye': True, 'note': measurements or {}})

  def report_failure(self, reason: str) -> None:
    """Reports this task as lost, with the reason. The report ends the run on all other tasks."""
    self._end_with({'lost': list(self.task), 'reason': reason})

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
        wait_readable(self._open_connections(), _POLL_SECS)
        with self._changed:
          if self._final_message is not None:
            break
          self._poll()
          self._changed.notify_all()
          lost, on_task_lost = self._first_lost_task, self._on_task_lost
        if lost is not None and on_task_lost is not None:
          self._send_final_message({'lost': list(lost.task), 'reason': lost.reason}, 0.)
          on_task_lost(*lost)
          return
      self._send_final_message(self._final_message, _GOODBYE_TIMEOUT_SECS)
    finally:
      for peer in self._peers.values():
        peer.connection.close()

  def _poll(self) -> None:
    now = self._clock()
    interval_secs, self._polled_at = now - self._polled_at, now
    self._longest_poll_interval_secs = max(interval_secs, self._longest_poll_interval_secs)
    if self._peer_timeout_secs is not None and interval_secs > self._peer_timeout_secs:
      # The silent tasks may be alive: this process has not read their messages since the last poll.
      self._record_lost_task(
          self.task, 'this task was suspended for {:.0f} s'.format(interval_secs))
    for task, peer in self._peers.items():
      if peer.is_open:
        self._receive(task, peer, now)
    if now - self._heartbeat_sent_at >= _HEARTBEAT_SECS:
      self._heartbeat_sent_at = now
      for peer in self._peers.values():
        # A peer that does not read its messages gets no more, so that the queue does not grow.
        if peer.is_open and peer.connection.has_sent_all:
          peer.connection.send(state=self._state, stop_at=self._stop_step)
    self._detect_lost_tasks(now)

  def _receive(self, sender: Task, peer: _Peer, now: float) -> None:
    """Handles the messages of a task, and the end of its connection."""
    peer.connection.flush()
    for message in peer.connection.receive():
      peer.last_message_at = now
      peer.state = str(message.get('state', peer.state))[:_MAX_STATE_CHARS]
      if isinstance(message.get('stop_at'), int):
        peer.stop_step = message['stop_at']
      lost = parse_task(message.get('lost'))
      if message.get('bye'):
        peer.is_finished = True
        peer.measurements = message['note'] if isinstance(message.get('note'), dict) else {}
        peer.connection.close()  # The sender of a goodbye waits for the end of the connection.
        return
      if lost is not None:
        reason = str(message.get('reason'))[:_MAX_REASON_CHARS]
        self._record_lost_task(lost, self._complete_reason(reason, sender, lost))
    if peer.connection.end_reason:
      peer.ended_at = now

  def _complete_reason(self, reason: str, sender: Task, lost: Task) -> str:
    """Adds the name of the sending task to a reason, unless the sender itself is lost."""
    if lost == sender:
      return reason
    if lost == self.task:
      return ('this task was reported as lost by {} ({}); the longest time in which this task read '
              'no messages was {:.1f} s').format(sender, reason, self._longest_poll_interval_secs)
    return '{} (reported by {})'.format(reason, sender)

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
    for connection in self._open_connections():
      connection.send(**message)
      connection.end_sending()
    deadline = time.monotonic() + timeout_secs
    while self._open_connections() and time.monotonic() < deadline:
      for connection in wait_readable(self._open_connections(), _POLL_SECS):
        connection.receive()

  def _open_connections(self) -> List[Connection]:
    return [peer.connection for peer in self._peers.values() if peer.is_open]


def exit_now(message: str) -> None:
  """Prints a message, then ends the process with PeerLost.exit_code, even if a thread hangs."""
  # Prints in another thread, because `print` hangs if a hanging thread owns the lock of stderr.
  printer = threading.Thread(
      target=lambda: print(' '.join(message.split()), file=sys.stderr, flush=True), daemon=True)
  printer.start()
  printer.join(_PRINT_TIMEOUT_SECS)
  os._exit(PeerLost.exit_code)
