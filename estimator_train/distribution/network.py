"""Opens TCP listeners and connections, and finds the process that uses a port."""

import contextlib
import errno
import socket
import struct
from typing import List, Tuple


def split_address(address: str) -> Tuple[str, int]:
  """Splits HOST:PORT into host and port; removes the brackets of an IPv6 address."""
  host, _, port = address.rpartition(':')
  return host.strip('[]'), int(port)


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


def interface_of(address: str) -> str:
  """Returns the name of the network interface that has an IP address; empty if there is none."""
  import psutil
  return next((name for name, entries in psutil.net_if_addrs().items()
               if any(entry.address == address for entry in entries)), '')


def route_to(host: str, port: int) -> str:
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
