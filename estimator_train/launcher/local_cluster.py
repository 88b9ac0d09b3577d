r"""A cluster on this machine: several tasks of the program, started and stopped together.

  python -m estimator_train.launcher.local_cluster --local_workers=N [--local_ps=M] \
    [--max_restarts=K] [--local_cores=C] [--local_gpus=G] [FLAG...]

Each task is the program with the same flags and a TF_CONFIG of its own. The one that leads has the
outputs of this process; those of the others are in model_dir/logs/. With --local_cores and
--local_gpus each task has so many of its own, in the order of their numbers.
"""

import argparse
import contextlib
import os
import re
import signal
import sys
from typing import Iterator, List, NamedTuple, NoReturn, Optional, Sequence

from estimator_train import flags
from estimator_train.errors import UserError
from estimator_train.files import paths
from estimator_train.launcher.local_tasks import LIMITS, Limits, LocalCluster, Place, Task, say
from estimator_train.process import child_process
from estimator_train.run_dir import run_files

_PROGRAM = (sys.executable, '-m', 'estimator_train')
# What the program is given where nothing is.
QUICKSTART = '--flagfile=' + paths.QUICKSTART
FLAGS = ('local_workers', 'local_ps', 'max_restarts', 'local_cores', 'local_gpus')
_USER_ERROR = 2
_MOST = 999


class _Asked(NamedTuple):
  """The arguments: the tasks, the leader first, what each has of the machine, how often they may be
  started again, and the program's flags."""
  tasks: List[Task]
  places: List[Place]
  max_restarts: int
  flags: List[str]


def main(argv: Optional[Sequence[str]] = None, program: Sequence[str] = _PROGRAM,
         limits: Limits = LIMITS) -> int:
  """Runs the cluster.

  Args:
    argv: the arguments, without the program's name; those of the process when left out.
    program: the command of a task, without its flags.
    limits: how long tasks are waited for.

  Returns:
    The exit code.
  """
  try:
    tasks, places, max_restarts, arguments = _parse(sys.argv[1:] if argv is None else argv)
    strategy = 'multi_worker_mirrored' if tasks[-1].type != 'ps' else 'parameter_server'
    command = list(program) + ['--distribution_strategy=' + strategy] + (
        arguments or [QUICKSTART])
    if flags.wants_help(arguments):
      os.execve(command[0], command, child_process.environment())
    settings = flags.parse(command[len(program):])
    if not settings.trains:
      raise UserError('a cluster only trains', '--local_workers --mode=' + settings.mode,
                      'leave one of them out')
    logs = run_files.RunDir(settings.model_dir).file('logs')
    run_files.make_folder(logs)
    with _signals() as received:
      return LocalCluster(tasks, command, logs, received, limits,
                          places=places).run(max_restarts)
  except UserError as error:
    say('error: {}'.format(error))
    return _USER_ERROR


def own_flags(argv: Sequence[str]) -> List[str]:
  """Returns those of the arguments that are the program's.

  Raises:
    UserError: one of the cluster's is wrong.
  """
  return _parse(argv).flags


def _parse(argv: Sequence[str]) -> _Asked:
  parser = _Parser(add_help=False, allow_abbrev=False)
  for name in FLAGS:
    parser.add_argument('--' + name, '-' + name, default=None if name == 'local_workers' else '0')
  own, rest = parser.parse_known_args(list(argv))
  if own.local_workers is None:
    raise UserError('how many tasks the cluster has is not said', '--local_workers is missing',
                    'give --local_workers=N')
  num_workers = _number('local_workers', own.local_workers, 1)
  num_ps = _number('local_ps', own.local_ps, 0)
  max_restarts = _number('max_restarts', own.max_restarts, 0)
  counts = {'worker': num_workers}
  if num_ps:
    counts = {'chief': 1, 'worker': num_workers - 1, 'ps': num_ps}
  tasks = [Task(kind, index) for kind, count in counts.items() for index in range(count)]
  places = _places(tasks, _number('local_cores', own.local_cores, 0),
                   _number('local_gpus', own.local_gpus, 0))
  return _Asked(tasks, places, max_restarts, rest)


def _places(tasks: Sequence[Task], cores: int, gpus: int) -> List[Place]:
  """Returns what each task has of the machine: so many cores and GPUs of its own; 0: all."""
  ours = sorted(os.sched_getaffinity(0)) if cores else []
  if cores and len(ours) < cores * len(tasks):
    raise UserError('there are not so many cores', '--local_cores={} for {} tasks on {}'.format(
        cores, len(tasks), len(ours)), 'give fewer, or leave it out to share them')
  given = os.environ.get('CUDA_VISIBLE_DEVICES')
  visible = given.split(',') if given else [str(gpu) for gpu in range(gpus * len(tasks))]
  return [Place(tuple(ours[number * cores:][:cores]),
                ','.join(visible[number * gpus:][:gpus]) if gpus else None)
          for number in range(len(tasks))]


class _Parser(argparse.ArgumentParser):

  def error(self, message: str) -> NoReturn:
    raise UserError('the flags cannot be read', message, 'see --help')


def _number(name: str, text: str, least: int) -> int:
  if not re.match(r'[0-9]{1,3}\Z', text) or int(text) < least:
    raise UserError('--{} is no such number'.format(name), '--{}={}'.format(name, text),
                    'give a whole number from {} to {}'.format(least, _MOST))
  return int(text)


@contextlib.contextmanager
def _signals() -> Iterator[List[int]]:
  """Notes these signals as long as it is entered, where they are not ignored."""
  received: List[int] = []
  before = {signum: signal.getsignal(signum)
            for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)}
  noted = [signum for signum, handler in before.items() if handler != signal.SIG_IGN]
  for signum in noted:
    signal.signal(signum, lambda signum, _: received.append(signum))
  try:
    yield received
  finally:
    for signum in noted:
      signal.signal(signum, before[signum])


if __name__ == '__main__':
  sys.exit(main())
