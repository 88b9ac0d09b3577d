"""Messages between tasks: JSON objects, one per line, over non-blocking TCP connections.

rendezvous.py and cluster_state.py describe the messages. A connection is still read after a write
to it has failed, so that the last message of a task arrives even if the task has already ended.
"""

import contextlib
import json
import select
import socket
from typing import Any, Dict, List, Sequence

from estimator_train.distribution.tf_config import TASK_TYPES
from estimator_train.system import json_values

_MAX_MESSAGE_BYTES = _RECEIVE_BYTES = 64 * 1024


def _check_task(value: Any) -> Any:
  """Checks that a value is the type and the index of a task."""
  json_values.tuple_of(json_values.text, json_values.integer())(value)
  if value[0] not in TASK_TYPES:
    raise ValueError('unknown task type')
  return value


# Checks for the values of the fields of all messages.
_FIELDS: Dict[str, json_values.Check] = {
    **dict.fromkeys(('challenge', 'proof', 'refused', 'state', 'failed', 'reason'),
                    json_values.text),
    **dict.fromkeys(('wrong_key', 'waiting', 'is_known', 'taken', 'go', 'all_trained', 'bye'),
                    json_values.boolean),
    **dict.fromkeys(('stop_at', 'all_stop_at', 'code'), json_values.optional(
        json_values.integer())),
    **dict.fromkeys(('task', 'lost'), _check_task),
    'busy': json_values.optional(json_values.tuple_of(_check_task, json_values.text)),
    'missing': json_values.list_of(json_values.text),
    'values': json_values.mapping(json_values.text),
    'measurements': json_values.mapping(json_values.anything)}


def _check_message(value: Any) -> Any:
  """Checks the types of the known fields of an object."""
  if not isinstance(value, dict):
    raise ValueError('not an object')
  for name, field in value.items():
    _FIELDS.get(name, json_values.anything)(field)
  return value


class Connection:
  """A connection to another task, or to a process that has not identified itself yet.

  Attributes:
    unread: received messages that a caller has not handled; the next `receive` returns them first.
    end_reason: the reason why no more messages will arrive; empty while the connection is open.
  """

  def __init__(self, connection: socket.socket) -> None:
    connection.setblocking(False)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    self._socket = connection
    self.unread: List[Dict[str, Any]] = []
    self.end_reason = ''
    self._incoming = self._outgoing = b''  # Bytes of an incomplete message; bytes to be sent.

  def fileno(self) -> int:
    return self._socket.fileno()

  @property
  def has_sent_all(self) -> bool:
    """Whether the kernel has accepted all bytes of the messages given to `send`."""
    return not self._outgoing

  def send(self, **message: Any) -> None:
    """Sends a message, and queues the bytes that the socket does not accept yet."""
    self._outgoing += json.dumps(message).encode() + b'\n'
    self.flush()

  def flush(self) -> None:
    """Sends as many of the queued bytes as the socket accepts."""
    try:
      while self._outgoing:
        self._outgoing = self._outgoing[self._socket.send(self._outgoing):]
    except BlockingIOError:
      pass
    except OSError:
      # The connection has ended. `receive` sets `end_reason` after it has read the last messages.
      self._outgoing = b''

  def receive(self) -> List[Dict[str, Any]]:
    """Returns the new messages, and sets `end_reason` if no more messages will arrive."""
    messages, self.unread = self.unread, []
    *lines, self._incoming = (self._incoming + self._read()).split(b'\n')
    try:
      for line in lines:
        if len(line) > _MAX_MESSAGE_BYTES:
          raise ValueError('too long')
        messages.append(json_values.parse(line.decode(), _check_message))
    except (ValueError, RecursionError):
      self.end_reason = 'it uses another protocol'
    if len(self._incoming) > _MAX_MESSAGE_BYTES:
      self.end_reason = 'it sent more than {} bytes in one message'.format(_MAX_MESSAGE_BYTES)
    return messages

  def _read(self) -> bytes:
    """Returns the bytes that have arrived, up to a limit; sets `end_reason` if they have ended."""
    data = b''
    try:
      while len(data) <= _MAX_MESSAGE_BYTES:
        chunk = self._socket.recv(_RECEIVE_BYTES)
        if not chunk:
          self.end_reason = 'its connection ended'
          break
        data += chunk
    except BlockingIOError:
      pass
    except OSError as error:
      self.end_reason = 'its connection ended ({})'.format(error.strerror or error)
    return data

  def end_sending(self) -> None:
    """Signals that no more messages follow. Must be called until all messages have been sent."""
    self.flush()
    with contextlib.suppress(OSError):  # The connection may have ended.
      if self.has_sent_all:
        self._socket.shutdown(socket.SHUT_WR)

  def close(self) -> None:
    """Closes the connection in both directions."""
    self.end_reason = self.end_reason or 'closed by this process'
    self._socket.close()


def accept_connections(listener: socket.socket) -> List[Connection]:
  """Accepts all connections that are waiting at a listener."""
  connections = []
  with contextlib.suppress(OSError):  # No connection is waiting, or the next one has already ended.
    while True:
      connections.append(Connection(listener.accept()[0]))
  return connections


def wait_readable(sockets: Sequence[Any], timeout_secs: float) -> List[Any]:
  """Waits until at least one socket is readable, and returns all readable sockets.

  Args:
    sockets: sockets, or other objects with a `fileno` method.
  """
  poll = select.poll()  # select.select would accept only file descriptors below 1024.
  sockets_by_descriptor = {each.fileno(): each for each in sockets}
  for descriptor in sockets_by_descriptor:
    poll.register(descriptor, select.POLLIN)
  return [sockets_by_descriptor[descriptor] for descriptor, _ in poll.poll(timeout_secs * 1000)]
