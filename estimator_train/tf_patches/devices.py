"""Describes the GPUs of this machine."""

from typing import List

import tensorflow.compat.v1 as tf
from tensorflow.python.client import device_lib


def gpu_descriptions(config: tf.ConfigProto) -> List[str]:
  """Returns TensorFlow's description of each GPU, which includes its compute capability.

  Not a workaround for a defect: this function uses the private name `list_local_devices`
  (tensorflow_core/python/client/device_lib.py:25), because the public
  `tf.config.experimental.list_physical_devices` returns names and types only. Without the compute
  capability, the program could not warn that `--dtype=mixed` uses float32 on an older GPU.

  Args:
    config: the configuration of the run's sessions. This call creates devices with this
      configuration.
  """
  return [device.physical_device_desc for device in device_lib.list_local_devices(config)
          if device.device_type == 'GPU']
