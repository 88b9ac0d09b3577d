"""The package as a guest in a Python process of the user's: a notebook, or a script."""

import os
import warnings
from contextlib import contextmanager
from typing import Iterator, Optional

from estimator_train.process import cpu_tuning, logs, malloc, start_up
from estimator_train.tf_patches import xla

_VARIABLES = ('TF_CONFIG', xla.VARIABLE, logs.CPP_LEVEL_VARIABLE, start_up.STARTED_VARIABLE,
              *cpu_tuning.NAMES)


@contextmanager
def process_left_as_it_was(verbosity: int) -> Iterator[None]:
  """Imports TensorFlow, and restores what a call of the library changes in the process.

  That is its environment, TensorFlow's log, malloc's parameters and the Keras session.

  Args:
    verbosity: of the log of TensorFlow; below 1 its warnings are left out.
  """
  variables = {name: os.environ.get(name) for name in _VARIABLES}
  # The time to the first step counts from here, however long the notebook has been open.
  os.environ[start_up.STARTED_VARIABLE] = start_up.uptime()
  if verbosity < 1:
    logs.silence_tensorflow()
  keeps_memory = cpu_tuning.set_up()
  try:
    with warnings.catch_warnings():
      if verbosity < 1:
        warnings.simplefilter('ignore')
      import tensorflow.compat.v1 as tf

      from estimator_train.tf_patches import keras
    log_level = tf.logging.get_verbosity()
    tf.logging.set_verbosity(tf.logging.INFO if verbosity > 0 else tf.logging.ERROR)
    try:
      with keras.session_restored():
        yield
    finally:
      tf.logging.set_verbosity(log_level)
  finally:
    if keeps_memory:
      malloc.return_freed_memory()
    for name, value in variables.items():
      _set(name, value)


def _set(name: str, value: Optional[str]) -> None:
  if value is None:
    os.environ.pop(name, None)
  else:
    os.environ[name] = value
