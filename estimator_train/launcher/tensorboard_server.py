"""TensorBoard for one folder, until it is killed: what run_train.sh --tensorboard starts.

  python -m estimator_train.launcher.tensorboard_server LOGDIR

One line on standard output says where it is.
"""

import os
import signal
import sys
from typing import Sequence

_NICENESS = 10


def main(argv: Sequence[str]) -> None:
  """Serves the folder to this machine, on a port that is free.

  Args:
    argv: the folder.
  """
  os.nice(_NICENESS)  # The training comes first.
  os.environ['CUDA_VISIBLE_DEVICES'] = ''
  try:
    os.chdir(argv[0])  # TensorBoard would read a colon or a comma in the path as more than a name.
    from tensorboard import program  # It takes a second.
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
