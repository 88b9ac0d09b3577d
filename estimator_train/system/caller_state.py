"""Restores the state of the caller's process, such as a notebook, after a call of this package."""

import os
import warnings
from contextlib import ExitStack, contextmanager
from typing import Iterator, Optional

from estimator_train.system import cpu_tuning, logs, start_up
from estimator_train.tf_patches import environment

_RESTORED_VARIABLES = ('TF_CONFIG', environment.FLAGS_VARIABLE, logs.CPP_LEVEL_VARIABLE,
                       start_up.START_TIME_VARIABLE, *cpu_tuning.VARIABLE_NAMES)


@contextmanager
def restored_process_state(verbosity: int = 0, restores_session: bool = True) -> Iterator[None]:
  """Imports TensorFlow for a `with` block, and restores the process state after the block.

  The process state comprises environment variables, TensorFlow's log level, malloc's parameters
  and the Keras session.

  Args:
    verbosity: value of --verbosity. Below 1, warnings of TensorFlow are not shown.
    restores_session: whether to restore the Keras session.
  """
  variables = {name: os.environ.get(name) for name in _RESTORED_VARIABLES}
  # The time to the first step is measured from this call, not from the start of the notebook.
  os.environ[start_up.START_TIME_VARIABLE] = start_up.current_uptime()
  if verbosity < 1:
    logs.silence_tensorflow()
  keeps_memory = cpu_tuning.tune_cpu()
  try:
    with warnings.catch_warnings():
      if verbosity < 1:
        warnings.simplefilter('ignore')
      import tensorflow.compat.v1 as tf

      from estimator_train.tf_patches import keras
    log_level = tf.logging.get_verbosity()
    tf.logging.set_verbosity(tf.logging.INFO if verbosity > 0 else tf.logging.ERROR)
    try:
      with ExitStack() as stack:
        if restores_session:
          stack.enter_context(keras.preserve_session())
        yield
    finally:
      tf.logging.set_verbosity(log_level)
  finally:
    if keeps_memory:
      cpu_tuning.return_freed_memory()
    for name, value in variables.items():
      _set_variable(name, value)


def _set_variable(name: str, value: Optional[str]) -> None:
  if value is None:
    os.environ.pop(name, None)
  else:
    os.environ[name] = value
