"""Restores the state of the caller's process after a function of the library."""

import logging
import os
import sys
import warnings
from contextlib import ExitStack, contextmanager
from typing import Iterator

from estimator_train.system import keras_config, logs, machine, start_up
from estimator_train.system.library_call import library_call

# The environment variables that a run sets.
_CHANGED_VARIABLES = ('TF_CONFIG', 'TF_XLA_FLAGS', logs.CPP_LEVEL_VARIABLE,
                      start_up.START_TIME_VARIABLE, *machine.ONEDNN_VARIABLE_NAMES)


@contextmanager
def restore_process_state(verbosity: int = 0, restores_session: bool = True,
                          uses_tensorflow: bool = True) -> Iterator[None]:
  """Imports TensorFlow for a `with` block, and restores the caller's process after the block.

  The state comprises environment variables, TensorFlow's log level, malloc's parameters, the
  handlers of loggers and the Keras session.

  Args:
    verbosity: value of --verbosity. Below 1, warnings of TensorFlow are not shown.
    restores_session: whether the state comprises the Keras session.
    uses_tensorflow: False if the block does not import TensorFlow.
  """
  variables = {name: os.environ[name] for name in _CHANGED_VARIABLES if name in os.environ}
  # The time to the first step is measured from this call, not from the start of the notebook.
  os.environ[start_up.START_TIME_VARIABLE] = start_up.uptime_text()
  if verbosity < 1:
    logs.silence_tensorflow()
  keeps_memory = machine.tune_for_cpu_training()
  try:
    with ExitStack() as stack:
      stack.enter_context(logs.show_log_by_default(verbosity))
      stack.enter_context(logs.name_keywords())
      stack.enter_context(library_call())
      if uses_tensorflow or 'tensorflow' in sys.modules:
        _prepare_tensorflow(stack, verbosity, restores_session)
      yield
  finally:
    if keeps_memory:
      machine.return_freed_memory()
    for name in _CHANGED_VARIABLES:
      os.environ.pop(name, None)
    os.environ.update(variables)


def _prepare_tensorflow(stack: ExitStack, verbosity: int, restores_session: bool) -> None:
  """Imports TensorFlow, and sets its log level and Keras session until the stack is closed."""
  if 'tensorflow' not in sys.modules:
    logging.getLogger('estimator_train').info('importing TensorFlow')
  with warnings.catch_warnings(), keras_config.translate_errors():
    if verbosity < 1:
      warnings.simplefilter('ignore')
    import tensorflow.compat.v1 as tf

    from estimator_train.tf_patches import keras
  stack.callback(tf.logging.set_verbosity, tf.logging.get_verbosity())
  tf.logging.set_verbosity(tf.logging.INFO if verbosity > 0 else tf.logging.ERROR)
  if restores_session:
    stack.enter_context(keras.preserve_session())
