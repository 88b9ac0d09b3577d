"""Sends and receives JSON messages, one per line, over a non-blocking connection."""

import contextlib
import json
import logging
import select
import socket
from typing import Any, Dict, List, Optional, Sequence

from estimator_train.distribution.tf_config import TASK_TYPES, Task

MAX_MESSAGE_BYTES = 64 * 1024
_MAX_OTHER_BYTES = 1024  # Of a message, besides the values in it.
_RECEIVE_BYTES = 64 * 1024
_LOG = logging.getLogger('estimator_train')


class Connection:
  """A connection to another task, or to a process that has not identified itself yet.

  Attributes:
    socket: the argument.
    unread: messages that a caller of `receive` has left for the next one.
    end_reason: why no more messages will arrive; empty while the connection is open.
  """

  def __init__(self, connection: socket.socket) -> None:
    connection.setblocking(False)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    self.socket = connection
    self.unread: List[Dict[str, Any]] = []
    self.end_reason = ''
    self._incoming = self._outgoing = b''  # Bytes of an incomplete message; bytes to be sent.

  def fileno(self) -> int:
    """Returns the file descriptor, which `wait_readable` needs."""
    return self.socket.fileno()

  @property
  def has_sent_all(self) -> bool:
    """Whether the kernel has accepted all bytes of the messages that were sent."""
    return not self._outgoing

  def send(self, **message: Any) -> None:
    """Sends a message; queues the bytes that the socket does not accept yet."""
    self._outgoing += json.dumps(message).encode() + b'\n'
    self.flush()

  def flush(self) -> None:
    """Sends as many of the queued bytes as the socket accepts."""
    try:
      while self._outgoing:
        self._outgoing = self._outgoing[self.socket.send(self._outgoing):]
    except BlockingIOError:
      pass
    except OSError:
      # The connection has ended. `receive` sets `end_reason` after it has read the last messages.
      self._outgoing = b''

  def receive(self) -> List[Dict[str, Any]]:
    """Returns the newly received messages; sets `end_reason` if no more messages will arrive."""
    messages, self.unread = self.unread, []
    *lines, self._incoming = (self._incoming + self._read()).split(b'\n')
    for line in lines:
      message = _parse_message(line)
      if message is None:
        self.end_reason = 'it uses another protocol'
        break
      messages.append(message)
    if len(self._incoming) > MAX_MESSAGE_BYTES:
      self.end_reason = 'it sent more than {} bytes in one message'.format(MAX_MESSAGE_BYTES)
    return messages

  def _read(self) -> bytes:
    """Returns the bytes that have arrived, up to a limit; sets `end_reason` at their end."""
    data = b''
    try:
      while len(data) <= MAX_MESSAGE_BYTES:
        new = self.socket.recv(_RECEIVE_BYTES)
        if not new:
          self.end_reason = 'its connection ended'
          break
        data += new
    except BlockingIOError:
      pass
    except OSError as error:
      self.end_reason = 'its connection ended ({})'.format(error.strerror or error)
    return data

  def end_sending(self) -> None:
    """Signals to the other process that no more messages follow; call again until all are sent."""
    self.flush()
    with contextlib.suppress(OSError):  # The connection may have ended.
      if self.has_sent_all:
        self.socket.shutdown(socket.SHUT_WR)

  def close(self) -> None:
    """Closes the connection in both directions."""
    self.end_reason = self.end_reason or 'closed by this process'
    self.socket.close()


def limit_size(values: Dict[str, Any]) -> Dict[str, Any]:
  """Returns the values, or none of them if a message with them would be too long to be accepted."""
  num_bytes = len(json.dumps(values).encode())
  if num_bytes <= MAX_MESSAGE_BYTES - _MAX_OTHER_BYTES:
    return values
  _LOG.warning('the measurements of this task are not sent, because they have %d bytes', num_bytes)
  return {}


def _parse_message(line: bytes) -> Optional[Dict[str, Any]]:
  """Returns the message in a line; None if the line is too long or not a JSON object."""
  if len(line) > MAX_MESSAGE_BYTES:
    return None
  try:
    message = json.loads(line.decode())
  except (ValueError, RecursionError):
    return None
  return message if isinstance(message, dict) else None


def parse_task(value: Any) -> Optional[Task]:
  """Converts `[type, index]` from a message to a task; returns None for any other value."""
  if (isinstance(value, list) and len(value) == 2 and value[0] in TASK_TYPES
      and isinstance(value[1], int) and not isinstance(value[1], bool)):
    return Task(*value)
  return None


def wait_readable(sockets: Sequence[Any], timeout_secs: float) -> List[Any]:
  """Waits until at least one socket is readable, and returns all readable sockets.

  Args:
    sockets: sockets, or other objects with a `fileno` method.
    timeout_secs: maximum number of seconds to wait.
  """
  poll = select.poll()  # Not select.select, which accepts only file descriptors below 1024.
  by_descriptor = {each.fileno(): each for each in sockets}
  for descriptor in by_descriptor:
    poll.register(descriptor, select.POLLIN)
  return [by_descriptor[descriptor] for descriptor, _ in poll.poll(timeout_secs * 1000)]
