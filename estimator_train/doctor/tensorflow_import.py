"""Whether TensorFlow can be imported, and what it sees: found out by a child process."""

import json
import re
import signal
import sys
from typing import NamedTuple, Optional

from estimator_train.doctor import commands
from estimator_train.doctor.check_results import Finding, error, ok, warning
from estimator_train.errors import UserError

# From a slow network disk an import can take a minute; the first touch of a GPU compiles
# for it where the build has no code for it, which takes longer than anyone will wait.
DEADLINE_SECS = 120.
_SLOW_SECS = 30.

# A line after each step, so that what hangs or crashes can be told.
_CHILD = '''
import json, time
began = time.monotonic()
import tensorflow.compat.v1 as tf
print(json.dumps({'version': tf.__version__, 'secs': time.monotonic() - began,
                  'has_cuda': tf.test.is_built_with_cuda()}), flush=True)
print(json.dumps({'gpus': len(tf.config.experimental.list_physical_devices('GPU'))}), flush=True)
'''


class Imported(NamedTuple):
  """What became of the import.

  Attributes:
    done: how the child ended.
    version: TensorFlow's; None when the import failed.
    secs: how long the import took.
    has_cuda: whether this build has code for GPUs.
    gpus: how many it sees; None when it failed to look.
  """
  done: commands.Done
  version: Optional[str] = None
  secs: float = 0.
  has_cuda: bool = False
  gpus: Optional[int] = None


def look(deadline_secs: float = DEADLINE_SECS, python: Optional[str] = None) -> Imported:
  """Imports TensorFlow in a child process."""
  done = commands.run([python or sys.executable, '-W', 'ignore', '-c', _CHILD], deadline_secs,
                      {'TF_CPP_MIN_LOG_LEVEL': '0'})
  told = {}
  for line in done.out.splitlines():
    if line.startswith('{'):
      told.update(json.loads(line))
  return Imported(done, **told)


def count_gpus() -> int:
  """Returns how many GPUs TensorFlow sees, while this process keeps no memory of any.

  Raises:
    UserError: it could not be asked.
  """
  imported = look()
  if imported.gpus is None:
    raise UserError('the GPUs cannot be counted', check(imported).found,
                    'see --mode=doctor, or give --num_gpus=N or --num_cpu_replicas=N')
  return imported.gpus


def check(imported: Imported) -> Finding:
  """Says whether the import works."""
  if imported.version is None:
    return error('import', 'TensorFlow cannot be imported: ' + _reason(imported.done),
                 _remedy(imported.done))
  found = 'TensorFlow {} in {:.1f} s'.format(imported.version, imported.secs)
  if imported.gpus is None:
    return error('import', '{}, but it fails to look for GPUs: {}'.format(
        found, _reason(imported.done)), 'see the system log (dmesg) for the GPU\'s driver; '
                 'CUDA_VISIBLE_DEVICES= (empty) trains on the CPU')
  if imported.secs > _SLOW_SECS:
    return warning('import', found, 'each start takes as long: put the environment on a local disk')
  return ok('import', found)


def _reason(done: commands.Done) -> str:
  """Returns the exception's line: some have more lines, with advice, after it."""
  raised = re.findall(r'^\w*Error: .*$', done.err, re.MULTILINE)
  return raised[-1] if raised and done.code == 1 else done.reason()


def _remedy(done: commands.Done) -> str:
  if done.code is None:
    return 'see whether the disk of the environment is slow, or a GPU\'s driver hangs (dmesg)'
  if done.code == -signal.SIGILL:
    return 'this CPU lacks an instruction that the build uses; see the line `cpu`'
  if 'Descriptors cannot' in done.err or 'protobuf' in done.err:
    return 'see the line `protobuf`'
  if 'No module named' in done.err:
    return './run_train.sh sets an environment up, `pip install .` installs into yours'
  return 'run `{} -c "import tensorflow"` to see all of it'.format(sys.executable)
