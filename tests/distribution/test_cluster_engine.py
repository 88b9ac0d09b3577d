"""How an engine of a cluster reports the error that ends its training."""

import pytest
import tensorflow.compat.v1 as tf

from estimator_train import errors
from estimator_train.cluster import tf_config
from estimator_train.cluster.worker import Worker
from estimator_train.distribution.devices import Devices
from estimator_train.distribution.engines import cluster_engine
from estimator_train.settings import Settings
from estimator_train.tf_patches import estimator as estimator_patches


class RecordingPeers:
  """Records the calls with which a task leaves the cluster."""

  def __init__(self):
    self.calls = []

  def finish(self):
    self.calls.append('finish')

  def report_failure(self, reason):
    self.calls.append(reason)


@pytest.mark.parametrize('error, calls', [
    # All workers raise this error, and each worker reports its own.
    (errors.NonFiniteLoss('the loss is nan'), ['finish']),
    # Only the chief raises these errors: it alone evaluates, checks the weights and saves.
    (errors.TrainingFailed('the loss of the test examples is nan'),
     ['the loss of the test examples is nan']),
    (errors.CheckpointNotSaved('the disk is full'), ['the disk is full']),
    (KeyboardInterrupt(), ['KeyboardInterrupt']),
])
def test_errors_of_one_task_are_reported_to_the_others(monkeypatch, error, calls):
  def fail(*_):
    raise error

  monkeypatch.setattr(cluster_engine, 'wait_for_network', lambda *_: None)
  monkeypatch.setattr(tf.estimator, 'train_and_evaluate', fail)
  monkeypatch.setattr(estimator_patches, 'release_server', lambda: None)
  cluster = tf_config.Cluster({'worker': ('a:1', 'b:1')}, tf_config.Task('worker', 0))
  engine = cluster_engine.ClusterEngine(
      Settings(model_dir='x', train_steps=1, batch_size=2,
               distribution_strategy='multi_worker_mirrored'),
      Worker(0, 2, cluster=cluster), Devices(('/cpu:0',), ('/cpu:0',)))
  engine._connected_peers = RecordingPeers()
  with pytest.raises(type(error)):
    engine.train(None, lambda: None, (), 1)
  assert engine.peers.calls == calls
