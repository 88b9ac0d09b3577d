"""Clusters on this machine, for the tests of the peers."""

import json
import socket
import threading
import time

from estimator_train.cluster import rendezvous, tf_config

SECS = 60


def free_ports(count):
  """Returns ports that were free a moment ago."""
  sockets = [socket.socket() for _ in range(count)]
  try:
    for each in sockets:
      each.bind(('127.0.0.1', 0))
    return [each.getsockname()[1] for each in sockets]
  finally:
    for each in sockets:
      each.close()


def tf_config_text(addresses, kind, index):
  return json.dumps({'cluster': addresses, 'task': {'type': kind, 'index': index}})


def cluster_of(addresses, kind='worker', index=0):
  return tf_config.parse_cluster({'TF_CONFIG': tf_config_text(addresses, kind, index)})


def workers(count):
  return {'worker': ['localhost:{}'.format(port) for port in free_ports(count)]}


def wait_until(condition, secs=SECS):
  deadline = time.monotonic() + secs
  while not condition():
    assert time.monotonic() < deadline, 'this took too long'
    time.sleep(0.01)


class Started:
  """A `connect_peers` in a thread of its own."""

  def __init__(self, cluster, shared_values=None, start_timeout_secs=SECS, with_data=False):
    self.task, self.log, self.peers, self.error = cluster.task, [], None, None
    self._arguments = cluster, shared_values or {}, start_timeout_secs, self.log.append
    self._with_data = with_data
    self._thread = threading.Thread(target=self._run, daemon=True)
    self._thread.start()

  def _run(self):
    try:
      self.peers = rendezvous.connect_peers(*self._arguments, with_data=self._with_data)
    except Exception as error:
      self.error = error

  @property
  def is_done(self):
    return not self._thread.is_alive()

  def wait(self):
    """Returns the Peers; raises what `connect_peers` has raised."""
    self._thread.join(SECS)
    assert self.is_done, self.log
    if self.error is not None:
      raise self.error
    return self.peers
