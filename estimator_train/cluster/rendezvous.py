"""How the members of a cluster find each other before TensorFlow starts.

The chief listens at its address in TF_CONFIG, where TensorFlow's server is going to; all others
call it. When all are there and were started alike, the chief tells everyone where the others are,
and when everyone is connected to everyone, it tells them to go.

Messages to the chief: `hello` (task, facts, port of the mesh), then each second `meshed` (the run
whose mesh is complete, or null). From the chief: each second `missing` (names) and `run`; `refused`
(a fact, and what it is on the chief) or `taken`; `run` with `members`; `go` (the run).
"""

import logging
import time
from typing import Callable, Dict

from estimator_train.cluster import chief_rendezvous, member_rendezvous
from estimator_train.cluster.heartbeats import Peers
from estimator_train.cluster.mesh import Mesh
from estimator_train.cluster.start_timeout import StartTimeout
from estimator_train.cluster.tf_config import Cluster, counts


def meet(cluster: Cluster, facts: Dict[str, str], start_timeout_secs: float,
         log: Callable[[str], None] = logging.getLogger(__name__).info,
         clock: Callable[[], float] = time.monotonic) -> Peers:
  """Waits for all other members, and returns once each is connected to each.

  Args:
    cluster: its task is a member, not the evaluator.
    facts: what must be the same for all, such as flags and versions, by name.
    start_timeout_secs: how long to wait.
    log: gets a line when there is something to say, such as who is missing after each minute.
    clock: seconds from any start.

  Raises:
    PeerLost: one did not come in time.
    UserError: this task was started with other facts than the chief, or is there twice, or the
      chief's port cannot be had.
  """
  facts = {'TF_CONFIG': counts(cluster), **facts}
  timeout = StartTimeout(start_timeout_secs, log, clock)
  mesh = Mesh(cluster.task, cluster.members, clock)
  try:
    meeting = chief_rendezvous.meet if cluster.is_chief else member_rendezvous.meet
    meeting(cluster, facts, mesh, timeout)
    connections, mesh.connections = mesh.connections, {}
    return Peers(cluster.task, connections)
  finally:
    mesh.drop()
    mesh.close()
