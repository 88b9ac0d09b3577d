"""TCP between tasks: listeners on all interfaces, and connections to another process only."""

import socket

import pytest

from estimator_train.distribution import network


def test_nobody_listens(monkeypatch):
  class Unlucky(socket.socket):
    """Gets the very port that it connects to, so that it is connected to itself."""
    def connect(self, address):
      self.bind(address)
      super().connect(address)

  for host in ('no.such.host.invalid', 'a..b'):
    with pytest.raises(OSError):
      network.connect(host, 1, 5)
  with socket.socket() as free:
    free.bind(('127.0.0.1', 0))
    port = free.getsockname()[1]
  monkeypatch.setattr(network.socket, 'socket', Unlucky)
  with pytest.raises(ConnectionRefusedError, match='no process listens'):
    network.connect('127.0.0.1', port, 5)
