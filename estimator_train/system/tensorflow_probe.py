"""Imports TensorFlow in a child process, and counts the GPUs that it sees."""

import os
from typing import NamedTuple, Optional

from estimator_train.errors import UserError
from estimator_train.system import keras_config
from estimator_train.system.child_process import ChildRun, run_python
from estimator_train.system.formatting import format_secs

# An import from a slow network disk can take a minute.
_IMPORT_TIMEOUT_SECS = 120.
# The child prints a line after each step. The output therefore shows which step hung or crashed.
_IMPORT_CODE = '''
import json, time
start_time = time.monotonic()
import tensorflow.compat.v1 as tf
print(json.dumps({'version': tf.__version__, 'secs': time.monotonic() - start_time,
                  'has_cuda': tf.test.is_built_with_cuda()}), flush=True)
print(json.dumps({'num_gpus': len(tf.config.experimental.list_physical_devices('GPU'))}),
      flush=True)
'''


class ImportResult(NamedTuple):
  """The outcome of importing TensorFlow and listing the GPUs.

  Attributes:
    version: None if the import failed.
    secs: the duration of the import.
    num_gpus: None if the GPUs cannot be listed.
  """
  child: ChildRun
  version: Optional[str] = None
  secs: float = 0.
  has_cuda: bool = False
  num_gpus: Optional[int] = None

  @property
  def failure(self) -> str:
    if self.version is None:
      return 'TensorFlow cannot be imported: {}'.format(self.child.error)
    return 'TensorFlow {} in {}, but it fails to list GPUs: {}'.format(
        self.version, format_secs(self.secs), self.child.error)


def import_in_child(timeout_secs: float = _IMPORT_TIMEOUT_SECS) -> ImportResult:
  environment = dict(
      os.environ, TF_CPP_MIN_LOG_LEVEL='0', **keras_config.VARIABLES_TO_IGNORE_JSON)
  child = run_python(['-W', 'ignore', '-c', _IMPORT_CODE], timeout_secs, environment)
  return ImportResult(child, **{
      key: value for values in child.json_values for key, value in values.items()})


def count_gpus() -> int:
  """Returns the number of GPUs that TensorFlow sees. This process allocates no GPU memory.

  Raises:
    UserError: TensorFlow cannot be imported, or cannot list the GPUs.
  """
  result = import_in_child()
  if result.num_gpus is None:
    raise UserError('the GPUs cannot be counted', result.failure,
                    'see --mode=doctor, or give --num_gpus=N or --num_cpu_replicas=N')
  return result.num_gpus
