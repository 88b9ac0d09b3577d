"""Sets up the log of this package, and hides the log of TensorFlow unless it is requested."""

import logging
import os
import sys
import warnings

from estimator_train.errors import printable, shorten

CPP_LEVEL_VARIABLE = 'TF_CPP_MIN_LOG_LEVEL'


def set_up(verbosity: int) -> None:
  """Sends the log of this package to standard error; silences TensorFlow below verbosity 1."""
  log = logging.getLogger('estimator_train')
  log.setLevel(logging.DEBUG if verbosity > 0 else logging.INFO)
  log.propagate = False
  handler = logging.StreamHandler(sys.stderr)
  handler.setFormatter(_Formatter())
  log.handlers = [handler]
  if verbosity < 1:
    silence_tensorflow()
    warnings.simplefilter('ignore')


class _Formatter(logging.Formatter):
  """Marks warnings, and makes one line of each message, which may contain untrusted text."""

  def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (It overrides a method.)
    prefix = 'warning: ' if record.levelno == logging.WARNING else ''
    return prefix + shorten(printable(super().formatMessage(record)))


def silence_tensorflow() -> None:
  """Hides TensorFlow's C++ messages except errors; must run before TensorFlow is imported."""
  # Level 2 shows errors, level 3 hides them. Without an NVIDIA driver, errors are hidden, because
  # these errors only concern the missing driver.
  os.environ.setdefault(CPP_LEVEL_VARIABLE, '2' if has_nvidia_driver() else '3')


def has_nvidia_driver() -> bool:
  """Returns whether the kernel has loaded NVIDIA's driver."""
  return os.path.exists('/proc/driver/nvidia')
