"""Serves TensorBoard for one folder until it is killed; `run_train.sh --tensorboard` starts it.

  python -m estimator_train.launcher.tensorboard_server LOGDIR

One line on standard output gives its URL.
"""

import os
import signal
import sys
from typing import Sequence

_NICENESS = 10


def main(argv: Sequence[str]) -> None:
  """Serves the folder on a free port of localhost.

  Args:
    argv: the path of the folder.
  """
  os.nice(_NICENESS)  # So that training keeps its share of the CPU.
  os.environ['CUDA_VISIBLE_DEVICES'] = ''
  try:
    os.chdir(argv[0])  # In a logdir, TensorBoard gives colons and commas a meaning.
    from tensorboard import program  # Here, since the import takes a second.
    board = program.TensorBoard()
    board.configure(logdir='.', host='localhost', port=0)
    url = board.launch()
  except Exception:
    print('TensorBoard was not started: see {}'.format(
        os.path.join(argv[0], 'logs', 'tensorboard.log')), flush=True)
    raise
  print('TensorBoard: {} until the training ends'.format(url), flush=True)
  signal.pause()


if __name__ == '__main__':
  main(sys.argv[1:])
