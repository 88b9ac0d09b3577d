"""Where the log goes: ours to standard error, TensorFlow's nowhere unless it is asked for."""

import logging
import os
import sys
import warnings

CPP_LEVEL_VARIABLE = 'TF_CPP_MIN_LOG_LEVEL'


def set_up(verbosity: int) -> None:
  """Sends our log to standard error and, unless asked for, keeps TensorFlow's to itself."""
  log = logging.getLogger('estimator_train')
  log.setLevel(logging.DEBUG if verbosity > 0 else logging.INFO)
  log.propagate = False
  log.handlers = [logging.StreamHandler(sys.stderr)]
  if verbosity < 1:
    silence_tensorflow()
    warnings.simplefilter('ignore')


def silence_tensorflow() -> None:
  """Keeps the log of TensorFlow's C++ to its errors; to be called before it is imported."""
  # Without an NVIDIA driver its only errors are about that.
  os.environ.setdefault(CPP_LEVEL_VARIABLE, '2' if has_nvidia_driver() else '3')


def has_nvidia_driver() -> bool:
  """Whether the kernel has loaded NVIDIA's driver."""
  return os.path.exists('/proc/driver/nvidia')
