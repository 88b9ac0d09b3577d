"""Serves TensorBoard for one folder until this process is killed.

  python -m estimator_train.launcher.tensorboard_server LOGDIR

Prints one line with the URL to standard output. The module with_tensorboard starts this process.
"""

import os
import signal
import sys
from typing import Sequence

_NICENESS = 10
_USER_ERROR_EXIT_CODE = 2


def main(argv: Sequence[str]) -> None:
  """Serves the folder on a free port of localhost.

  Args:
    argv: one argument, the path of the folder.
  """
  if not argv:
    print('error: a folder is required: no argument was given: give the path of a model_dir',
          file=sys.stderr)
    sys.exit(_USER_ERROR_EXIT_CODE)
  os.nice(_NICENESS)  # Gives training priority over TensorBoard.
  os.environ['CUDA_VISIBLE_DEVICES'] = ''
  try:
    # TensorBoard would interpret colons and commas in a path, so `logdir` is the current folder.
    os.chdir(argv[0])
    from tensorboard import program  # This import takes a second, so `os.nice` precedes it.
    tensorboard = program.TensorBoard()
    tensorboard.configure(logdir='.', host='localhost', port=0)
    url = tensorboard.launch()
  except Exception:
    print('TensorBoard was not started: see {}'.format(
        os.path.join(argv[0], 'logs', 'tensorboard.log')), flush=True)
    raise
  print('TensorBoard: {} until the training run ends'.format(url), flush=True)
  signal.pause()


if __name__ == '__main__':
  main(sys.argv[1:])
