r"""Starts a cluster on this machine. Each task is one process of the program.

  python -m estimator_train.launcher.local_cluster --local_workers=N [--local_ps=M] \
    [--max_restarts=K] [--local_cores=C] [--local_gpus=G] [--tensorboard] [FLAG...]

Each task runs the program with the same flags and its own TF_CONFIG. The first task is the leader,
which inherits standard output and standard error of this process. The other tasks write their
output to model_dir/logs/. When a task fails, or the leader has finished, this process ends the
other tasks. With --local_cores=C and --local_gpus=G, each task has C cores and G GPUs for itself.
Cores are assigned in the order of their IDs, and GPUs in the order of CUDA_VISIBLE_DEVICES.

With --tensorboard, this process also starts TensorBoard as its child. Without --local_workers, this
process then replaces itself by the program (exec), so the terminal, the signals and the exit code
work as usual. When the run ends for any reason, the kernel kills TensorBoard.
"""

import argparse
import contextlib
import itertools
import os
import re
import signal
import sys
from typing import Iterator, List, NoReturn, Optional, Sequence, Tuple

from estimator_train.distribution.tf_config import Task
from estimator_train.errors import UserError
from estimator_train.launcher.supervisor import (
  Supervisor,
  TaskResources,
  Timeouts,
  print_to_stderr,
)
from estimator_train.run_dir import default_folder, make_folder
from estimator_train.settings import command_line, workloads
from estimator_train.settings.launcher_flags import LAUNCHER_FLAGS
from estimator_train.system import child_process, logs

_PROGRAM_COMMAND = (sys.executable, '-m', 'estimator_train')
# With `-c` instead of `-m`, Python would also import modules from the served folder.
_TENSORBOARD_COMMAND = (sys.executable, '-m', 'estimator_train.launcher.tensorboard_server')
# The argument of the program if the user gives no flags.
_QUICKSTART_ARGUMENT = '--flagfile=' + os.path.join(workloads.FLAGFILES_DIR, 'quickstart.flags')
_COUNT_FLAGS = tuple(flag.name for flag in LAUNCHER_FLAGS if flag.takes_count)
_DEFAULT_TIMEOUTS = Timeouts()


def main(argv: Optional[Sequence[str]] = None, program_command: Sequence[str] = _PROGRAM_COMMAND,
         timeouts: Timeouts = _DEFAULT_TIMEOUTS,
         tensorboard_command: Sequence[str] = _TENSORBOARD_COMMAND) -> int:
  """Runs the cluster, or the program with TensorBoard, and returns the exit code.

  Args:
    argv: without the name of the program; None for the arguments of this process.
    program_command: without flags.
    tensorboard_command: without arguments.
  """
  try:
    logs.prepare_streams()
    flags, program_arguments = _parse_arguments(sys.argv[1:] if argv is None else argv)
    tasks = _make_tasks(flags)
    resources = _assign_resources(tasks, flags.local_cores, flags.local_gpus)
    strategy_arguments = [] if not tasks else ['--distribution_strategy=' + (
        'multi_worker_mirrored' if tasks[-1].type != 'ps' else 'parameter_server')]
    command = [*program_command, *strategy_arguments,
               *(program_arguments or [_QUICKSTART_ARGUMENT])]
    if command_line.wants_help(program_arguments):
      os.execve(command[0], command, child_process.child_environment())
    settings = command_line.parse(command[len(program_command):])
    if not settings.run.trains:
      flag, rule = (('--tensorboard', 'TensorBoard can only be started with training')
                    if flags.tensorboard else ('--local_workers', 'a local cluster can only train'))
      raise UserError(rule, '{} --mode={}'.format(flag, settings.run.mode), 'leave one of them out')
    model_dir = settings.run.model_dir
    if model_dir is None:
      # Chosen once, so that all tasks, also after a restart, use the same folder.
      folder = default_folder.choose_folder(settings)
      print_to_stderr(folder.reason)
      model_dir = folder.path
      command.append('--model_dir=' + model_dir)
    log_dir = os.path.join(model_dir, 'logs')
    make_folder(log_dir)
    if flags.tensorboard:
      _start_tensorboard(tensorboard_command, log_dir)
    if not tasks:
      os.execve(command[0], command, dict(
          os.environ, PYTHONPATH=child_process.child_environment()['PYTHONPATH']))
    with _record_signals() as received_signals:
      return Supervisor(tasks, command, log_dir, received_signals, timeouts,
                        resources).run(flags.max_restarts)
  except UserError as error:
    print_to_stderr('error: {}'.format(error))
    return error.exit_code


def _start_tensorboard(tensorboard_command: Sequence[str], log_dir: str) -> None:
  log_path = os.path.join(log_dir, 'tensorboard.log')
  with open(log_path, 'ab') as log:
    # TensorBoard prints its URL to the standard error of this process. start_process gives it a new
    # session, because Ctrl-C would otherwise end TensorBoard before the run saves a checkpoint.
    child_process.start_process([*tensorboard_command, os.path.dirname(log_dir), log_path],
                                child_process.child_environment(), 2, log)


def _parse_arguments(argv: Sequence[str]) -> Tuple[argparse.Namespace, List[str]]:
  """Returns the flags of the launcher, and the arguments of the program."""
  parser = _RaisingParser(add_help=False, allow_abbrev=False)
  for flag in LAUNCHER_FLAGS:
    names = ('--' + flag.name, '-' + flag.name)
    if flag.takes_count:
      parser.add_argument(*names, type=_parse_count, default=0)
    else:
      parser.add_argument(*names, action='store_true')
  return parser.parse_known_args(list(argv))


def _make_tasks(flags: argparse.Namespace) -> List[Task]:
  """Returns the tasks of the cluster, the leader first; [] to run the program without a cluster."""
  if flags.tensorboard and not any(getattr(flags, name) for name in _COUNT_FLAGS):
    return []
  if not flags.local_workers:
    raise UserError('a local cluster needs a number of workers', '--local_workers is missing or 0',
                    'give --local_workers=N')
  counts = {'chief': 1, 'worker': flags.local_workers - 1, 'ps': flags.local_ps} if (
      flags.local_ps) else {'worker': flags.local_workers}
  return [Task(task_type, index) for task_type, count in counts.items() for index in range(count)]


def _assign_resources(tasks: Sequence[Task], cores_per_task: int,
                      gpus_per_task: int) -> List[TaskResources]:
  """Returns the cores and GPUs of each task. With a count of 0, all tasks share all of them.

  If CUDA_VISIBLE_DEVICES is not set, the machine is assumed to have enough GPUs.

  Raises:
    UserError: there are too few cores or GPUs.
  """
  cores = sorted(os.sched_getaffinity(0)) if cores_per_task else []
  if cores_per_task and len(cores) < cores_per_task * len(tasks):
    raise UserError('there are too few cores', '--local_cores={} for {} tasks on {} cores'.format(
        cores_per_task, len(tasks), len(cores)),
                    'give fewer per task, or leave the flag out to share the cores')
  num_gpus = gpus_per_task * len(tasks)
  visible_devices = os.environ.get('CUDA_VISIBLE_DEVICES', ','.join(map(str, range(num_gpus))))
  # CUDA ignores an invalid entry and all entries after it. To hide all GPUs, users give -1 or ''.
  visible_gpus = list(itertools.takewhile(
      lambda device: device.strip() not in ('', '-1'), visible_devices.split(',')))
  if len(visible_gpus) < num_gpus:
    raise UserError('there are too few GPUs', '--local_gpus={} for {} tasks on {} GPUs '
                    '(CUDA_VISIBLE_DEVICES={})'.format(
                        gpus_per_task, len(tasks), len(visible_gpus), visible_devices),
                    'give fewer per task, or leave the flag out to share the GPUs')
  return [TaskResources(
      tuple(cores[index * cores_per_task:][:cores_per_task]),
      ','.join(visible_gpus[index * gpus_per_task:][:gpus_per_task]) if gpus_per_task else None)
          for index in range(len(tasks))]


class _RaisingParser(argparse.ArgumentParser):
  """Raises a UserError where ArgumentParser would end the process."""

  def error(self, message: str) -> NoReturn:
    raise UserError('the flags cannot be read', message, 'see --help')


def _parse_count(text: str) -> int:
  if not re.match(r'[0-9]{1,3}\Z', text):
    raise argparse.ArgumentTypeError('{}: give a whole number from 0 to 999'.format(text))
  return int(text)


@contextlib.contextmanager
def _record_signals() -> Iterator[List[int]]:
  """Yields a list to which each SIGINT, SIGTERM, SIGHUP and SIGUSR1 is appended unless ignored."""
  received_signals: List[int] = []
  previous_handlers = {
      signum: signal.signal(signum, lambda signum, _: received_signals.append(signum))
      for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
      if signal.getsignal(signum) != signal.SIG_IGN}
  try:
    yield received_signals
  finally:
    for signum, previous_handler in previous_handlers.items():
      signal.signal(signum, previous_handler)


if __name__ == '__main__':
  sys.exit(main())
