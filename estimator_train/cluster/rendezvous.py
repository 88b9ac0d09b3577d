"""The rendezvous: the members of a cluster find each other before TensorFlow starts.

The chief listens at its address in TF_CONFIG, which TensorFlow's server takes over later; all other
members connect to it. When all are registered and have the same facts, the chief sends everyone the
addresses of the others, and when each member is connected to each, it releases them.

The mesh is the connections between all members; a run is the random ID of one attempt to
build it; another attempt begins when a member is replaced.

| from | message | content | when |
|---|---|---|---|
| member | `hello` | its task, facts, and port for the mesh | once connected |
| member | `meshed` | the run whose mesh it has completed, or null | each second |
| chief | `refused` | a fact, and its value on the chief | instead of registering a member |
| chief | `taken` | | if another process is registered as this task |
| chief | `missing` | the names of the missing tasks, and the current run or null | each second |
| chief | `run` | the run, and the addresses of all `members` | when all are registered |
| chief | `go` | the run | when every member has completed its mesh |
"""

import logging
import time
from typing import Callable, Dict

from estimator_train.cluster import chief_rendezvous, member_rendezvous
from estimator_train.cluster.heartbeats import Peers
from estimator_train.cluster.mesh import Mesh
from estimator_train.cluster.start_timeout import StartTimeout
from estimator_train.cluster.tf_config import Cluster, count_tasks


def connect_peers(cluster: Cluster, facts: Dict[str, str], start_timeout_secs: float,
                  log: Callable[[str], None] = logging.getLogger(__name__).info,
                  clock: Callable[[], float] = time.monotonic) -> Peers:
  """Waits for all other members, and returns when each is connected to each.

  Args:
    cluster: the cluster; its task is a member, not the evaluator.
    facts: values that must be the same on all members, such as flags and versions, by name.
    start_timeout_secs: seconds to wait for the others.
    log: called with each line to log, such as the missing members once a minute.
    clock: returns the time in seconds, from any origin.

  Raises:
    PeerLost: a member did not connect in time.
    UserError: this task has other facts than the chief, another process already has this task, or
      the chief's port cannot be opened.
  """
  facts = {'TF_CONFIG': count_tasks(cluster), **facts}
  timeout = StartTimeout(start_timeout_secs, log, clock)
  mesh = Mesh(cluster.task, cluster.members, clock)
  try:
    connect = (chief_rendezvous.connect_as_chief if cluster.is_chief
               else member_rendezvous.connect_as_member)
    connect(cluster, facts, mesh, timeout)
    connections, mesh.connections = mesh.connections, {}
    return Peers(cluster.task, connections)
  finally:
    mesh.drop()
    mesh.close()
