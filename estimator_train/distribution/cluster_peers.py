"""Exchanges messages between this task and the other tasks of a cluster during a run."""

import logging
import os
import socket
import threading
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

from estimator_train.distribution import rendezvous
from estimator_train.distribution.cluster_state import (
  MAX_REASON_CHARS,
  ClusterState,
  LostTask,
  OutgoingMessage,
)
from estimator_train.distribution.messages import Connection, wait_until_readable
from estimator_train.distribution.peers import Peers
from estimator_train.distribution.sockets import StartTimeout
from estimator_train.distribution.tf_config import Cluster, Task
from estimator_train.errors import PeerLost
from estimator_train.settings import Settings
from estimator_train.settings.flags import OUTPUT_FLAGS
from estimator_train.system.signals import exit_now
from estimator_train.version import __version__

_LOG = logging.getLogger('estimator_train')
_FLAGS_THAT_MAY_DIFFER = (
    'data_dir', 'cache', 'inter_op_parallelism_threads', 'intra_op_parallelism_threads',
    'num_parallel_calls', 'prefetch', 'gpu_memory_growth', 'report_page', *OUTPUT_FLAGS)
_POLL_SECS = .2
# How long a task waits until the others have read its last message. The first value applies after a
# goodbye or a failure of the task itself, the second after the loss of another task.
_GOODBYE_TIMEOUT_SECS, _LOST_PEER_TIMEOUT_SECS = 2., .5


class ClusterPeers(Peers):
  """The other tasks of a cluster.

  A thread exchanges the messages that cluster_state.py describes. All methods are thread-safe.

  Args:
    listener: see rendezvous.connect.
    on_task_lost: called in the thread with the first lost task; None to end the process.
  """

  def __init__(self, settings: Settings, cluster: Cluster,
               listener: Optional[socket.socket] = None,
               on_task_lost: Optional[Callable[[LostTask], None]] = None) -> None:
    self._settings, self._cluster, self._listener = settings, cluster, listener
    self._on_task_lost = on_task_lost or (lambda lost: exit_now(str(lost), lost.exit_code))
    self._connections: Dict[Task, Connection] = {}
    self._tasks_by_connection: Dict[Connection, Task] = {}
    self._state = ClusterState(cluster, settings.cluster.peer_timeout_secs)
    self._state_condition = threading.Condition()  # Guards the state and the final message.
    self._final_message: Optional[Dict[str, Any]] = None
    self._thread = threading.Thread(target=self._exchange_messages, name='peers', daemon=True)

  def join_run(self, shared_values: Mapping[str, str]) -> None:
    self.connect(shared_values)
    if not self._cluster.is_chief:
      # The chief announces its first state after it has written the initial weights, which this
      # worker reads.
      self.wait_until_chief_started()

  def connect(self, shared_values: Mapping[str, str]) -> None:
    """Connects to the other tasks, and starts the thread that exchanges messages with them."""
    import tensorflow.compat.v1 as tf  # Imported here, because only the version is needed.
    flag_values = {'--' + name: str(value) for name, value in self._settings.items()
                   if name not in _FLAGS_THAT_MAY_DIFFER}
    self.start_message_thread(rendezvous.connect(
        self._cluster, dict(flag_values, **shared_values, TensorFlow=tf.version.VERSION,
                            estimator_train=__version__),
        StartTimeout(self._settings.cluster.start_timeout_secs), self._listener,
        os.environ.get(rendezvous.KEY_VARIABLE, '')))
    _LOG.info('all %d tasks are connected: %s', len(self._cluster.members),
              self._cluster.task_summary)

  def start_message_thread(self, connections: Dict[Task, Connection]) -> None:
    """Starts the thread that exchanges messages over the connections to other tasks."""
    self._connections.update(connections)
    self._tasks_by_connection.update((connection, task) for task, connection in connections.items())
    self._thread.start()

  def announce_state(self, state: str) -> None:
    with self._state_condition:
      self._state.announce_state(state)

  def is_another_task_busy(self) -> bool:
    with self._state_condition:
      return self._state.is_another_task_busy()

  @property
  def stop_step(self) -> Optional[int]:  # type: ignore[override]
    return self._state.stop_step

  def stop_all_at(self, global_step: int) -> None:
    with self._state_condition:
      self._state.request_stop(global_step)
    self._wait_until(lambda: self._state.is_stop_confirmed(global_step))

  def wait_until_chief_started(self) -> None:
    """Waits until the chief has announced its first state. Only for other tasks."""
    self._wait_until(self._state.has_chief_started)

  def wait_until_trained(self) -> None:
    """Waits until all workers, including this one, have announced the state TRAINED."""
    self._wait_until(self._state.have_all_trained)

  def leave_run(self, measurements: Optional[Dict[str, Any]] = None) -> Dict[str, Dict[str, Any]]:
    waits_for_others = self._cluster.is_chief or self._cluster.rank is None
    measurements_of_others = self.wait_for_goodbyes() if waits_for_others else {}
    self.send_goodbye(measurements)
    return measurements_of_others

  def wait_for_goodbyes(self) -> Dict[str, Dict[str, Any]]:
    """Waits for the goodbyes of all connected workers.

    Returns:
      The measurements of these workers, by the name of the task.
    """
    self._wait_until(lambda: self._state.measurements() is not None)
    return {str(task): values for task, values in (self._state.measurements() or {}).items()}

  def send_goodbye(self, measurements: Optional[Dict[str, Any]] = None) -> None:
    """Disconnects this task without waiting for other tasks, which do not count it as lost."""
    self._send_final_message(bye=True, measurements=measurements or {})

  def report_failure(self, reason: str, exit_code: Optional[int]) -> None:
    """Reports this task as lost, which ends the run on all other tasks."""
    self._send_final_message(failed=reason[:MAX_REASON_CHARS], code=exit_code)

  def _wait_until(self, condition: Callable[[], bool]) -> None:
    with self._state_condition:
      while not condition():
        if self._state.lost is not None:
          raise PeerLost(str(self._state.lost), self._state.lost.exit_code)
        # The timeout lets Python's signal handlers run.
        self._state_condition.wait(_POLL_SECS)

  def _send_final_message(self, **final_message: Any) -> None:
    """Makes the thread send a last message, and waits until the thread has ended."""
    with self._state_condition:
      self._final_message = self._final_message or final_message
    if threading.current_thread() is not self._thread:
      self._thread.join(2 * _GOODBYE_TIMEOUT_SECS)

  def _exchange_messages(self) -> None:
    """Exchanges messages until the final message has been sent, or a task is lost."""
    try:
      while True:
        readable_connections = wait_until_readable(self._open_connections(), _POLL_SECS)
        with self._state_condition:
          final_message = self._final_message
          outgoing_messages = (
              self._handle_messages(readable_connections) if final_message is None
              else self._state.messages_to_all(**final_message))
          self._state_condition.notify_all()
        self._send_messages(outgoing_messages)
        if final_message is not None:
          self._wait_until_others_disconnect(_GOODBYE_TIMEOUT_SECS)
          return
        if self._state.lost is not None:
          self._wait_until_others_disconnect(_LOST_PEER_TIMEOUT_SECS)
          self._on_task_lost(self._state.lost)
          return
    finally:
      for connection in self._connections.values():
        connection.close()

  def _handle_messages(
      self, readable_connections: Sequence[Connection]) -> Sequence[OutgoingMessage]:
    """Handles the messages that have arrived, and returns the messages that must be sent."""
    for connection in readable_connections:
      task = self._tasks_by_connection[connection]
      for message in connection.receive():
        self._state.handle_message(task, message)
        if message.get('bye'):
          connection.close()  # The sender of a goodbye waits until the connection is closed.
          break
      if connection.end_reason:
        self._state.handle_disconnection(task, connection.end_reason)
    return self._state.tick(_monotonic_secs())

  def _send_messages(self, outgoing_messages: Sequence[OutgoingMessage]) -> None:
    for connection in self._open_connections():
      connection.flush()
    for task, message in outgoing_messages:
      connection = self._connections[task]
      # If a task does not read its heartbeats, it gets no more of them, so its queue does not grow.
      if connection.has_sent_all or 'state' not in message:
        connection.send(**message)

  def _wait_until_others_disconnect(self, timeout_secs: float) -> None:
    """Waits until the other tasks have read the last message and closed their connections."""
    deadline = time.monotonic() + timeout_secs
    while self._open_connections() and time.monotonic() < deadline:
      for connection in self._open_connections():
        connection.end_sending()
      for connection in wait_until_readable(self._open_connections(), _POLL_SECS):
        connection.receive()

  def _open_connections(self) -> List[Connection]:
    return [connection for connection in self._connections.values() if not connection.end_reason]


def _monotonic_secs() -> float:
  # On Linux, this clock also runs while the machine is suspended.
  try:
    return time.clock_gettime(7)  # CLOCK_BOOTTIME, for which CPython 3.6 has no constant.
  except (AttributeError, OSError):
    return time.monotonic()
