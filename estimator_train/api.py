"""The package as a guest in a Python process of the user's: a notebook, or a script."""

import os
import warnings
from contextlib import contextmanager
from typing import Any, Dict, Iterator, Optional

from estimator_train import modes
from estimator_train.cluster import tf_config
from estimator_train.errors import UserError
from estimator_train.process import cpu_tuning, logs, malloc, start_up
from estimator_train.settings import Settings

_VARIABLES = ('TF_CONFIG', logs.CPP_LEVEL_VARIABLE, start_up.STARTED_VARIABLE,
              *cpu_tuning.NAMES)


def train(settings: Settings) -> Dict[str, Any]:
  """See estimator_train.train."""
  if not settings.trains:
    raise UserError('train() takes settings that train', 'mode={!r}'.format(settings.mode),
                    'give mode=\'train_and_evaluate\' or \'train\', or call evaluate()')
  return _run(settings)


def evaluate(settings: Settings) -> Dict[str, Any]:
  """See estimator_train.evaluate."""
  return _run(settings._replace(mode='evaluate'))


def convert(model: Any, model_dir: str, **values: Any) -> Any:
  """See estimator_train.convert."""
  # How long to train is for the Estimator's caller to say.
  settings = Settings(mode='train', model_dir=model_dir, train_steps=1,
                      model=getattr(model, 'name', 'none'), **values)
  _check_alone(settings)
  with _as_guest(settings):
    from estimator_train.training import converter
    return converter.convert_own(model, settings)


def _run(settings: Settings) -> Dict[str, Any]:
  _check_alone(settings)
  with _as_guest(settings):
    # What ends the process after so long would end the user's.
    return modes.run(settings._replace(step_timeout_secs=0))


def _check_alone(settings: Settings) -> None:
  """Raises a UserError in a task of a cluster, whose process ends when another one is lost."""
  found = tf_config.of_run(os.environ, settings.distribution_strategy)
  if found is not None and len(found.members) > 1:
    raise UserError('tasks of a cluster are processes of their own',
                    'TF_CONFIG has ' + tf_config.counts(found),
                    'run python -m estimator_train, or unset TF_CONFIG')


@contextmanager
def _as_guest(settings: Settings) -> Iterator[None]:
  """Leaves the process as it was: environment, TensorFlow's log, malloc and the Keras session."""
  variables = {name: os.environ.get(name) for name in _VARIABLES}
  # The time to the first step counts from here, however long the notebook has been open.
  os.environ[start_up.STARTED_VARIABLE] = start_up.uptime()
  if settings.verbosity < 1:
    logs.silence_tensorflow()
  keeps_memory = cpu_tuning.set_up()
  try:
    with warnings.catch_warnings():
      if settings.verbosity < 1:
        warnings.simplefilter('ignore')
      import tensorflow.compat.v1 as tf
      from tensorflow.python.keras import backend
    log_level = tf.logging.get_verbosity()
    session = getattr(backend._SESSION, 'session', None)
    tf.logging.set_verbosity(tf.logging.INFO if settings.verbosity > 0 else tf.logging.ERROR)
    try:
      yield
    finally:
      tf.logging.set_verbosity(log_level)
      backend._SESSION.session = session
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
