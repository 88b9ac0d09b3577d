"""Trains synchronously on several workers, which exchange gradients by TensorFlow's collectives."""

from typing import Optional

import tensorflow.compat.v1 as tf

from estimator_train.distribution.devices import collective_communication
from estimator_train.distribution.engines.cluster_engine import ClusterEngine
from estimator_train.settings import groups
from estimator_train.tf_patches import multi_worker_mirrored


class CollectiveEngine(ClusterEngine):
  """Trains with MultiWorkerMirroredStrategy; see Engine."""

  def make_strategy(self) -> Optional[tf.distribute.Strategy]:
    return multi_worker_mirrored.make_strategy(
        self.devices.names, collective_communication(self.settings[groups.Devices]))
