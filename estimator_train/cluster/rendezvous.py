"""Connects the members of a cluster to each other before TensorFlow starts.

The members are all tasks except the evaluator. The chief listens at its address in TF_CONFIG, which
TensorFlow's server uses later. The other members connect to the chief, and send their shared
values, such as flags and versions. The chief refuses a member whose values differ from its own.
Once all members are registered, the chief sends the addresses of its peers to each member. Once
all members are connected to their peers, the chief releases them.

The mesh is the set of connections between the members; see mesh.py for the peers of a member.
Each attempt to build the mesh has a random ID. Another attempt begins if a member is lost and its
process is replaced.

| from | message | content | when |
|---|---|---|---|
| member | `hello` | its `task`, its `port` for the mesh, its values (`facts`) | once connected |
| member | `meshed` | the ID of the attempt once connected to all peers, else null | each second |
| chief | `refused` | the name of a value that differs; `is_known`: if it has one | after `hello` |
| chief | `taken` | true | if another process is registered as this task |
| chief | `missing` | up to 20 missing tasks; `run`: the ID of the attempt, or null | each second |
| chief | `run` | ID of a new attempt; `members`: addresses of its peers | when all are registered |
| chief | `go` | the ID of the attempt | when all members are connected to their peers |
"""

import hashlib
import logging
import socket
import time
from typing import Callable, Dict, Optional

from estimator_train.cluster import chief_rendezvous, member_rendezvous
from estimator_train.cluster.heartbeats import Peers
from estimator_train.cluster.mesh import Mesh
from estimator_train.cluster.start_timeout import StartTimeout
from estimator_train.cluster.tf_config import Cluster, describe_task_counts

# Longer values, such as 1,000 class names, are sent as their beginning and a digest.
_MAX_VALUE_CHARS = 200


def connect_peers(cluster: Cluster, shared_values: Dict[str, str], start_timeout_secs: float,
                  log: Callable[[str], None] = logging.getLogger(__name__).info,
                  clock: Callable[[], float] = time.monotonic,
                  listener: Optional[socket.socket] = None) -> Peers:
  """Waits for all other members, and returns once all members are connected to their peers.

  Args:
    cluster: the cluster, of which this process is a member.
    shared_values: values that must be the same on all members, such as flags and versions, by name.
    start_timeout_secs: seconds to wait for the other members.
    log: called with each line to log, such as the missing members once a minute.
    clock: returns the time in seconds, from any origin.
    listener: on the chief, a listener at its address, which this function closes. None: this
      function opens the port in TF_CONFIG.

  Raises:
    PeerLost: a member did not connect in time.
    UserError: a shared value of this task differs from that of the chief, another process is
      registered as this task, or the chief's port cannot be opened.
  """
  shared_values = {name: _shorten(value) for name, value in dict(
      shared_values, TF_CONFIG=describe_task_counts(cluster)).items()}
  timeout = StartTimeout(start_timeout_secs, log, clock)
  mesh = Mesh(cluster.task, cluster.members, clock)
  try:
    if cluster.is_chief:
      chief_rendezvous.connect_as_chief(cluster, shared_values, mesh, timeout, listener)
    else:
      member_rendezvous.connect_as_member(cluster, shared_values, mesh, timeout)
    connections, mesh.connections = mesh.connections, {}
    return Peers(cluster.task, cluster.chief, connections)
  finally:
    mesh.abandon()
    mesh.close()


def _shorten(value: str) -> str:
  if len(value) <= _MAX_VALUE_CHARS:
    return value
  digest = hashlib.sha256(value.encode('utf-8', 'surrogateescape')).hexdigest()
  return '{}... (SHA-256 {})'.format(value[:_MAX_VALUE_CHARS // 2], digest)
