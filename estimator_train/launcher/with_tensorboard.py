"""Starts TensorBoard and the training run, for `run_train.sh --tensorboard`.

  python -m estimator_train.launcher.with_tensorboard --tensorboard [FLAG...]
  python -m estimator_train.launcher.with_tensorboard --serve FOLDER    (what it starts)

This process starts TensorBoard as its child, and then replaces itself with the program or with the
launcher of a local cluster. The run therefore has the usual terminal, signals and exit code. When
the run ends, for whatever reason, the kernel kills TensorBoard.
"""

import os
import re
import signal
import subprocess
import sys
from typing import NoReturn, Optional, Sequence

from estimator_train.errors import UserError
from estimator_train.launcher import local_cluster
from estimator_train.launcher.supervisor import print_to_stderr
from estimator_train.run_dir import RunDir, make_folder
from estimator_train.settings import command_line
from estimator_train.system import child_process, logs

LOG_NAME = 'tensorboard.log'
# The command that serves the folder whose path follows. With `-c` instead of `-m`, Python would
# also import modules from that folder.
_SERVE = '--serve'
_SERVER_COMMAND = (sys.executable, '-m', 'estimator_train.launcher.with_tensorboard', _SERVE)
_MODULE_COMMAND = (sys.executable, '-m')
_USER_ERROR_EXIT_CODE = 2
_NICENESS = 10


def main(argv: Optional[Sequence[str]] = None, module_command: Sequence[str] = _MODULE_COMMAND,
         server: Sequence[str] = _SERVER_COMMAND) -> NoReturn:
  """Starts TensorBoard, and replaces this process with the training run.

  Args:
    argv: the arguments, without the program's name; by default those of this process.
    module_command: the command that runs a module, without the name of the module.
    server: the command that serves a folder, without the path of the folder.
  """
  arguments = [argument for argument in (sys.argv[1:] if argv is None else argv)
               if argument not in ('--tensorboard', '-tensorboard')]
  module = 'estimator_train'
  if any(re.match('--?({})(=|$)'.format('|'.join(local_cluster.LAUNCHER_FLAGS)), argument)
         for argument in arguments):
    module = 'estimator_train.launcher.local_cluster'
  try:
    logs.prepare_streams()
    if not command_line.wants_help(arguments):
      program_arguments = (arguments if module == 'estimator_train'
                           else local_cluster.remove_launcher_flags(arguments))
      settings = command_line.parse(program_arguments or [local_cluster.QUICKSTART_ARGUMENT])
      if not settings.run.trains:
        raise UserError('TensorBoard can only be started with training',
                        '--tensorboard --mode=' + settings.run.mode, 'leave one of them out')
      _start_tensorboard(server, RunDir(settings.run.model_dir).path)
  except UserError as error:
    print_to_stderr('error: {}'.format(error))
    sys.exit(_USER_ERROR_EXIT_CODE)
  command = [*module_command, module, *(arguments or [local_cluster.QUICKSTART_ARGUMENT])]
  os.execve(command[0], command,
            dict(os.environ, PYTHONPATH=child_process.child_environment()['PYTHONPATH']))


def _start_tensorboard(server: Sequence[str], model_dir: str) -> None:
  """Starts TensorBoard as a child process; see `main` for `server`."""
  log_dir = os.path.join(model_dir, 'logs')
  make_folder(log_dir)
  with open(os.path.join(log_dir, LOG_NAME), 'ab') as log:
    subprocess.Popen(
        list(server) + [model_dir], env=child_process.child_environment(), stdin=subprocess.DEVNULL,
        stdout=2, stderr=log,  # The URL goes to the standard error of this process.
        # Without a new session, Ctrl-C would end TensorBoard before the run saves a checkpoint.
        start_new_session=True,
        preexec_fn=child_process.make_preexec_fn())  # noqa: PLW1509 (preexec_fn takes no lock)


def serve(folder: str) -> None:
  """Serves TensorBoard for a folder, on a free port of localhost, until this process is killed.

  Prints one line with the URL to standard output.
  """
  os.nice(_NICENESS)  # Gives training priority over TensorBoard.
  os.environ['CUDA_VISIBLE_DEVICES'] = ''
  try:
    # TensorBoard would interpret colons and commas in a path, so `logdir` is the current folder.
    os.chdir(folder)
    from tensorboard import program  # This import takes a second, so `os.nice` precedes it.
    tensorboard = program.TensorBoard()
    tensorboard.configure(logdir='.', host='localhost', port=0)
    url = tensorboard.launch()
  except Exception:
    print('TensorBoard was not started: see {}'.format(os.path.join(folder, 'logs', LOG_NAME)),
          flush=True)
    raise
  print('TensorBoard: {} until the training run ends'.format(url), flush=True)
  signal.pause()


if __name__ == '__main__':
  if sys.argv[1:2] == [_SERVE]:
    serve(sys.argv[2])
  else:
    main()
