"""TCP between tasks: listeners, and connections for JSON messages, one per line."""

import contextlib
import errno
import ipaddress
import json
import logging
import select
import socket
import struct
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from estimator_train.errors import PeerLost

MAX_MESSAGE_BYTES = 64 * 1024
_RECEIVE_BYTES = 64 * 1024
_LOG_EVERY_SECS, _MAX_NAMES = 60., 20
_LOG = logging.getLogger('estimator_train')


def split_address(address: str) -> Tuple[str, int]:
  """Splits HOST:PORT into host and port; removes the brackets of an IPv6 address."""
  host, _, port = address.rpartition(':')
  return host.strip('[]'), int(port)


def is_loopback(address: str) -> bool:
  """Whether HOST:PORT can be reached only from this host."""
  host, _ = split_address(address)
  try:
    return ipaddress.ip_address(host).is_loopback
  except ValueError:
    return host == 'localhost'


def listen(port: int) -> socket.socket:
  """Returns a non-blocking listener on all interfaces, for IPv4 and, where available, IPv6.

  The listener is not bound to a host name, because a container may be unable to resolve its own
  host name.

  Args:
    port: the port to listen on; 0: any free port.

  Raises:
    OSError: the port cannot be opened.
  """
  try:
    return _listen(socket.AF_INET6, '::', port)
  except OSError as error:
    if error.errno in (errno.EADDRINUSE, errno.EACCES):
      raise
  return _listen(socket.AF_INET, '0.0.0.0', port)


def _listen(family: socket.AddressFamily, host: str, port: int) -> socket.socket:
  """Returns a non-blocking listener for one address family, such as AF_INET6."""
  listener = socket.socket(family, socket.SOCK_STREAM)
  try:
    # Without SO_REUSEADDR, earlier connections in TIME_WAIT would make the port unavailable.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
      listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    listener.bind((host, port))
    listener.listen(1024)
    listener.setblocking(False)
    return listener
  except BaseException:
    listener.close()
    raise


def connect(host: str, port: int, timeout_secs: float) -> socket.socket:
  """Connects to a port of a host; tries each address of the host.

  Raises:
    OSError: no connection was possible, or the host name cannot be resolved.
  """
  try:
    resolved = socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM)
  except UnicodeError as error:  # The name is not a valid host name.
    raise OSError(str(error)) from error
  last_error = OSError('{} cannot be resolved'.format(host))
  for family, socket_type, protocol, _, address in resolved:
    connection = socket.socket(family, socket_type, protocol)
    try:
      # The kernel may assign a local port that is the port of another task on this machine. With
      # SO_REUSEADDR, the other task can nevertheless listen on its port.
      connection.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
      connection.settimeout(timeout_secs)
      connection.connect(address)
      if connection.getsockname() == connection.getpeername():
        # Linux has assigned the requested port as the local port, and has connected the socket to
        # itself, so there is no listener. SO_LINGER makes `close` free the port at once.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
        raise ConnectionRefusedError('no process listens on this port')
      return connection
    except OSError as error:
      connection.close()
      last_error = error
    except BaseException:
      connection.close()
      raise
  raise last_error


def own_addresses() -> List[str]:
  """Returns the IP addresses of this host; the loopback address only if there is no other one."""
  import psutil  # Not imported at the top, because few runs need psutil.
  addresses = [address.address for entries in psutil.net_if_addrs().values() for address in entries
               if address.family in (socket.AF_INET, socket.AF_INET6)]
  # Link-local IPv6 addresses, such as fe80::1%eth0, name an interface of this host.
  return [address for address in addresses
          if not address.startswith(('127.', 'fe80:')) and address != '::1'] or ['127.0.0.1']


def interface_with_address(address: str) -> str:
  """Returns the name of the network interface that has an IP address; empty if there is none."""
  import psutil
  return next((name for name, entries in psutil.net_if_addrs().items()
               if any(entry.address == address for entry in entries)), '')


def own_address_towards(host: str, port: int) -> str:
  """Returns the IP address from which this host connects to another host.

  Raises:
    OSError: the host name cannot be resolved, or there is no route.
  """
  family, socket_type, protocol, _, address = socket.getaddrinfo(
      host, port, 0, socket.SOCK_DGRAM)[0]
  with socket.socket(family, socket_type, protocol) as datagrams:
    datagrams.connect(address)  # Sends nothing.
    return str(datagrams.getsockname()[0])


def listening_process(port: int) -> str:
  """Returns the ID and name of the process that listens on a local port; empty if unknown."""
  import psutil  # Not imported at the top, because only error messages need psutil.
  # psutil raises an error if the process has ended or belongs to another user.
  with contextlib.suppress(psutil.Error):
    for connection in psutil.net_connections('tcp'):
      if (connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
          and connection.pid):
        return 'process {} ({})'.format(connection.pid, psutil.Process(connection.pid).name())
  return ''


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


def _parse_message(line: bytes) -> Optional[Dict[str, Any]]:
  """Returns the message in a line; None if the line is too long or not a JSON object."""
  if len(line) > MAX_MESSAGE_BYTES:
    return None
  try:
    message = json.loads(line.decode())
  except (ValueError, RecursionError):
    return None
  return message if isinstance(message, dict) else None


def accept_connections(listener: socket.socket) -> List[Connection]:
  """Accepts and returns all connections that are waiting at a listener."""
  connections = []
  with contextlib.suppress(OSError):  # None is waiting, or the next one has already ended.
    while True:
      connections.append(Connection(listener.accept()[0]))
  return connections


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


class StartTimeout:
  """The timeout of the rendezvous, which starts when this object is made.

  Args:
    timeout_secs: seconds to wait for the other members.
    log: called with each line to log, such as the missing members once a minute.
    clock: returns the time in seconds, from any origin.
  """

  def __init__(self, timeout_secs: float,
               log: Callable[[str], None] = _LOG.info,
               clock: Callable[[], float] = time.monotonic) -> None:
    self.log, self.clock = log, clock
    self._timeout_secs, self._started_at = timeout_secs, clock()
    self._logged_at = self._started_at

  def log_or_raise(self, missing: Sequence[str]) -> None:
    """Logs the missing tasks if a minute has passed since the last such line.

    Args:
      missing: descriptions of the tasks that this task waits for.

    Raises:
      PeerLost: the timeout has expired.
    """
    now = self.clock()
    names = ', '.join(missing[:_MAX_NAMES])
    if len(missing) > _MAX_NAMES:
      names += ' and {} more'.format(len(missing) - _MAX_NAMES)
    if now - self._started_at >= self._timeout_secs:
      raise PeerLost('gave up waiting for {} after {:.0f} s (--start_timeout_secs)'.format(
          names, self._timeout_secs))
    if now - self._logged_at >= _LOG_EVERY_SECS:
      self._logged_at = now
      self.log('waiting for {}: {:.0f} s of at most {:.0f}'.format(
          names, now - self._started_at, self._timeout_secs))
