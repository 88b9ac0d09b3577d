"""The other processes of a run: waits for them, and exchanges messages with them until the end."""

import contextlib
import logging
import os
import socket
import threading
import time
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence

from estimator_train.distribution import rendezvous
from estimator_train.distribution.cluster_state import (
  MAX_REASON_CHARS,
  TRAINING,
  ClusterState,
  Event,
  Lost,
  Send,
)
from estimator_train.distribution.messages import Connection, wait_readable
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
# How long a task that ends waits until the others have read its last message.
_GOODBYE_TIMEOUT_SECS, _LOSS_TIMEOUT_SECS = 2., .5


class Peers:
  """The other processes of the run. This base class is for a process that has none.

  Methods that wait raise a PeerLost if another process is lost.

  Attributes:
    stop_step: the lowest global step at which any process asks all processes to stop; None if no
      process asks.
  """
  stop_step: Optional[int] = None

  def join(self, shared_values: Mapping[str, str]) -> None:
    """Waits for the other processes, and checks that their flags and shared values are the same.

    On every worker except the chief, also waits until the chief has announced its first state.

    Args:
      shared_values: values, besides the flags, that must be the same in all processes, by name.

    Raises:
      PeerLost: a process did not connect in time.
      UserError: a flag or shared value of this process differs from that of the chief.
    """

  def announce(self, state: str) -> None:
    """Sends the state of this process to the others: READY, TRAINING or TRAINED."""

  @contextlib.contextmanager
  def busy(self, activity: str) -> Iterator[None]:
    """Announces an activity between steps, so that waiting processes do not run into a timeout."""
    self.announce(activity)
    yield
    self.announce(TRAINING)

  def is_any_busy(self) -> bool:
    """Whether another process is busy between steps, so that a step of this process must wait."""
    return False

  def stop_all_at(self, global_step: int) -> None:
    """Asks all processes to stop at a global step; returns when all of them know the step.

    Args:
      global_step: a step that no process can complete before this method returns.
    """
    self.stop_step = global_step

  def finish(self, measurements: Optional[Dict[str, Any]] = None) -> Dict[str, Dict[str, Any]]:
    """Leaves the run. The chief first waits for other workers, a parameter server for the chief.

    Args:
      measurements: the measurements of this process, for the report of the chief.

    Returns:
      On the chief, the measurements of the other workers, by the name of the worker.
    """
    return {}


class Star(Peers):
  """The tasks of a cluster. The chief is connected to all other tasks, and each to the chief.

  A thread exchanges the messages; see cluster_state.py. All methods are thread-safe.

  Args:
    settings: the settings. Only `_FLAGS_THAT_MAY_DIFFER` may differ between tasks.
    cluster: the tasks.
    listener: see rendezvous.connect.
    on_task_lost: called once, in the thread, with the first lost task; None: the process ends.
  """

  def __init__(self, settings: Settings, cluster: Cluster,
               listener: Optional[socket.socket] = None,
               on_task_lost: Optional[Callable[[Lost], None]] = None) -> None:
    self._settings, self._cluster, self._listener = settings, cluster, listener
    self._on_task_lost = on_task_lost or (lambda lost: exit_now(str(lost), lost.exit_code))
    self._connections: Dict[Task, Connection] = {}
    self._tasks: Dict[Connection, Task] = {}
    self._state = ClusterState(cluster, settings.cluster.peer_timeout_secs)
    self._changed = threading.Condition()  # Guards the state and the final message.
    self._final_message: Optional[Dict[str, Any]] = None
    self._thread = threading.Thread(target=self._exchange_messages, name='peers', daemon=True)

  def join(self, shared_values: Mapping[str, str]) -> None:
    self.connect(shared_values)
    if not self._cluster.is_chief:
      # This worker reads the initial weights, so it waits until the chief has written them.
      self.wait_until_chief_started()

  def connect(self, shared_values: Mapping[str, str]) -> None:
    """Connects to the other tasks, and starts to exchange messages; see `join`."""
    import tensorflow.compat.v1 as tf  # Only for its version.
    flag_values = {'--' + name: str(value) for name, value in self._settings.items()
                   if name not in _FLAGS_THAT_MAY_DIFFER}
    self.exchange_messages(rendezvous.connect(
        self._cluster, dict(flag_values, **shared_values, TensorFlow=tf.version.VERSION,
                            estimator_train=__version__),
        StartTimeout(self._settings.cluster.start_timeout_secs), self._listener,
        os.environ.get(rendezvous.KEY_VARIABLE, '')))
    _LOG.info('all %d tasks are connected: %s', len(self._cluster.members),
              self._cluster.task_counts)

  def exchange_messages(self, connections: Dict[Task, Connection]) -> None:
    """Starts the thread. From then on, this process ends when another task is lost.

    Args:
      connections: on the chief, to all other members; on another member, to the chief.
    """
    self._connections.update(connections)
    self._tasks.update((connection, task) for task, connection in connections.items())
    self._thread.start()

  def announce(self, state: str) -> None:
    with self._changed:
      self._state.announce(state)

  def is_any_busy(self) -> bool:
    with self._changed:
      return self._state.is_any_busy()

  @property
  def stop_step(self) -> Optional[int]:  # type: ignore[override]
    return self._state.stop_step

  def stop_all_at(self, global_step: int) -> None:
    with self._changed:
      self._state.request_stop(global_step)
    self._wait_until(lambda: self._state.is_stop_confirmed(global_step))

  def wait_until_chief_started(self) -> None:
    """Waits until the chief has announced its first state; not on the chief."""
    self._wait_until(self._state.has_chief_started)

  def wait_until_trained(self) -> None:
    """Waits until all workers have completed their last step; this task must have announced it."""
    self._wait_until(self._state.have_all_trained)

  def finish(self, measurements: Optional[Dict[str, Any]] = None) -> Dict[str, Dict[str, Any]]:
    waits = self._cluster.is_chief or self._cluster.rank is None
    measurements_of_others = self.wait_for_measurements() if waits else {}
    self.leave(measurements)
    return measurements_of_others

  def wait_for_measurements(self) -> Dict[str, Dict[str, Any]]:
    """Waits until the chief has finished; on the chief, until all other workers have finished.

    Returns:
      The measurements of these tasks, by the name of the task.
    """
    self._wait_until(lambda: self._state.measurements() is not None)
    return {str(task): values for task, values in (self._state.measurements() or {}).items()}

  def leave(self, measurements: Optional[Dict[str, Any]] = None) -> None:
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

  def _wait_until(self, condition: Callable[[], bool]) -> None:
    with self._changed:
      while not condition():
        if self._state.lost is not None:
          raise PeerLost(str(self._state.lost), self._state.lost.exit_code)
        self._changed.wait(_POLL_SECS)  # The timeout lets Python's signal handlers run.

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
          events = (self._handle_messages(readable) if final_message is None
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

  def _handle_messages(self, readable: Sequence[Connection]) -> Sequence[Event]:
    """Handles the messages that have arrived; returns what to do next."""
    for connection in readable:
      task = self._tasks[connection]
      for message in connection.receive():
        self._state.update(task, message)
        if message.get('bye'):
          connection.close()  # The sender of a goodbye waits for the end of the connection.
          break
      if connection.end_reason:
        self._state.disconnect(task, connection.end_reason)
    return self._state.tick(_boot_clock())

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


def _boot_clock() -> float:
  """Returns monotonic seconds, including suspensions of the machine if the system counts them."""
  try:
    return time.clock_gettime(7)  # CLOCK_BOOTTIME, for which CPython 3.6 has no constant.
  except (AttributeError, OSError):
    return time.monotonic()
