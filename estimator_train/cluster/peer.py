"""What a task knows about one of its peers from the peer's messages."""

from typing import Any, Dict, List, Optional, Tuple

from estimator_train.cluster.messages import Connection, parse_task
from estimator_train.cluster.tf_config import Task

# States of a task. A task is READY once its model is prepared, and TRAINED after its last step.
STARTING, READY, TRAINING, TRAINED = 'starting', 'ready', 'training', 'trained'
_MAX_STATE_CHARS = 40


class Peer:
  """A task to which this task is connected, as known from its messages; see heartbeats.py.

  Attributes:
    task: the task.
    connection: the connection to the task.
    last_message_at: time of the last message of the task, by the clock of Peers.
    state: the last announced state of the task.
    stop_step: the stop step in the last message of the task; None if it had none.
    stop_step_of_all: the stop step that all tasks have confirmed, as reported by the task if it is
      the chief; None if there is none.
    busy_task: a busy task and its state, as reported by the task if it is the chief; None if the
      chief knows no busy task.
    has_seen_all_trained: whether the task, as the chief, has reported that all workers are TRAINED.
    is_finished: whether the task has sent its goodbye.
    measurements: the measurements that the task sent with its goodbye.
    ended_at: time at which the connection ended without a goodbye; None otherwise.
  """

  def __init__(self, task: Task, connection: Connection, now: float) -> None:
    self.task, self.connection, self.last_message_at = task, connection, now
    self.state = STARTING
    self.stop_step: Optional[int] = None
    self.stop_step_of_all: Optional[int] = None
    self.busy_task: Optional[Tuple[Task, str]] = None
    self.has_seen_all_trained = False
    self.is_finished = False
    self.measurements: Dict[str, Any] = {}
    self.ended_at: Optional[float] = None

  def fileno(self) -> int:
    """Returns the file descriptor, which `wait_readable` needs."""
    return self.connection.fileno()

  @property
  def is_open(self) -> bool:
    """Whether the connection is open."""
    return not self.connection.end_reason

  @property
  def is_busy(self) -> bool:
    """Whether the next step of the task may take long."""
    return not self.is_finished and self.state not in (READY, TRAINING, TRAINED)

  @property
  def is_trained(self) -> bool:
    """Whether the task has completed its last step."""
    return self.is_finished or self.state == TRAINED

  def receive(self, now: float) -> List[Dict[str, Any]]:
    """Receives the messages of the task and the end of its connection; returns the messages."""
    messages = self.connection.receive()
    for message in messages:
      self.last_message_at = now
      self.state = str(message.get('state', self.state))[:_MAX_STATE_CHARS]
      self.stop_step = _parse_step(message.get('stop_at'))
      self.stop_step_of_all = _parse_step(message.get('all_stop_at'))
      self.busy_task = _parse_busy_task(message.get('busy'))
      self.has_seen_all_trained = message.get('all_trained') is True
      if message.get('bye'):
        self.is_finished = True
        self.measurements = message['note'] if isinstance(message.get('note'), dict) else {}
        self.connection.close()  # The sender of a goodbye waits for the end of the connection.
        return messages
    if self.connection.end_reason:
      self.ended_at = now
    return messages


def _parse_step(value: Any) -> Optional[int]:
  return value if isinstance(value, int) else None


def _parse_busy_task(value: Any) -> Optional[Tuple[Task, str]]:
  """Returns the task and the state in the field `busy` of a message; None for other values."""
  task, state = value if isinstance(value, list) and len(value) == 2 else (None, None)
  parsed = parse_task(task)
  return None if parsed is None else (parsed, str(state)[:_MAX_STATE_CHARS])
