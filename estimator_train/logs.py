"""Where the log goes: ours to standard error, TensorFlow's nowhere unless it is asked for."""

import logging
import os
import sys
import warnings


def set_up(verbosity: int) -> None:
  """Sends our log to standard error and, unless asked for, keeps TensorFlow's to itself."""
  log = logging.getLogger('estimator_train')
  log.setLevel(logging.INFO)
  log.propagate = False
  log.handlers = [logging.StreamHandler(sys.stderr)]
  if verbosity < 1:
    # Read when TensorFlow is imported. Without an NVIDIA driver its only errors are about that.
    has_driver = os.path.exists('/proc/driver/nvidia')
    os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2' if has_driver else '3')
    warnings.simplefilter('ignore')
