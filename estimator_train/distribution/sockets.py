"""TCP addresses, listeners and connections, and the timeout for the start of a cluster."""

import contextlib
import errno
import ipaddress
import logging
import socket
import struct
import time
from typing import Callable, Sequence, Tuple

from estimator_train.errors import PeerLost

_LOG_EVERY_SECS, _MAX_NAMES = 60., 20
_LOG = logging.getLogger('estimator_train')


def split_address(address: str) -> Tuple[str, int]:
  """Splits HOST:PORT into host and port, and removes the brackets of an IPv6 address."""
  host, _, port = address.rpartition(':')
  return host.strip('[]'), int(port)


def is_loopback(address: str) -> bool:
  """Whether HOST:PORT can be reached only from this host."""
  host, _ = split_address(address)
  try:
    return ipaddress.ip_address(host).is_loopback
  except ValueError:
    return host == 'localhost'


def open_listener(port: int) -> socket.socket:
  """Returns a non-blocking listener on all interfaces, for IPv4 and, where available, IPv6.

  Args:
    port: the port; 0 for any free port.
  """
  # The listener is not bound to the name of this host, because a container may fail to resolve it.
  try:
    return _open_listener_on(socket.AF_INET6, '::', port)
  except OSError as error:
    if error.errno in (errno.EADDRINUSE, errno.EACCES):
      raise
  return _open_listener_on(socket.AF_INET, '0.0.0.0', port)


def _open_listener_on(family: socket.AddressFamily, host: str, port: int) -> socket.socket:
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
  """Connects to a port of a host, at the first of its addresses at which this is possible."""
  try:
    address_infos = socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM)
  except UnicodeError as error:  # The name is not a valid host name.
    raise OSError(str(error)) from error
  last_error = OSError('{} cannot be resolved'.format(host))
  for family, socket_type, protocol, _, address in address_infos:
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


def describe_listening_process(port: int) -> str:
  """Describes the process that listens on a port of this host; returns '' if it is unknown."""
  import psutil  # Not imported at the top, because only error messages need psutil.
  # psutil raises an error if the process has ended, or belongs to another user.
  with contextlib.suppress(psutil.Error):
    for connection in psutil.net_connections('tcp'):
      if (connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
          and connection.pid):
        return 'process {} ({})'.format(connection.pid, psutil.Process(connection.pid).name())
  return ''


class StartTimeout:
  """The timeout of the rendezvous. It starts when this object is made."""

  def __init__(self, timeout_secs: float,
               log: Callable[[str], None] = _LOG.info,
               clock: Callable[[], float] = time.monotonic) -> None:
    self.log, self.clock = log, clock
    self._timeout_secs, self._started_at = timeout_secs, clock()
    self._logged_at = self._started_at

  def log_or_raise(self, missing: Sequence[str]) -> None:
    """Logs the missing tasks once a minute; raises a PeerLost if the timeout has expired."""
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
