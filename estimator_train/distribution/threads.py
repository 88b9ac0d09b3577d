"""The numbers of threads that run operations of graphs and functions of the input pipeline."""

import os
from typing import Any

from estimator_train.process import cpu_tuning
from estimator_train.settings import groups


def inter_op_threads(settings: groups.Devices) -> int:
  """Returns the number of operations that may run in parallel; 0: one per core.

  With oneDNN each operation runs on all cores, so that parallel ones would compete for them.
  """
  return settings.inter_op_parallelism_threads or int(cpu_tuning.has_onednn())


def set_thread_counts(config: Any, settings: groups.Devices, has_foreign_input: bool = False,
                      in_cluster: bool = False) -> None:
  """Sets the numbers of threads in a session's `tf.ConfigProto`.

  Args:
    config: the configuration, which is modified.
    settings: the flags with the numbers.
    has_foreign_input: whether the input pipeline is not that of this package, and so has no threads
      of its own.
    in_cluster: whether the session is of a cluster, whose servers have their own threads.
  """
  config.intra_op_parallelism_threads = settings.intra_op_parallelism_threads
  num_threads = (settings.inter_op_parallelism_threads if has_foreign_input
                 else inter_op_threads(settings))
  config.inter_op_parallelism_threads = num_threads
  if num_threads and not in_cluster:
    # Without its own pool the session would share that of the process's first session.
    config.session_inter_op_thread_pool.add(num_threads=num_threads)


def num_parallel_calls(settings: groups.Input) -> int:
  """Returns the number of functions of the input pipeline that may run in parallel."""
  return settings.num_parallel_calls or available_cores()


def private_input_threads(settings: groups.Input, devices: groups.Devices) -> int:
  """Returns the number of threads that run functions of the input pipeline only.

  0: the threads of operations run them, too, which is enough unless their number is limited.
  """
  return num_parallel_calls(settings) if inter_op_threads(devices) else 0


def available_cores() -> int:
  """Returns the number of cores that this process may use."""
  return len(os.sched_getaffinity(0))
