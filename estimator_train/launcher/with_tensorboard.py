"""run_train.sh --tensorboard: TensorBoard beside the training.

  python -m estimator_train.launcher.with_tensorboard --tensorboard [FLAG...]

TensorBoard is a child of this process, which then becomes the program itself, or the launcher of a
local cluster. So the training has its terminal, signals and exit code as ever, and however it ends,
the kernel ends TensorBoard with it.
"""

import os
import re
import subprocess
import sys
from typing import List, NoReturn, Optional, Sequence

from estimator_train import flags
from estimator_train.errors import UserError
from estimator_train.launcher import local_cluster
from estimator_train.launcher.local_tasks import say
from estimator_train.process import child_process
from estimator_train.run_dir import run_files

LOG = 'tensorboard.log'
_SERVER = (sys.executable, '-m', 'estimator_train.launcher.tensorboard_server')
_PROGRAM = (sys.executable, '-m')
_USER_ERROR = 2


def main(argv: Optional[Sequence[str]] = None, program: Sequence[str] = _PROGRAM,
         server: Sequence[str] = _SERVER) -> NoReturn:
  """Starts TensorBoard, and goes on as the training.

  Args:
    argv: the arguments, without the program's name; those of the process when left out.
    program: the command that runs a module, without the module.
    server: the command that serves a folder, without the folder.
  """
  arguments = without_tensorboard(sys.argv[1:] if argv is None else argv)
  module = 'estimator_train'
  if any(re.match('--?({})(=|$)'.format('|'.join(local_cluster.FLAGS)), argument)
         for argument in arguments):
    module = 'estimator_train.launcher.local_cluster'
  try:
    if not flags.wants_help(arguments):
      of_program = arguments if module == 'estimator_train' else local_cluster.own_flags(arguments)
      settings = flags.parse(of_program or [local_cluster.QUICKSTART])
      if not settings.trains:
        raise UserError('TensorBoard is started beside a training',
                        '--tensorboard --mode=' + settings.mode, 'leave one of them out')
      _start(server, run_files.RunDir(settings.model_dir).path)
  except UserError as error:
    say('error: {}'.format(error))
    sys.exit(_USER_ERROR)
  command = [*program, module, *(arguments or [local_cluster.QUICKSTART])]
  os.execve(command[0], command,
            dict(os.environ, PYTHONPATH=child_process.environment()['PYTHONPATH']))


def without_tensorboard(argv: Sequence[str]) -> List[str]:
  """Returns the arguments that are not this launcher's own."""
  return [argument for argument in argv if argument.lstrip('-') != 'tensorboard']


def _start(server: Sequence[str], model_dir: str) -> None:
  logs = os.path.join(model_dir, 'logs')
  run_files.make_folder(logs)
  with open(os.path.join(logs, LOG), 'ab') as log:
    subprocess.Popen(
        list(server) + [model_dir], env=child_process.environment(), stdin=subprocess.DEVNULL,
        stdout=sys.__stderr__.fileno(), stderr=log,
        # Ctrl-C asks the training to finish its step, which is to be seen still.
        start_new_session=True,
        preexec_fn=child_process.make_settle_in())  # noqa: PLW1509 (it takes no lock)


if __name__ == '__main__':
  main()
