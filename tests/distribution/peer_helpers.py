"""Members of a cluster in threads of this process."""

import contextlib
from concurrent import futures

from cluster_processes import free_addresses

from estimator_train.distribution import rendezvous, tf_config
from estimator_train.distribution.cluster_peers import ClusterPeers
from estimator_train.distribution.sockets import StartTimeout
from estimator_train.settings import Settings

SECS = 60
# Starts a function with its arguments in a thread, and returns its Future.
in_thread = futures.ThreadPoolExecutor(100).submit


def workers(count):
  return {'worker': free_addresses(count)}


class Member:
  """A task that connects to the others in a thread of its own; the port of the chief is open.

  Attributes:
    cluster: the cluster.
    log: the lines that the rendezvous has logged.
    lost: the lost tasks, each with the reason.
  """

  def __init__(self, addresses, index=0, kind='worker', values=None, secs=SECS, key=''):
    self.cluster = tf_config.Cluster(
        {name: tuple(hosts) for name, hosts in addresses.items()}, tf_config.Task(kind, index))
    self.log, self.lost = [], []
    listener = tf_config.listen_on_task_port(self.cluster) if self.cluster.is_chief else None
    self._peers = in_thread(self._connect, values or {}, secs, listener, key)

  def _connect(self, values, secs, *listener_and_key):
    peers = ClusterPeers(Settings(model_dir='x', peer_timeout_secs=SECS), self.cluster,
                 on_task_lost=self.lost.append)
    peers.start_message_thread(rendezvous.connect(
        self.cluster, values, StartTimeout(secs, self.log.append), *listener_and_key))
    return peers

  @property
  def is_done(self):
    return self._peers.done()

  def peers(self, secs=SECS):
    """Waits for the ClusterPeers; raises what `connect` has raised."""
    return self._peers.result(secs)


@contextlib.contextmanager
def joining():
  """Yields a function that starts a Member; all of them end with the context."""
  members = []

  def join(*arguments, **options):
    members.append(Member(*arguments, **options))
    return members[-1]

  try:
    yield join
  finally:
    for member in members:
      with contextlib.suppress(Exception):  # It is not connected.
        in_thread(member.peers(0).send_goodbye)
