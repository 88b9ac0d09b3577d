"""Makes a `MultiWorkerMirroredStrategy` of TensorFlow 1.15 on selected devices."""

from typing import Any, Tuple

import tensorflow.compat.v1 as tf
from tensorflow.python.distribute import (
    collective_all_reduce_strategy,
    cross_device_ops,
    distribute_lib,
    input_lib,
    mirrored_strategy,
)


def make_strategy(devices: Tuple[str, ...], communication: str) -> tf.distribute.Strategy:
  """Makes the strategy of this worker in the cluster of TF_CONFIG.

  See MultiWorkerMirroredStrategy.

  Args:
    devices: the devices of this worker, such as `/gpu:0`. All workers must have the same number of
      devices.
    communication: the implementation of the collective operations: AUTO, RING or NCCL.
  """
  return MultiWorkerMirroredStrategy(
      tuple('/device:' + name[1:].upper() for name in devices),
      cross_device_ops.CollectiveCommunication(communication))


class MultiWorkerMirroredStrategy(tf.distribute.experimental.MultiWorkerMirroredStrategy):
  """TensorFlow's strategy on the given devices.

  Defect: TensorFlow's strategy uses all GPUs, or one CPU device, and no argument selects other
  devices (tensorflow_core/python/distribute/collective_all_reduce_strategy.py:277 to 283). Symptom:
  `--num_gpus` and `--num_cpu_replicas` have no effect in a cluster. This class has the name of
  TensorFlow's class, because Estimator recognizes the strategy by the name of its class
  (tensorflow_estimator/python/estimator/estimator.py:1407).
  """

  def __init__(self, devices: Tuple[str, ...],
               communication: cross_device_ops.CollectiveCommunication) -> None:
    distribute_lib.StrategyV1.__init__(self, _Extended(self, devices, communication))


class _Extended(collective_all_reduce_strategy.CollectiveAllReduceExtended):
  """Implements the strategy; replaces the devices that the base class has selected."""

  def __init__(self, strategy: tf.distribute.Strategy, devices: Tuple[str, ...],
               communication: cross_device_ops.CollectiveCommunication) -> None:
    self._selected_devices = devices
    super().__init__(strategy, communication)

  def _initialize_multi_worker(self, cluster_resolver: Any) -> None:
    super()._initialize_multi_worker(cluster_resolver)
    # The same statements as in the base class, but with the selected devices.
    self._cross_device_ops = cross_device_ops.CollectiveAllReduce(
        num_workers=self._num_workers, num_gpus_per_worker=len(self._selected_devices),
        collective_keys=self._collective_keys)
    worker = self._worker_device
    mirrored_strategy.MirroredExtended._initialize_local(
        self, tuple(worker + name for name in self._selected_devices))
    self._input_workers = input_lib.InputWorkers(
        self._device_map, [(worker, self.worker_devices)])
    self._default_device = worker
