"""Serves TensorBoard during a training run, in a child process of the launcher.

  python -m estimator_train.launcher.tensorboard_server FOLDER LOG
"""

import os
import signal
import sys

from estimator_train.system import keras_config

_NICENESS = 10


def serve(folder: str, log_path: str) -> None:
  """Serves TensorBoard for a folder, on a free port of localhost, until this process is killed."""
  os.nice(_NICENESS)  # Gives training priority over TensorBoard.
  os.environ['CUDA_VISIBLE_DEVICES'] = ''
  os.environ.update(keras_config.VARIABLES_TO_IGNORE_JSON)  # TensorBoard imports Keras.
  try:
    # `logdir` is the current folder, because TensorBoard interprets colons and commas in a path.
    os.chdir(folder)
    from tensorboard import program  # This import takes a second, so `os.nice` precedes it.
    tensorboard = program.TensorBoard()
    tensorboard.configure(logdir='.', host='localhost', port=0)
    url = tensorboard.launch()
  except Exception:
    print('TensorBoard was not started: see {}'.format(log_path), flush=True)
    raise
  print('TensorBoard: {} until the training run ends'.format(url), flush=True)
  signal.pause()


if __name__ == '__main__':
  serve(*sys.argv[1:])
