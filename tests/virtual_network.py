"""Hosts in network namespaces, and a switch between them that delays and drops frames.

The kernel of a test machine may lack `tc netem`, so the switch is a thread of the test process.
"""

import asyncio
import contextlib
import fcntl
import os
import random
import shutil
import struct
import subprocess
import threading

import pytest
from conftest import run_process

_TUNSETIFF, _IFF_TAP, _IFF_NO_PI = 0x400454ca, 0x0002, 0x1000
_MAX_FRAME_BYTES = 2048


class Switch:
  """Forwards Ethernet frames between TAP devices, one for each host.

  Attributes:
    delay_secs: time from the arrival of a frame until it is forwarded.
    loss: probability that a frame is lost.
    separated: numbers of the hosts that can reach each other, but no other host.
    cut: numbers of two hosts that cannot reach each other.
    forwarded, lost: counts of frames.
  """

  def __init__(self):
    self.delay_secs, self.loss = 0., 0.
    self.separated, self.cut, self.forwarded, self.lost = frozenset(), frozenset(), 0, 0
    self._random, self._devices = random.Random(1), []
    self._loop = asyncio.new_event_loop()
    self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

  def add_device(self, name):
    """Creates the TAP device of the next host."""
    device = os.open('/dev/net/tun', os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack('16sH', name.encode(), _IFF_TAP | _IFF_NO_PI))
    self._loop.add_reader(device, self._read, len(self._devices))
    self._devices.append(device)

  def start(self):
    self._thread.start()

  def close(self):
    if self._thread.is_alive():
      self._loop.call_soon_threadsafe(self._loop.stop)
      self._thread.join(10)
    self._loop.close()
    for device in self._devices:
      os.close(device)

  def _read(self, sender):
    frame = os.read(self._devices[sender], _MAX_FRAME_BYTES)
    if self._random.random() < self.loss:
      self.lost += 1
    else:
      self._loop.call_later(self.delay_secs, self._forward, sender, frame)

  def _forward(self, sender, frame):
    for receiver, device in enumerate(self._devices):
      is_target = frame[:6] == _mac_address(receiver) or frame[0] & 1  # A broadcast.
      if receiver == sender or not is_target:
        continue
      if ((receiver in self.separated) != (sender in self.separated)
          or {sender, receiver} == self.cut):
        self.lost += 1
        continue
      with contextlib.suppress(OSError):
        os.write(device, frame)
        self.forwarded += 1


def _mac_address(host):
  return bytes([2, 0, 0, 0, 0, host + 1])


class Network:
  """Hosts 10.99.0.1, 10.99.0.2, …, each in a namespace, which the switch connects."""

  def __init__(self, num_hosts):
    self.switch = Switch()
    self.namespaces = ['et{}h{}'.format(os.getpid(), host) for host in range(num_hosts)]
    self.addresses = ['10.99.0.{}'.format(host + 1) for host in range(num_hosts)]

  def prefix(self, host):
    """Returns the beginning of a command that runs on a host."""
    return ['ip', 'netns', 'exec', self.namespaces[host]]

  def open(self):
    for host, namespace in enumerate(self.namespaces):
      made = _run('netns', 'add', namespace, check=False)
      if made.returncode:
        pytest.skip('no network namespace can be made here: ' + made.stdout)
      device, address = namespace + 't', ':'.join(map('{:02x}'.format, _mac_address(host)))
      try:
        self.switch.add_device(device)
      except OSError as error:
        pytest.skip('no TAP device can be made here: {}'.format(error))
      _run('link', 'set', device, 'address', address, 'netns', namespace, 'name', 'eth0')
      _run('-n', namespace, 'addr', 'add', self.addresses[host] + '/24', 'dev', 'eth0')
      for name in ('eth0', 'lo'):
        _run('-n', namespace, 'link', 'set', name, 'up')
    self.switch.start()

  def close(self):
    self.switch.close()
    for namespace in self.namespaces:
      _run('netns', 'delete', namespace, check=False)


def _run(*command, check=True):
  """Runs `ip` with arguments."""
  return run_process('ip', *command, check=check, stderr=subprocess.STDOUT, timeout=20)


@contextlib.contextmanager
def make_network(num_hosts):
  """Returns a context with a Network; skips the test if the machine does not allow one."""
  if os.geteuid() or not shutil.which('ip'):
    pytest.skip('network namespaces require root and iproute2')
  network = Network(num_hosts)
  try:
    network.open()
    yield network
  finally:
    network.close()
