"""Keeps the user's keras.json, which other programs may need, out of this program.

When Keras is imported, it reads `~/.keras/keras.json` or, if the environment variable KERAS_HOME is
set, `keras.json` in that folder. Values that only later versions know, such as bfloat16, make the
import fail.
"""

import contextlib
import os
import traceback
from typing import Iterator

from estimator_train.errors import UserError

_VARIABLE = 'KERAS_HOME'
# /dev/null as the folder, where Keras finds no file and cannot write one.
VARIABLES = {_VARIABLE: os.devnull}
# TensorFlow's module that reads the file, without the folder of TensorFlow.
_READER = os.path.join('python', 'keras', 'backend.py')


@contextlib.contextmanager
def ignore_keras_json() -> Iterator[None]:
  """Makes this process and its children read no keras.json when they import Keras in the block."""
  # The variable is restored, because the package `keras` also keeps downloaded files in this
  # folder, and the user's code may import that package.
  previous = os.environ.get(_VARIABLE)
  os.environ.update(VARIABLES)
  try:
    yield
  finally:
    del os.environ[_VARIABLE]
    if previous is not None:
      os.environ[_VARIABLE] = previous


@contextlib.contextmanager
def translate_errors() -> Iterator[None]:
  """Translates the exception with which Keras rejects a keras.json during its import.

  Raises:
    UserError: Keras rejects the file. Other exceptions are not changed.
  """
  try:
    yield
  except Exception as error:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    if not frame.filename.endswith(_READER):
      raise
    path = os.path.expanduser(os.path.join(os.environ.get(_VARIABLE, '~/.keras'), 'keras.json'))
    raise UserError('Keras of TensorFlow 1.15 must accept its settings',
                    '{} ({}: {})'.format(path, type(error).__name__, str(error) or frame.line),
                    'correct the file, or name another folder by KERAS_HOME, and start Python again'
                    ) from error  # A second import in this process would be incomplete.
