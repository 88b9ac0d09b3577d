"""How an engine of a cluster reports the error that ends its training."""

from unittest import mock

import pytest
import tensorflow.compat.v1 as tf

from estimator_train import errors
from estimator_train.distribution import cluster_engine, tf_config
from estimator_train.distribution.devices import Devices
from estimator_train.distribution.process import Process
from estimator_train.settings import Settings


@pytest.mark.parametrize('error, expected', [
    # All workers raise this error, and each worker reports its own.
    (errors.NonFiniteLoss('the loss is nan'), mock.call.finish()),
    # Only the chief raises these errors: it alone evaluates, checks the weights and saves.
    (errors.TrainingFailed('the loss of the test examples is nan'),
     mock.call.report_failure('the loss of the test examples is nan')),
    (errors.CheckpointNotSaved('the disk is full'), mock.call.report_failure('the disk is full')),
    (KeyboardInterrupt(), mock.call.report_failure('KeyboardInterrupt'))])
def test_errors_of_one_task_are_reported_to_the_others(monkeypatch, error, expected):
  monkeypatch.setattr(cluster_engine, 'wait_for_network', mock.Mock())
  monkeypatch.setattr(tf.estimator, 'train_and_evaluate', mock.Mock(side_effect=error))
  engine = cluster_engine.ClusterEngine(
      Settings(model_dir='x', train_steps=1, batch_size=2,
               distribution_strategy='multi_worker_mirrored'),
      Process(0, 2, cluster=tf_config.Cluster({'worker': ('a:1', 'b:1')},
                                              tf_config.Task('worker', 0))),
      Devices(('/cpu:0',), ('/cpu:0',)))
  engine._connected_peers = mock.Mock()
  with pytest.raises(type(error)):
    engine.train(None, lambda: None, (), 1)
  assert engine.peers.method_calls == [expected]
