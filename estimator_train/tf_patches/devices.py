"""TensorFlow's descriptions of the devices of this machine."""

from typing import List

import tensorflow.compat.v1 as tf
from tensorflow.python.client import device_lib


def gpu_descriptions(config: tf.ConfigProto) -> List[str]:
  """Returns TensorFlow's description of each GPU, which includes its compute capability.

  Private name, no workaround: `tf.config.experimental.list_physical_devices`
  (tensorflow_core/python/framework/config.py:297) returns names and types only; only
  tensorflow_core/python/client/device_lib.py:25 returns the compute capability. Without it,
  `--dtype=mixed` would compute in float32 on an older GPU without a warning.

  Args:
    config: configuration of the run's sessions; this call creates the devices with it.
  """
  return [device.physical_device_desc for device in device_lib.list_local_devices(config)
          if device.device_type == 'GPU']
