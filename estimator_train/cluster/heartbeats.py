"""Whether the other tasks are still there, once all have met."""

import os
import sys
import threading
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from estimator_train.cluster.messages import Connection, task_of, wait_readable
from estimator_train.cluster.tf_config import Task
from estimator_train.errors import PeerLost

STARTING, READY, TRAINING, TRAINED = 'starting', 'ready', 'training', 'trained'
_BEAT_SECS = 1.
_TURN_SECS = .2
# When a connection ends, the task at its other end may be one that ends because of another's loss;
# that word then comes from someone else within this time.
_GRACE_SECS = .5
_GOODBYE_SECS = 2.
_PRINT_SECS = 2.

OnLost = Callable[[Task, str], None]


class _Loss(NamedTuple):
  task: Task
  reason: str

  def __str__(self) -> str:
    return 'lost {}: {}'.format(*self)


class _Peer:
  """What is known of another task.

  Attributes:
    heard_at: when something last came from it.
    state: what it last said that it does.
    is_finished: whether it said goodbye.
    note: what it left with that.
    stop_at: the global step that it wants all to stop at.
    ended_at: when its connection ended without that.
  """

  def __init__(self, connection: Connection, now: float) -> None:
    self.connection = connection
    self.heard_at = now
    self.state = STARTING
    self.is_finished = False
    self.note: Dict[str, Any] = {}
    self.stop_at: Optional[int] = None
    self.ended_at: Optional[float] = None

  @property
  def is_open(self) -> bool:
    return not self.connection.ended


def boot_clock() -> float:
  """Returns seconds that go on while the machine sleeps, where the system counts them."""
  try:
    return time.clock_gettime(7)  # CLOCK_BOOTTIME, which CPython 3.6 has no name for.
  except (AttributeError, OSError):
    return time.monotonic()


class Peers:
  """The connections to all other members of the cluster.

  A thread says each second that this task is alive, and listens to the others. All methods may be
  called from any thread.

  Args:
    task: this one.
    connections: one to each other member.
    clock: seconds from any start; not smaller in time.
  """

  def __init__(self, task: Task, connections: Dict[Task, Connection],
               clock: Callable[[], float] = boot_clock) -> None:
    self.task = task
    self._clock = clock
    now = clock()
    self._peers = {peer: _Peer(connection, now) for peer, connection in connections.items()}
    self._changed = threading.Condition()  # Guards all that follows.
    self._state = STARTING
    self._stop_at: Optional[int] = None
    self._timeout_secs: Optional[float] = None
    self._on_lost: Optional[OnLost] = None
    self._loss: Optional[_Loss] = None
    self._farewell: Optional[Dict[str, Any]] = None
    self._turned_at, self._sent_at = now, -float('inf')
    self._longest_pause = 0.
    self._thread = threading.Thread(target=self._run, name='peers', daemon=True)
    self._thread.start()

  def state(self, word: str) -> None:
    """Tells the others what this task does now: one of those above, or what may take it longer."""
    with self._changed:
      self._state = word
      self._sent_at = -float('inf')

  def stop_all_at(self, global_step: int) -> None:
    """Asks all, this task among them, to stop at a step, which must be far enough ahead."""
    with self._changed:
      self._stop_at = global_step
      self._sent_at = -float('inf')

  @property
  def stop_at(self) -> Optional[int]:
    """The first global step that a task wants all to stop at; None if none does."""
    with self._changed:
      steps = [self._stop_at] + [peer.stop_at for peer in self._peers.values()]
    return min((step for step in steps if step is not None), default=None)

  def watch(self, peer_timeout_secs: float, on_lost: OnLost) -> None:
    """Has a loss reported, one that was before this call too.

    Args:
      peer_timeout_secs: how long a task may be silent.
      on_lost: called once, from a thread, with the task that was lost first and the reason. The
        task is this one where it was itself stopped for so long that the others gave it up.
    """
    with self._changed:
      self._timeout_secs, self._on_lost = peer_timeout_secs, on_lost

  def busy(self) -> Optional[Tuple[Task, str]]:
    """Returns a task that may take long, and what it does; None where all train, or could."""
    with self._changed:
      for task, peer in self._peers.items():
        if not peer.is_finished and peer.state not in (READY, TRAINING, TRAINED):
          return task, peer.state
    return None

  def wait_until_started(self, task: Task) -> None:
    """Waits until another task has got further than to start.

    Raises:
      PeerLost: one was lost instead.
    """
    self._wait_until(lambda: self._peers[task].state != STARTING)

  def wait_until_trained(self, tasks: Sequence[Task]) -> None:
    """Waits until all of the tasks, but for this one, need nothing of the others any more.

    Raises:
      PeerLost: one was lost instead.
    """
    others = [self._peers[task] for task in tasks if task != self.task]
    self._wait_until(lambda: all(peer.is_finished or peer.state == TRAINED for peer in others))

  def wait_until_finished(self, tasks: Sequence[Task]) -> Dict[Task, Dict[str, Any]]:
    """Waits until all of the tasks, but for this one, have said goodbye.

    Returns:
      What each left with it.

    Raises:
      PeerLost: one was lost instead.
    """
    waited_for = {task: self._peers[task] for task in tasks if task != self.task}
    self._wait_until(lambda: all(peer.is_finished for peer in waited_for.values()))
    return {task: peer.note for task, peer in waited_for.items()}

  def _wait_until(self, is_so: Callable[[], bool]) -> None:
    with self._changed:
      while not is_so():
        if self._loss is not None:
          raise PeerLost(str(self._loss))
        self._changed.wait(_TURN_SECS)  # Not for ever, so that signals are handled meanwhile.

  def finish(self, note: Optional[Dict[str, Any]] = None) -> None:
    """Says goodbye to all: from now on this task is not missed, and misses nobody.

    Args:
      note: what the others get to know with it; its JSON has less than 60 kB.
    """
    self._part({'bye': True, 'note': note or {}})

  def leave(self, reason: str) -> None:
    """Ends the cluster's run: tells all others that this task is lost, and why."""
    self._part({'lost': list(self.task), 'reason': reason})

  def _part(self, farewell: Dict[str, Any]) -> None:
    with self._changed:
      self._farewell = self._farewell or farewell
    if threading.current_thread() is not self._thread:
      self._thread.join(2 * _GOODBYE_SECS)

  def _run(self) -> None:
    try:
      while True:
        wait_readable(self._open(), _TURN_SECS)
        with self._changed:
          if self._farewell is not None:
            break
          self._take_turn()
          self._changed.notify_all()
          report = self._on_lost if self._loss is not None else None
        if report is not None and self._loss is not None:
          self._say_and_end({'lost': list(self._loss.task), 'reason': self._loss.reason}, 0.)
          report(*self._loss)
          return
      self._say_and_end(self._farewell, _GOODBYE_SECS)
    finally:
      for peer in self._peers.values():
        peer.connection.close()

  def _take_turn(self) -> None:
    now = self._clock()
    pause, self._turned_at = now - self._turned_at, now
    self._longest_pause = max(pause, self._longest_pause)
    if self._timeout_secs is not None and pause > self._timeout_secs:
      # The others look silent only because nothing was heard meanwhile; to them, this task was.
      self._lose(self.task, 'this task was stopped for {:.0f} s'.format(pause))
    for task, peer in self._peers.items():
      if peer.is_open:
        self._hear(task, peer, now)
    if now - self._sent_at >= _BEAT_SECS:
      self._sent_at = now
      for peer in self._peers.values():
        if peer.is_open and peer.connection.is_sent:  # One that does not listen gets no pile.
          peer.connection.send(state=self._state, stop_at=self._stop_at)
    self._look_for_losses(now)

  def _hear(self, sender: Task, peer: _Peer, now: float) -> None:
    """Takes in what a task says, and how it ends."""
    peer.connection.flush()
    for message in peer.connection.receive():
      peer.heard_at = now
      peer.state = str(message.get('state', peer.state))[:40]
      if isinstance(message.get('stop_at'), int):
        peer.stop_at = message['stop_at']
      lost = task_of(message.get('lost'))
      if message.get('bye'):
        peer.is_finished = True
        peer.note = message['note'] if isinstance(message.get('note'), dict) else {}
        peer.connection.close()  # Which tells it that this was heard.
        return
      if lost is not None:
        self._lose(lost, self._retold(sender, lost, str(message.get('reason'))[:200]))
    if peer.connection.ended:
      peer.ended_at = now

  def _retold(self, sender: Task, lost: Task, reason: str) -> str:
    if lost == sender:
      return reason
    if lost == self.task:
      return 'this task was given up by {} ({}); its longest pause was {:.1f} s'.format(
          sender, reason, self._longest_pause)
    return '{} (says {})'.format(reason, sender)

  def _look_for_losses(self, now: float) -> None:
    ended = [(peer.ended_at, task) for task, peer in self._peers.items()
             if peer.ended_at is not None]
    if ended and now - min(ended)[0] >= _GRACE_SECS:
      first = min(ended)[1]
      self._lose(first, self._peers[first].connection.ended)
    silent = [(peer.heard_at, task) for task, peer in self._peers.items()
              if not peer.is_finished and peer.ended_at is None]
    if silent and self._timeout_secs is not None and now - min(silent)[0] > self._timeout_secs:
      heard_at, task = min(silent)
      self._lose(task, 'nothing was heard from it for {:.0f} s'.format(now - heard_at))

  def _lose(self, task: Task, reason: str) -> None:
    """Notes the first loss; what follows from it is none of its own."""
    if self._loss is None:
      self._loss = _Loss(task, reason)

  def _say_and_end(self, message: Dict[str, Any], wait_secs: float) -> None:
    """Sends the last message to all, and waits for a while until they have heard it."""
    for connection in self._open():
      connection.send(**message)
      connection.end_sending()
    deadline = time.monotonic() + wait_secs
    while self._open() and time.monotonic() < deadline:
      for connection in wait_readable(self._open(), _TURN_SECS):
        connection.receive()

  def _open(self) -> List[Connection]:
    return [peer.connection for peer in self._peers.values() if peer.is_open]


def end_now(message: str) -> None:
  """Ends the process as one that lost a peer, even if its main thread never comes back.

  Args:
    message: what standard error gets, in one line.
  """
  # In a thread, as whoever is stuck may hold the lock of standard error.
  printing = threading.Thread(
      target=lambda: print(' '.join(message.split()), file=sys.stderr, flush=True), daemon=True)
  printing.start()
  printing.join(_PRINT_SECS)
  os._exit(PeerLost.exit_code)
