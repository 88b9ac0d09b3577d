"""The connections of this task to the others until the end of the run; see cluster_state.py."""

import threading
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from estimator_train.distribution.cluster_state import (
  MAX_REASON_CHARS,
  ClusterState,
  Event,
  Lost,
  Send,
)
from estimator_train.distribution.sockets import Connection, wait_readable
from estimator_train.distribution.tf_config import Cluster, Task
from estimator_train.errors import PeerLost

_POLL_SECS = .2
# How long a task that ends waits until the others have read its last message.
_GOODBYE_TIMEOUT_SECS, _LOSS_TIMEOUT_SECS = 2., .5


def boot_clock() -> float:
  """Returns monotonic seconds, including suspensions of the machine if the system counts them."""
  try:
    return time.clock_gettime(7)  # CLOCK_BOOTTIME, for which CPython 3.6 has no constant.
  except (AttributeError, OSError):
    return time.monotonic()


class Peers:
  """Exchanges messages with the tasks to which this task is connected, in a thread of its own.

  All methods are thread-safe. Those that wait raise a PeerLost if a task is lost.

  Args:
    cluster: the cluster.
    connections: a connection to each of these tasks: on the chief, to all other members; on another
      member, to the chief.
    peer_timeout_secs: see ClusterState.
    on_task_lost: called once, in the thread, with the first lost task.
    clock: returns the time in seconds, from any origin; monotonic.
  """

  def __init__(self, cluster: Cluster, connections: Dict[Task, Connection],
               peer_timeout_secs: float, on_task_lost: Callable[[Lost], None],
               clock: Callable[[], float] = boot_clock) -> None:
    self._connections, self._on_task_lost, self._clock = connections, on_task_lost, clock
    self._tasks = {connection: task for task, connection in connections.items()}
    self._state = ClusterState(cluster, peer_timeout_secs)
    self._changed = threading.Condition()  # Guards the state and the final message.
    self._final_message: Optional[Dict[str, Any]] = None
    self._thread = threading.Thread(target=self._exchange_messages, name='peers', daemon=True)
    self._thread.start()

  def announce_state(self, state: str) -> None:
    """Sends this task's state: READY, TRAINING, TRAINED, or text that names a long activity."""
    with self._changed:
      self._state.announce(state)

  def stop_all_at(self, global_step: int) -> None:
    """Asks all tasks to stop at a global step, and waits until all of them know it.

    Args:
      global_step: a step that no task can complete before this method returns.
    """
    with self._changed:
      self._state.request_stop(global_step)
    self._wait_until(lambda: self._state.is_stop_confirmed(global_step))

  @property
  def stop_step(self) -> Optional[int]:
    """The lowest global step at which any task asks all tasks to stop; None if no task asks."""
    return self._state.stop_step

  def busy_peer(self) -> Optional[Tuple[Task, str]]:
    """Returns a task whose next step may take long, and its state; None: there is no such task."""
    with self._changed:
      return self._state.busy_peer()

  def wait_until_chief_started(self) -> None:
    """Waits until the chief has left the state STARTING; not on the chief."""
    self._wait_until(self._state.has_chief_started)

  def wait_until_trained(self) -> None:
    """Waits until all workers have completed their last step; this task must have announced it."""
    self._wait_until(self._state.have_all_trained)

  def wait_until_finished(self) -> Dict[Task, Dict[str, Any]]:
    """Waits until the chief has called `finish`; on the chief, until all other workers have.

    Returns:
      The measurements that each of these tasks passed to `finish`.
    """
    self._wait_until(lambda: self._state.measurements() is not None)
    return self._state.measurements() or {}

  def _wait_until(self, condition: Callable[[], bool]) -> None:
    with self._changed:
      while not condition():
        if self._state.lost is not None:
          raise PeerLost(str(self._state.lost), self._state.lost.exit_code)
        self._changed.wait(_POLL_SECS)  # The timeout lets Python's signal handlers run.

  def finish(self, measurements: Optional[Dict[str, Any]] = None) -> None:
    """Sends a goodbye. From then on, this task reports no lost task, and is not reported as lost.

    Args:
      measurements: sent with the goodbye.
    """
    self._end_with(bye=True, note=measurements or {})

  def report_failure(self, reason: str, exit_code: Optional[int]) -> None:
    """Reports this task as lost, with the reason. The report ends the run on all other tasks.

    Args:
      reason: the reason.
      exit_code: the exit code of this task; None if it is unknown.
    """
    self._end_with(failed=reason[:MAX_REASON_CHARS], code=exit_code)

  def _end_with(self, **final_message: Any) -> None:
    """Makes the thread send a final message, and waits until the thread has ended."""
    with self._changed:
      self._final_message = self._final_message or final_message
    if threading.current_thread() is not self._thread:
      self._thread.join(2 * _GOODBYE_TIMEOUT_SECS)

  def _exchange_messages(self) -> None:
    """Runs in the thread until the final message is sent or a task is lost."""
    try:
      while True:
        readable = wait_readable(self._open_connections(), _POLL_SECS)
        with self._changed:
          final_message = self._final_message
          events = (self._poll(readable) if final_message is None
                    else self._state.send_all(**final_message))
          self._changed.notify_all()
        self._send(events)
        if final_message is not None:
          self._end_sending(_GOODBYE_TIMEOUT_SECS)
          return
        if events and isinstance(events[-1], Lost):
          self._end_sending(_LOSS_TIMEOUT_SECS)
          self._on_task_lost(events[-1])
          return
    finally:
      for connection in self._connections.values():
        connection.close()

  def _poll(self, readable: Sequence[Connection]) -> Sequence[Event]:
    """Handles the messages that have arrived; returns the events."""
    for connection in readable:
      task = self._tasks[connection]
      for message in connection.receive():
        self._state.update(task, message)
        if message.get('bye'):
          connection.close()  # The sender of a goodbye waits for the end of the connection.
          break
      if connection.end_reason:
        self._state.disconnect(task, connection.end_reason)
    return self._state.tick(self._clock())

  def _send(self, events: Sequence[Event]) -> None:
    for connection in self._open_connections():
      connection.flush()
    for event in events:
      if isinstance(event, Send):
        connection = self._connections[event.task]
        # A task that does not read its heartbeats gets no more, so that the queue does not grow.
        if connection.has_sent_all or 'state' not in event.message:
          connection.send(**event.message)

  def _end_sending(self, timeout_secs: float) -> None:
    """Waits until the others have closed their connections after the last message."""
    deadline = time.monotonic() + timeout_secs
    while self._open_connections() and time.monotonic() < deadline:
      for connection in self._open_connections():
        connection.end_sending()
      for connection in wait_readable(self._open_connections(), _POLL_SECS):
        connection.receive()

  def _open_connections(self) -> List[Connection]:
    return [each for each in self._connections.values() if not each.end_reason]
