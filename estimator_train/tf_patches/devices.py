"""Describes the GPUs of this machine."""

from typing import List

import tensorflow.compat.v1 as tf
from tensorflow.python.client import device_lib


def gpu_descriptions(config: tf.ConfigProto) -> List[str]:
  """Returns TensorFlow's description of each GPU, which includes its compute capability.

  Private name, no workaround: `tf.config.experimental.list_physical_devices`
  (tensorflow_core/python/framework/config.py:297) returns names and types only. A private function
  (tensorflow_core/python/client/device_lib.py:25) also returns the compute capability. Without
  the capability, there would be no warning that `--dtype=mixed` uses float32 on an older GPU.

  Args:
    config: the configuration of the run's sessions, with which this call creates the devices.
  """
  return [device.physical_device_desc for device in device_lib.list_local_devices(config)
          if device.device_type == 'GPU']
