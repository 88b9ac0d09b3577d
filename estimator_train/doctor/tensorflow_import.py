"""Imports TensorFlow in a child process, and lists the GPUs that it sees."""

import json
import re
import signal
import sys
from typing import NamedTuple, Optional

from estimator_train.doctor import commands
from estimator_train.doctor.check_results import CheckResult, error, ok, warning
from estimator_train.errors import UserError

# From a slow network disk an import can take a minute. On a GPU for which the build has no code,
# the first use compiles all kernels, which takes longer than this.
DEADLINE_SECS = 120.
_SLOW_SECS = 30.

# It prints a line after each step, which shows the step that hangs or crashes.
_CHILD = '''
import json, time
began = time.monotonic()
import tensorflow.compat.v1 as tf
print(json.dumps({'version': tf.__version__, 'secs': time.monotonic() - began,
                  'has_cuda': tf.test.is_built_with_cuda()}), flush=True)
print(json.dumps({'gpus': len(tf.config.experimental.list_physical_devices('GPU'))}), flush=True)
'''


class ImportResult(NamedTuple):
  """The outcome of the import.

  Attributes:
    command: the outcome of the child process.
    version: version of TensorFlow; None if the import failed.
    secs: duration of the import in seconds.
    has_cuda: whether the build supports GPUs.
    gpus: number of GPUs that it sees; None if listing them failed.
  """
  command: commands.CommandResult
  version: Optional[str] = None
  secs: float = 0.
  has_cuda: bool = False
  gpus: Optional[int] = None


def import_in_child(deadline_secs: float = DEADLINE_SECS,
                    python: Optional[str] = None) -> ImportResult:
  """Imports TensorFlow in a child process.

  Args:
    deadline_secs: seconds after which the child is killed.
    python: path of the interpreter; None: that of this process.
  """
  result = commands.run_command([python or sys.executable, '-W', 'ignore', '-c', _CHILD],
                                deadline_secs, {'TF_CPP_MIN_LOG_LEVEL': '0'})
  values = {}
  for line in result.out.splitlines():
    if line.startswith('{'):
      values.update(json.loads(line))
  return ImportResult(result, **values)


def count_gpus() -> int:
  """Returns the number of GPUs that TensorFlow sees, without allocating GPU memory in this process.

  Raises:
    UserError: TensorFlow cannot be imported, or cannot list the GPUs.
  """
  imported = import_in_child()
  if imported.gpus is None:
    raise UserError('the GPUs cannot be counted', check_import(imported).found,
                    'see --mode=doctor, or give --num_gpus=N or --num_cpu_replicas=N')
  return imported.gpus


def check_import(imported: ImportResult) -> CheckResult:
  """Checks that the import works."""
  if imported.version is None:
    return error('import', 'TensorFlow cannot be imported: ' + _failure_reason(imported.command),
                 _remedy(imported.command))
  found = 'TensorFlow {} in {:.1f} s'.format(imported.version, imported.secs)
  if imported.gpus is None:
    return error('import', '{}, but it fails to list GPUs: {}'.format(
        found, _failure_reason(imported.command)), 'see the system log (dmesg) for messages of '
                 'the GPU\'s driver; CUDA_VISIBLE_DEVICES= (empty) trains on the CPU')
  if imported.secs > _SLOW_SECS:
    return warning('import', found,
                   'every start takes this long: put the environment on a local disk')
  return ok('import', found)


def _failure_reason(command: commands.CommandResult) -> str:
  """Returns the line of the exception, which lines with advice may follow."""
  raised = re.findall(r'^\w*Error: .*$', command.err, re.MULTILINE)
  return raised[-1] if raised and command.code == 1 else command.failure_reason()


def _remedy(command: commands.CommandResult) -> str:
  if command.code is None:
    return 'check whether the disk of the environment is slow, or a GPU\'s driver hangs (dmesg)'
  if command.code == -signal.SIGILL:
    return 'this CPU lacks an instruction that the build uses; see the line `cpu`'
  if 'Descriptors cannot' in command.err or 'protobuf' in command.err:
    return 'see the line `protobuf`'
  if 'No module named' in command.err:
    return './run_train.sh creates an environment, `pip install .` installs into yours'
  return 'run `{} -c "import tensorflow"` to see the full error'.format(sys.executable)
