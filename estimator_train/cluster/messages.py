"""JSON messages, one per line, over a non-blocking connection."""

import json
import select
import socket
from typing import Any, Dict, List, Optional, Sequence

from estimator_train.cluster.tf_config import TYPES, Task

MAX_BYTES = 64 * 1024
_RECEIVE_BYTES = 64 * 1024


class Connection:
  """A connection to another task, or from a caller that is not identified yet.

  Attributes:
    ended: why no more messages will come; empty while the connection is open.
  """

  def __init__(self, connection: socket.socket) -> None:
    connection.setblocking(False)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    self.socket = connection
    self.ended = ''
    self._incoming = self._outgoing = b''

  def fileno(self) -> int:
    """Returns the file descriptor, for poll."""
    return self.socket.fileno()

  @property
  def is_sent(self) -> bool:
    """Whether all messages have been passed to the kernel."""
    return not self._outgoing

  def send(self, **message: Any) -> None:
    """Sends a message; what the socket does not accept yet is queued."""
    self._outgoing += json.dumps(message).encode() + b'\n'
    self.flush()

  def flush(self) -> None:
    """Sends as much of the queue as the socket accepts."""
    try:
      while self._outgoing:
        self._outgoing = self._outgoing[self.socket.send(self._outgoing):]
    except BlockingIOError:
      pass
    except OSError:
      # Messages from before the end may still be unread: receive() finds the end after them.
      self._outgoing = b''

  def receive(self) -> List[Dict[str, Any]]:
    """Returns the messages received so far; sets `ended` when there will be no more."""
    try:
      data = self.socket.recv(_RECEIVE_BYTES)
    except BlockingIOError:
      return []
    except OSError as error:
      self.ended = 'its connection ended ({})'.format(error.strerror or error)
      return []
    if not data:
      self.ended = 'its connection ended'
    *lines, self._incoming = (self._incoming + data).split(b'\n')
    messages = []
    for line in lines:
      message = _parse_message(line)
      if message is None:
        self.ended = 'it uses another protocol'
        break
      messages.append(message)
    if len(self._incoming) > MAX_BYTES:
      self.ended = 'it sent more than {} bytes in one message'.format(MAX_BYTES)
    return messages

  def end_sending(self) -> None:
    """Signals that this end will send no more."""
    try:
      self.socket.shutdown(socket.SHUT_WR)
    except OSError:  # The connection has ended.
      pass

  def close(self) -> None:
    """Closes the connection in both directions."""
    self.ended = self.ended or 'closed here'
    self.socket.close()


def _parse_message(line: bytes) -> Optional[Dict[str, Any]]:
  if len(line) > MAX_BYTES:
    return None
  try:
    message = json.loads(line.decode())
  except (ValueError, RecursionError):
    return None
  return message if isinstance(message, dict) else None


def parse_task(value: Any) -> Optional[Task]:
  """Returns the task that a value in a message names; None if it names none."""
  if (isinstance(value, list) and len(value) == 2 and value[0] in TYPES
      and isinstance(value[1], int) and not isinstance(value[1], bool)):
    return Task(*value)
  return None


def is_port(value: Any) -> bool:
  """Whether a value in a message is a valid port."""
  return isinstance(value, int) and 0 < value < 2 ** 16


def wait_readable(sockets: Sequence[Any], secs: float) -> List[Any]:
  """Waits until a socket is readable, and returns all that are.

  Args:
    sockets: objects with `fileno`.
    secs: seconds to wait at most.
  """
  poll = select.poll()  # select() is limited to file descriptors up to 1023.
  by_descriptor = {each.fileno(): each for each in sockets}
  for descriptor in by_descriptor:
    poll.register(descriptor, select.POLLIN)
  return [by_descriptor[descriptor] for descriptor, _ in poll.poll(secs * 1000)]
