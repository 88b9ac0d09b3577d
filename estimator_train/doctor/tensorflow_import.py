"""Imports TensorFlow in a child process, and counts the GPUs that TensorFlow sees."""

import json
import re
import signal
import sys
from typing import NamedTuple, Optional

from estimator_train.doctor import commands
from estimator_train.doctor.check_results import CheckResult, error, ok, warning
from estimator_train.errors import UserError

# An import from a slow network disk can take a minute.
TIMEOUT_SECS = 120.
_SLOW_SECS = 30.

# The child prints a line after each step, so that the output shows which step hung or crashed.
_CHILD_CODE = '''
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
    command_result: the outcome of the child process.
    version: version of TensorFlow; None if the import failed.
    secs: duration of the import in seconds.
    has_cuda: whether the build supports GPUs.
    num_gpus: number of GPUs that TensorFlow sees; None if listing them failed.
  """
  command_result: commands.CommandResult
  version: Optional[str] = None
  secs: float = 0.
  has_cuda: bool = False
  num_gpus: Optional[int] = None


def import_in_child(timeout_secs: float = TIMEOUT_SECS,
                    python: Optional[str] = None) -> ImportResult:
  """Imports TensorFlow in a child process.

  Args:
    timeout_secs: seconds after which the child is killed.
    python: path of the Python interpreter; None: the interpreter of this process.
  """
  result = commands.run_command([python or sys.executable, '-W', 'ignore', '-c', _CHILD_CODE],
                                timeout_secs, {'TF_CPP_MIN_LOG_LEVEL': '0'})
  values = {}
  for line in result.stdout.splitlines():
    if line.startswith('{'):
      values.update(json.loads(line))
  return ImportResult(result, **values)


def count_gpus() -> int:
  """Returns the number of GPUs that TensorFlow sees, without allocating GPU memory in this process.

  Raises:
    UserError: TensorFlow cannot be imported, or cannot list the GPUs.
  """
  imported = import_in_child()
  if imported.num_gpus is None:
    raise UserError('the GPUs cannot be counted', check_import(imported).found,
                    'see --mode=doctor, or give --num_gpus=N or --num_cpu_replicas=N')
  return imported.num_gpus


def check_import(imported: ImportResult) -> CheckResult:
  """Checks that TensorFlow can be imported quickly, and that it can list the GPUs."""
  if imported.version is None:
    return error(
        'import', 'TensorFlow cannot be imported: ' + _failure_reason(imported.command_result),
        _remedy(imported.command_result))
  found = 'TensorFlow {} in {:.1f} s'.format(imported.version, imported.secs)
  if imported.num_gpus is None:
    return error(
        'import', '{}, but it fails to list GPUs: {}'.format(
            found, _failure_reason(imported.command_result)),
        'see the system log (dmesg) for messages of the GPU\'s driver; to train on the CPU, set '
        'CUDA_VISIBLE_DEVICES to an empty value')
  if imported.secs > _SLOW_SECS:
    return warning('import', found,
                   'every run takes this long to start: put the environment on a local disk')
  return ok('import', found)


def _failure_reason(result: commands.CommandResult) -> str:
  """Returns the line of the output that names the exception, or else the general reason.

  The line may not be the last one, because lines with advice may follow.
  """
  raised = re.findall(r'^\w*Error: .*$', result.stderr, re.MULTILINE)
  return raised[-1] if raised and result.exit_code == 1 else result.failure_reason()


def _remedy(result: commands.CommandResult) -> str:
  if result.exit_code is None:
    return 'check whether the disk of the environment is slow, or a GPU\'s driver hangs (dmesg)'
  if result.exit_code == -signal.SIGILL:
    return 'this CPU lacks an instruction that the build uses; see the line `cpu`'
  if 'Descriptors cannot' in result.stderr or 'protobuf' in result.stderr:
    return 'see the line `protobuf`'
  if 'No module named' in result.stderr:
    return './run_train.sh creates an environment; `pip install .` installs into your own one'
  return 'run `{} -c "import tensorflow"` to see the full error'.format(sys.executable)
