"""TCP between tasks: listeners on all interfaces, and connections that are to someone."""

import os
import socket

import pytest

from estimator_train.cluster import network


@pytest.mark.parametrize('host', ['127.0.0.1', '::1', 'localhost'])
def test_listener_is_on_all_interfaces(host):
  with network.listen(0) as listener:
    port = listener.getsockname()[1]
    with network.connect(host, port, 5) as connection, listener.accept()[0] as accepted:
      assert network.peer_ip_address(connection) in ('127.0.0.1', '::1')
      assert network.peer_ip_address(accepted) == network.peer_ip_address(connection)
    assert network.listening_process(port).startswith('process {} ('.format(os.getpid()))
  assert network.listening_process(port) == ''


def test_without_ipv6(monkeypatch):
  monkeypatch.setattr(socket, 'AF_INET6', 999)  # As where the kernel has none.
  with network.listen(0) as listener:
    assert listener.family == socket.AF_INET


def test_taken_port():
  with network.listen(0) as listener, pytest.raises(OSError, match='in use'):
    network.listen(listener.getsockname()[1])


@pytest.mark.parametrize('host', ['no.such.host.invalid', 'a..b'])
def test_no_such_host(host):
  with pytest.raises(OSError):
    network.connect(host, 1, 5)


def test_connection_to_itself_is_none(monkeypatch):
  class Unlucky(socket.socket):
    """Gets the very port that it connects to."""
    def connect(self, address):
      self.bind(address)
      super().connect(address)

  with socket.socket() as free:
    free.bind(('127.0.0.1', 0))
    port = free.getsockname()[1]
  monkeypatch.setattr(network.socket, 'socket', Unlucky)
  with pytest.raises(ConnectionRefusedError, match='no process listens'):
    network.connect('127.0.0.1', port, 5)
