"""TCP between the tasks of a cluster: addresses, listeners, connections, who has a port."""

import contextlib
import errno
import socket
import struct
from typing import Tuple


def split_address(address: str) -> Tuple[str, int]:
  """Returns host and port of HOST:PORT; an IPv6 address without its brackets."""
  host, _, port = address.rpartition(':')
  return host.strip('[]'), int(port)


def listen(port: int) -> socket.socket:
  """Returns a listener on all interfaces, of IPv6 as well as of IPv4 where there is both.

  As it listens to no name of its own, a container need not be able to resolve its own.

  Args:
    port: 0 for one that is free.

  Raises:
    OSError: when the port cannot be had.
  """
  try:
    return _listen(socket.AF_INET6, '::', port)
  except OSError as error:
    if error.errno in (errno.EADDRINUSE, errno.EACCES):
      raise
  return _listen(socket.AF_INET, '0.0.0.0', port)


def _listen(family: socket.AddressFamily, host: str, port: int) -> socket.socket:
  listener = socket.socket(family, socket.SOCK_STREAM)
  try:
    # What the kernel keeps of ended connections is no reason against the port.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
      listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    listener.bind((host, port))
    listener.listen(128)
    listener.setblocking(False)
    return listener
  except BaseException:
    listener.close()
    raise


def connect(host: str, port: int, timeout_secs: float) -> socket.socket:
  """Returns a connection.

  Raises:
    OSError: when there is none to be had, or the host has no address.
  """
  try:
    found = socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM)
  except UnicodeError as error:  # A name that cannot be one.
    raise OSError(str(error)) from error
  failure = OSError('{} has no address'.format(host))
  for family, kind, protocol, _, address in found:
    connection = socket.socket(family, kind, protocol)
    try:
      # Its own port may, by chance, be the one that a task of this machine listens to next.
      connection.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
      connection.settimeout(timeout_secs)
      connection.connect(address)
      if connection.getsockname() == connection.getpeername():
        # Where nobody listens on this machine, Linux can connect a port to itself.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
        raise ConnectionRefusedError('nobody listens')
      return connection
    except OSError as error:
      connection.close()
      failure = error
    except BaseException:
      connection.close()
      raise
  raise failure


def peer_host(connection: socket.socket) -> str:
  """Returns the address of the other end."""
  try:
    host = str(connection.getpeername()[0])
  except OSError:  # It has hung up.
    return ''
  return host[len('::ffff:'):] if host.startswith('::ffff:') else host


def holder(port: int) -> str:
  """Returns the process that listens to a port of this machine, or where nothing tells, ''."""
  import psutil  # Only where an address is in use.
  with contextlib.suppress(psutil.Error):  # It has ended, or is another user's.
    for connection in psutil.net_connections('tcp'):
      if (connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
          and connection.pid):
        return 'process {} ({})'.format(connection.pid, psutil.Process(connection.pid).name())
  return ''
