"""Sends and receives messages: JSON objects, one per line, over non-blocking TCP connections.

rendezvous.py and cluster_state.py describe the messages.
"""

import contextlib
import json
import select
import socket
from typing import Any, Dict, List, Sequence

from estimator_train.distribution.tf_config import TASK_TYPES
from estimator_train.system import json_values

_MAX_MESSAGE_BYTES = _CHUNK_BYTES = 64 * 1024


def _check_task(value: Any) -> Any:
  json_values.tuple_of(json_values.text, json_values.integer())(value)
  if value[0] not in TASK_TYPES:
    raise ValueError('unknown task type')
  return value


# Checks for the values of the fields of all messages.
_CHECKS_BY_FIELD: Dict[str, json_values.Check] = {
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
  if not isinstance(value, dict):
    raise ValueError('not an object')
  for name, field_value in value.items():
    _CHECKS_BY_FIELD.get(name, json_values.anything)(field_value)
  return value


class Connection:
  """A connection to another task, or to a process that has not identified itself yet.

  Attributes:
    unhandled_messages: the next call of `receive` returns them before the new messages.
    end_reason: why no more messages will arrive; empty while the connection is open.
  """

  def __init__(self, connection: socket.socket) -> None:
    connection.setblocking(False)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    self._socket = connection
    self.unhandled_messages: List[Dict[str, Any]] = []
    self.end_reason = ''
    self._incomplete_message = self._unsent_bytes = b''

  def fileno(self) -> int:
    return self._socket.fileno()

  @property
  def has_sent_all(self) -> bool:
    """Whether the socket has accepted all messages that were passed to `send`."""
    return not self._unsent_bytes

  def send(self, **message: Any) -> None:
    """Sends a message. Queues the bytes that the socket does not accept yet; see `flush`."""
    self._unsent_bytes += json.dumps(message).encode() + b'\n'
    self.flush()

  def flush(self) -> None:
    """Sends as many of the queued bytes as the socket accepts."""
    try:
      while self._unsent_bytes:
        self._unsent_bytes = self._unsent_bytes[self._socket.send(self._unsent_bytes):]
    except BlockingIOError:
      pass
    except OSError:
      # The connection has ended. The last messages of the other task may still be unread, so only
      # `receive` sets `end_reason`.
      self._unsent_bytes = b''

  def receive(self) -> List[Dict[str, Any]]:
    """Returns the new messages, and sets `end_reason` if they are the last."""
    messages, self.unhandled_messages = self.unhandled_messages, []
    received_bytes = self._incomplete_message + self._receive_available_bytes()
    *lines, self._incomplete_message = received_bytes.split(b'\n')
    try:
      for line in lines:
        if len(line) > _MAX_MESSAGE_BYTES:
          raise ValueError('too long')
        messages.append(json_values.parse(line.decode(), _check_message))
    except (ValueError, RecursionError):
      self.end_reason = 'it uses another protocol'
    if len(self._incomplete_message) > _MAX_MESSAGE_BYTES:
      self.end_reason = 'it sent more than {} bytes in one message'.format(_MAX_MESSAGE_BYTES)
    return messages

  def _receive_available_bytes(self) -> bytes:
    """Returns at most about _MAX_MESSAGE_BYTES, and sets `end_reason` if no more will arrive."""
    data = b''
    try:
      while len(data) <= _MAX_MESSAGE_BYTES:
        chunk = self._socket.recv(_CHUNK_BYTES)
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
    """Closes this side of the connection if all messages have been sent.

    While `has_sent_all` is False, call this method again later.
    """
    self.flush()
    with contextlib.suppress(OSError):  # The connection may have ended.
      if self.has_sent_all:
        self._socket.shutdown(socket.SHUT_WR)

  def close(self) -> None:
    self.end_reason = self.end_reason or 'closed by this process'
    self._socket.close()


def accept_connections(listener: socket.socket) -> List[Connection]:
  """Accepts all connections that wait at a listener."""
  connections = []
  with contextlib.suppress(OSError):  # No connection is waiting, or the next one has already ended.
    while True:
      connections.append(Connection(listener.accept()[0]))
  return connections


def wait_until_readable(sockets: Sequence[Any], timeout_secs: float) -> List[Any]:
  """Waits until at least one socket is readable, and returns all readable sockets.

  Args:
    sockets: sockets, or other objects with a `fileno` method.
  """
  poll = select.poll()  # select.select would accept only file descriptors below 1024.
  sockets_by_descriptor = {socket_object.fileno(): socket_object for socket_object in sockets}
  for descriptor in sockets_by_descriptor:
    poll.register(descriptor, select.POLLIN)
  return [sockets_by_descriptor[descriptor] for descriptor, _ in poll.poll(timeout_secs * 1000)]
