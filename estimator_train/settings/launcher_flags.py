"""The flags with which `./run_train.sh` starts several processes on this machine.

They are not flags of the program: a flagfile and `Settings` do not accept them.
"""

from typing import NamedTuple

TITLE = 'several processes on this machine (flags of ./run_train.sh, not for flagfiles)'


class LauncherFlag(NamedTuple):
  """A flag of the launcher.

  Attributes:
    takes_count: whether the value is a number; otherwise, the flag has no value.
  """
  name: str
  help: str
  takes_count: bool = True


LAUNCHER_FLAGS = (
    LauncherFlag('local_workers', 'number of workers, each of which is one process; they train '
                 'together, and divide --batch_size among them'),
    LauncherFlag('local_ps', 'with --local_workers: number of parameter servers; if it is 0, the '
                 'strategy is multi_worker_mirrored'),
    LauncherFlag('max_restarts', 'with --local_workers: how often all processes are started again '
                 'after one of them has failed'),
    LauncherFlag('local_cores', 'with --local_workers: number of cores that only one process '
                 'uses; 0: all processes share all cores'),
    LauncherFlag('local_gpus', 'with --local_workers: number of GPUs that only one process uses; '
                 '0: all processes share all GPUs'),
    LauncherFlag('tensorboard', 'also start TensorBoard, which ends with the training run',
                 takes_count=False),
)
