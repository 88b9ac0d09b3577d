"""Makes Keras ignore the user's keras.json, which may be for a later version of Keras.

When Keras is imported, it reads `~/.keras/keras.json` or, if the environment variable KERAS_HOME is
set, `keras.json` in that folder. The import fails if a value is unknown to Keras, such as bfloat16.
"""

import contextlib
import os
import traceback
from typing import Iterator

from estimator_train.errors import UserError

_FOLDER_VARIABLE = 'KERAS_HOME'
# In /dev/null, Keras finds no file, and cannot write one.
VARIABLES_TO_IGNORE_JSON = {_FOLDER_VARIABLE: os.devnull}
# The path of the module that reads keras.json, relative to the folder of TensorFlow.
_READING_MODULE_PATH = os.path.join('python', 'keras', 'backend.py')


@contextlib.contextmanager
def ignore_keras_json() -> Iterator[None]:
  """Makes this process and its children read no keras.json when they import Keras in the block."""
  # The variable is restored, because the user's code may import the package `keras`, which also
  # keeps downloaded files in this folder.
  previous_value = os.environ.get(_FOLDER_VARIABLE)
  os.environ.update(VARIABLES_TO_IGNORE_JSON)
  try:
    yield
  finally:
    del os.environ[_FOLDER_VARIABLE]
    if previous_value is not None:
      os.environ[_FOLDER_VARIABLE] = previous_value


@contextlib.contextmanager
def translate_errors() -> Iterator[None]:
  """Raises a UserError if Keras rejects a keras.json during its import."""
  try:
    yield
  except Exception as error:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    if not frame.filename.endswith(_READING_MODULE_PATH):
      raise
    folder = os.path.expanduser(os.environ.get(_FOLDER_VARIABLE, '~/.keras'))
    path = os.path.join(folder, 'keras.json')
    raise UserError('Keras of TensorFlow 1.15 must accept its settings',
                    '{} ({}: {})'.format(path, type(error).__name__, str(error) or frame.line),
                    'correct the file, or name another folder by KERAS_HOME, and start Python again'
                    ) from error  # A second import in this process would be incomplete.
