"""JSON objects, one a line, over a connection that never blocks."""

import json
import select
import socket
from typing import Any, Dict, List, Optional, Sequence

from estimator_train.cluster.tf_config import TYPES, Task

MAX_BYTES = 64 * 1024
_AT_ONCE = 64 * 1024


class Connection:
  """A connection to another task, or to whoever called.

  Attributes:
    ended: why nothing more comes; empty as long as something may.
  """

  def __init__(self, connection: socket.socket) -> None:
    connection.setblocking(False)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    self.socket = connection
    self.ended = ''
    self._incoming = self._outgoing = b''

  def fileno(self) -> int:
    """Returns the file descriptor, as select asks for it."""
    return self.socket.fileno()

  @property
  def is_sent(self) -> bool:
    """Whether all that was said is on its way."""
    return not self._outgoing

  def send(self, **message: Any) -> None:
    """Sends a message, now or as soon as the other end takes it."""
    self._outgoing += json.dumps(message).encode() + b'\n'
    self.flush()

  def flush(self) -> None:
    """Sends what the other end has not taken yet."""
    try:
      while self._outgoing:
        self._outgoing = self._outgoing[self.socket.send(self._outgoing):]
    except BlockingIOError:
      pass
    except OSError:
      # What it said before it ended may still be there: receive() is to find the end after that.
      self._outgoing = b''

  def receive(self) -> List[Dict[str, Any]]:
    """Returns the messages that have come; notes it when there will be no more."""
    try:
      data = self.socket.recv(_AT_ONCE)
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
      message = _parsed(line)
      if message is None:
        self.ended = 'it speaks another protocol'
        break
      messages.append(message)
    if len(self._incoming) > MAX_BYTES:
      self.ended = 'it sent more than {} bytes in one message'.format(MAX_BYTES)
    return messages

  def end_sending(self) -> None:
    """Tells the other end that nothing more comes from this one."""
    try:
      self.socket.shutdown(socket.SHUT_WR)
    except OSError:  # It has ended.
      pass

  def close(self) -> None:
    """Ends it, in both directions."""
    self.ended = self.ended or 'closed here'
    self.socket.close()


def _parsed(line: bytes) -> Optional[Dict[str, Any]]:
  if len(line) > MAX_BYTES:
    return None
  try:
    message = json.loads(line.decode())
  except (ValueError, RecursionError):
    return None
  return message if isinstance(message, dict) else None


def task_of(value: Any) -> Optional[Task]:
  """Returns the task that a message names; None where it names none."""
  if (isinstance(value, list) and len(value) == 2 and value[0] in TYPES
      and isinstance(value[1], int) and not isinstance(value[1], bool)):
    return Task(*value)
  return None


def is_port(value: Any) -> bool:
  """Whether a message's value can be a port."""
  return isinstance(value, int) and 0 < value < 2 ** 16


def wait_readable(sockets: Sequence[Any], secs: float) -> List[Any]:
  """Returns those that have something to read, after waiting for the first of them."""
  poll = select.poll()  # select itself takes no file descriptor above 1023.
  by_number = {each.fileno(): each for each in sockets}
  for number in by_number:
    poll.register(number, select.POLLIN)
  return [by_number[number] for number, _ in poll.poll(secs * 1000)]
