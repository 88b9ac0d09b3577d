"""Trains asynchronously on several workers, and serves the variables on parameter servers."""

from typing import Any, Dict, Optional

import tensorflow.compat.v1 as tf

from estimator_train.distribution.engines.cluster_engine import ClusterEngine, join_peers
from estimator_train.distribution.process import Process, wait_for_network
from estimator_train.distribution.state import TRAINING
from estimator_train.settings import Settings


class ParameterServerEngine(ClusterEngine):
  """Trains with ParameterServerStrategy: each step of a worker is a global step; see Engine."""
  is_synchronous = False

  def first_example(self, examples_seen: int) -> int:
    # The workers use their shards of a batch in different global steps, and a checkpoint may be
    # saved between two of these steps. A resumed run repeats the whole batch.
    batch_size = self.settings.optimizer.batch_size
    return examples_seen // batch_size * batch_size

  def make_strategy(self) -> Optional[tf.distribute.Strategy]:
    return tf.distribute.experimental.ParameterServerStrategy()


def serve_variables(settings: Settings, process: Process) -> Dict[str, Any]:
  """Serves variables to the workers until all workers have finished.

  Args:
    settings: the settings of the run.
    process: the role of this process, which is a parameter server.

  Returns:
    The result of the mode for this process.
  """
  cluster = process.cluster
  assert cluster is not None
  wait_for_network(cluster, settings.cluster.start_timeout_secs)
  peers = join_peers(settings, cluster, {})  # The other shared values describe data and model.
  server = tf.train.Server(
      tf.train.ClusterSpec({kind: list(addresses) for kind, addresses in cluster.addresses.items()
                            if kind != 'evaluator'}),
      cluster.task.type, cluster.task.index, config=tf.ConfigProto(device_count={'GPU': 0}))
  peers.announce_state(TRAINING)
  peers.wait_until_finished()  # The chief waits for the other workers.
  peers.finish()
  del server
  return {'mode': settings.run.mode, 'model_dir': settings.run.model_dir, 'task': process.name}
