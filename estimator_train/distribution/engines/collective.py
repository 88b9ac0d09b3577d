"""Trains synchronously on several workers, which exchange gradients by a ring all-reduce.

Workers that train on CPUs use the class Ring, and all others TensorFlow's collective operations.
"""

from typing import Optional

import tensorflow.compat.v1 as tf

from estimator_train.cluster.mesh import find_neighbors
from estimator_train.distribution.devices import collective_communication
from estimator_train.distribution.engines.cluster_engine import ClusterEngine
from estimator_train.distribution.ring import Ring
from estimator_train.settings import groups
from estimator_train.tf_patches import multi_worker_mirrored


class CollectiveEngine(ClusterEngine):
  """Trains with MultiWorkerMirroredStrategy; see Engine."""

  _ring: Optional[Ring] = None

  @property
  def needs_data_connections(self) -> bool:  # type: ignore[override]
    # TensorFlow's algorithms keep gradients on GPUs, and `ring` and `nccl` select them.
    settings = self.settings[groups.Devices]
    return settings.all_reduce_alg is None and self.devices.names[0].startswith('/cpu')

  def _start_communication(self) -> None:
    sockets = self.peers.data_sockets
    if sockets:
      previous, following = find_neighbors(self.cluster.task, self.cluster.members)
      assert self.worker.rank is not None
      self._ring = Ring(self.worker.rank, self.size, sockets[previous], sockets[following])

  def make_strategy(self) -> Optional[tf.distribute.Strategy]:
    return multi_worker_mirrored.make_strategy(
        self.devices.names, collective_communication(self.settings[groups.Devices]),
        None if self._ring is None else self._ring.all_reduce)

  def _exchange_failure(self, error: tf.errors.OpError) -> Optional[str]:
    return None if self._ring is None or self._ring.error is None else str(self._ring.error)
