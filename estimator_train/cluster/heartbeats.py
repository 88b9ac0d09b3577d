"""Heartbeats between the tasks, from the rendezvous to the end of the run."""

import os
import sys
import threading
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from estimator_train.cluster.messages import Connection, parse_task, wait_readable
from estimator_train.cluster.tf_config import Task
from estimator_train.errors import PeerLost

# States of a task; READY means that its model is prepared.
STARTING, READY, TRAINING, TRAINED = 'starting', 'ready', 'training', 'trained'
_HEARTBEAT_SECS = 1.
_POLL_SECS = .2
# How long to wait before a task whose connection ended is reported as lost. If that task ended
# because it had lost another one, a third task reports the earlier loss within this time.
_GRACE_SECS = .5
_GOODBYE_TIMEOUT_SECS = 2.
_PRINT_TIMEOUT_SECS = 2.
_MAX_STATE_CHARS, _MAX_REASON_CHARS = 40, 200

OnLost = Callable[[Task, str], None]


class _LostTask(NamedTuple):
  task: Task
  reason: str

  def __str__(self) -> str:
    return 'lost {}: {}'.format(*self)


class _Peer:
  """The state of another task.

  Attributes:
    last_message_at: time of its last message.
    state: its last reported state.
    is_finished: whether it has sent its goodbye.
    figures: the measurements that it sent with its goodbye.
    stop_step: the global step at which it asks all tasks to stop; None without a request.
    ended_at: when its connection ended without a goodbye; None otherwise.
  """

  def __init__(self, connection: Connection, now: float) -> None:
    self.connection = connection
    self.last_message_at = now
    self.state = STARTING
    self.is_finished = False
    self.figures: Dict[str, Any] = {}
    self.stop_step: Optional[int] = None
    self.ended_at: Optional[float] = None

  @property
  def is_open(self) -> bool:
    return not self.connection.end_reason


def boot_clock() -> float:
  """Returns a monotonic time in seconds; where supported, it includes suspension of the machine."""
  try:
    return time.clock_gettime(7)  # CLOCK_BOOTTIME, for which CPython 3.6 has no constant.
  except (AttributeError, OSError):
    return time.monotonic()


class Peers:
  """The connections to all other members of the cluster.

  A thread sends a heartbeat each second, and receives those of the other members. All methods are
  thread-safe.

  Args:
    task: the task of this process.
    connections: a connection to each other member.
    clock: returns the time in seconds, from any origin; monotonic.
  """

  def __init__(self, task: Task, connections: Dict[Task, Connection],
               clock: Callable[[], float] = boot_clock) -> None:
    self.task = task
    self._clock = clock
    now = clock()
    self._peers = {peer: _Peer(connection, now) for peer, connection in connections.items()}
    self._changed = threading.Condition()  # Guards the attributes below.
    self._state = STARTING
    self._stop_step: Optional[int] = None
    self._timeout_secs: Optional[float] = None
    self._on_lost: Optional[OnLost] = None
    self._loss: Optional[_LostTask] = None
    self._final_message: Optional[Dict[str, Any]] = None
    self._polled_at, self._sent_at = now, -float('inf')
    self._longest_pause = 0.
    self._thread = threading.Thread(target=self._run, name='peers', daemon=True)
    self._thread.start()

  def announce_state(self, state: str) -> None:
    """Sends this task's state: READY, TRAINING, TRAINED, or text that names a long activity."""
    with self._changed:
      self._state = state
      self._sent_at = -float('inf')

  def stop_all_at(self, global_step: int) -> None:
    """Asks all tasks to stop at a global step that none of them has reached yet."""
    with self._changed:
      self._stop_step = global_step
      self._sent_at = -float('inf')

  @property
  def stop_step(self) -> Optional[int]:
    """The lowest global step at which a task asks all to stop; None without a request."""
    with self._changed:
      steps = [self._stop_step] + [peer.stop_step for peer in self._peers.values()]
    return min((step for step in steps if step is not None), default=None)

  def set_loss_handler(self, peer_timeout_secs: float, on_lost: OnLost) -> None:
    """Sets the function to call when the first task is lost, or at once if one has been lost.

    Args:
      peer_timeout_secs: seconds without a message after which a task counts as lost.
      on_lost: called once, from a thread, with the task that was lost first and the reason. If this
        process itself was suspended for longer than the timeout, that task is its own.
    """
    with self._changed:
      self._timeout_secs, self._on_lost = peer_timeout_secs, on_lost

  def busy_peer(self) -> Optional[Tuple[Task, str]]:
    """Returns a task that may need long until its next step, with its state; None without one."""
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
    """Waits until all of the tasks, except this one, have ended their training.

    Raises:
      PeerLost: a task was lost during the wait.
    """
    others = [self._peers[task] for task in tasks if task != self.task]
    self._wait_until(lambda: all(peer.is_finished or peer.state == TRAINED for peer in others))

  def wait_until_finished(self, tasks: Sequence[Task]) -> Dict[Task, Dict[str, Any]]:
    """Waits until all of the tasks, except this one, have called `finish`.

    Returns:
      The figures that each of them passed to `finish`.

    Raises:
      PeerLost: a task was lost during the wait.
    """
    waited_for = {task: self._peers[task] for task in tasks if task != self.task}
    self._wait_until(lambda: all(peer.is_finished for peer in waited_for.values()))
    return {task: peer.figures for task, peer in waited_for.items()}

  def _wait_until(self, condition: Callable[[], bool]) -> None:
    with self._changed:
      while not condition():
        if self._loss is not None:
          raise PeerLost(str(self._loss))
        self._changed.wait(_POLL_SECS)  # With a timeout, so that Python can handle signals.

  def finish(self, figures: Optional[Dict[str, Any]] = None) -> None:
    """Sends a goodbye: from now on this task reports no losses, and is not reported as lost.

    Args:
      figures: measurements to send to the others with the goodbye; less than 60 kB as JSON.
    """
    self._end({'bye': True, 'note': figures or {}})

  def report_failure(self, reason: str) -> None:
    """Ends the run on all tasks: reports this task to the others as lost, with the reason."""
    self._end({'lost': list(self.task), 'reason': reason})

  def _end(self, final_message: Dict[str, Any]) -> None:
    with self._changed:
      self._final_message = self._final_message or final_message
    if threading.current_thread() is not self._thread:
      self._thread.join(2 * _GOODBYE_TIMEOUT_SECS)

  def _run(self) -> None:
    try:
      while True:
        wait_readable(self._open_connections(), _POLL_SECS)
        with self._changed:
          if self._final_message is not None:
            break
          self._poll()
          self._changed.notify_all()
          on_lost = self._on_lost if self._loss is not None else None
        if on_lost is not None and self._loss is not None:
          self._send_final({'lost': list(self._loss.task), 'reason': self._loss.reason}, 0.)
          on_lost(*self._loss)
          return
      self._send_final(self._final_message, _GOODBYE_TIMEOUT_SECS)
    finally:
      for peer in self._peers.values():
        peer.connection.close()

  def _poll(self) -> None:
    now = self._clock()
    pause, self._polled_at = now - self._polled_at, now
    self._longest_pause = max(pause, self._longest_pause)
    if self._timeout_secs is not None and pause > self._timeout_secs:
      # The other tasks were not silent: their messages of this time are still unread.
      self._record_loss(self.task, 'this task was suspended for {:.0f} s'.format(pause))
    for task, peer in self._peers.items():
      if peer.is_open:
        self._receive(task, peer, now)
    if now - self._sent_at >= _HEARTBEAT_SECS:
      self._sent_at = now
      for peer in self._peers.values():
        # The queue of a peer that does not receive must not grow.
        if peer.is_open and peer.connection.has_sent_all:
          peer.connection.send(state=self._state, stop_at=self._stop_step)
    self._detect_losses(now)

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
        peer.figures = message['note'] if isinstance(message.get('note'), dict) else {}
        peer.connection.close()  # Closing acknowledges the goodbye.
        return
      if lost is not None:
        reason = str(message.get('reason'))[:_MAX_REASON_CHARS]
        self._record_loss(lost, self._describe_loss(sender, lost, reason))
    if peer.connection.end_reason:
      peer.ended_at = now

  def _describe_loss(self, sender: Task, lost: Task, reason: str) -> str:
    """Returns the reason for a loss; names the sender, unless that is the lost task."""
    if lost == sender:
      return reason
    if lost == self.task:
      return ('this task was reported as lost by {} ({}); the longest pause of this task was '
              '{:.1f} s').format(sender, reason, self._longest_pause)
    return '{} (reported by {})'.format(reason, sender)

  def _detect_losses(self, now: float) -> None:
    ended = [(peer.ended_at, task) for task, peer in self._peers.items()
             if peer.ended_at is not None]
    if ended and now - min(ended)[0] >= _GRACE_SECS:
      first = min(ended)[1]
      self._record_loss(first, self._peers[first].connection.end_reason)
    silent = [(peer.last_message_at, task) for task, peer in self._peers.items()
              if not peer.is_finished and peer.ended_at is None]
    if silent and self._timeout_secs is not None and now - min(silent)[0] > self._timeout_secs:
      last_message_at, task = min(silent)
      self._record_loss(task, 'no message from it for {:.0f} s'.format(now - last_message_at))

  def _record_loss(self, task: Task, reason: str) -> None:
    """Records the first loss; later losses are its consequences."""
    if self._loss is None:
      self._loss = _LostTask(task, reason)

  def _send_final(self, message: Dict[str, Any], timeout_secs: float) -> None:
    """Sends the final message to all tasks, and waits until they have received it."""
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
  """Ends the process with the exit code of PeerLost, even if its main thread hangs.

  Args:
    message: printed to standard error, as one line.
  """
  # Printed in another thread, because a thread that hangs may own the lock of standard error.
  printer = threading.Thread(
      target=lambda: print(' '.join(message.split()), file=sys.stderr, flush=True), daemon=True)
  printer.start()
  printer.join(_PRINT_TIMEOUT_SECS)
  os._exit(PeerLost.exit_code)
