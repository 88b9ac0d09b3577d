"""What TensorFlow knows of the devices of this machine."""

from typing import List

import tensorflow.compat.v1 as tf
from tensorflow.python.client import device_lib


def gpu_descriptions(config: tf.ConfigProto) -> List[str]:
  """Returns TensorFlow's description of each GPU, which names its compute capability.

  Private name, no workaround: `tf.config.experimental.list_physical_devices`
  (tensorflow_core/python/framework/config.py:297) returns names and types only, so only
  tensorflow_core/python/client/device_lib.py:25 tells the compute capability. Without it,
  `--dtype=mixed` would compute in float32 on an older GPU without a warning.

  Args:
    config: of the sessions of the run; it is the first that makes the devices.
  """
  return [device.physical_device_desc for device in device_lib.list_local_devices(config)
          if device.device_type == 'GPU']
