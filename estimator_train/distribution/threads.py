"""How many threads run the operations of graphs, and those of the input."""

import os
from typing import Any

from estimator_train.process import cpu_tuning
from estimator_train.settings import groups


def inter_op(settings: groups.Devices) -> int:
  """Returns how many operations may run at once; 0: as many as cores, which TensorFlow counts.

  With oneDNN each runs on all cores, and a second one at the same time takes them from it.
  """
  return settings.inter_op_parallelism_threads or int(cpu_tuning.has_onednn())


def set_up(config: Any, settings: groups.Devices, others_input: bool = False,
           in_cluster: bool = False) -> None:
  """Sets the threads of operations in a session's `tf.ConfigProto`.

  Args:
    config: is changed.
    settings: say how many.
    others_input: whether the session's input is not this package's, and has no threads of its own.
    in_cluster: whether the session is of a cluster, whose servers have their own threads.
  """
  config.intra_op_parallelism_threads = settings.intra_op_parallelism_threads
  at_once = settings.inter_op_parallelism_threads if others_input else inter_op(settings)
  config.inter_op_parallelism_threads = at_once
  if at_once and not in_cluster:
    # Or it would share those of the process's first session, with its number.
    config.session_inter_op_thread_pool.add(num_threads=at_once)


def num_parallel_calls(settings: groups.Input) -> int:
  """Returns how many functions of the input may run at once."""
  return settings.num_parallel_calls or available_cores()


def private_to_input(settings: groups.Input, devices: groups.Devices) -> int:
  """Returns how many threads run the input's functions and nothing else.

  0: the operations' run them as well. Those that are fewer than cores would be too few.
  """
  return num_parallel_calls(settings) if inter_op(devices) else 0


def available_cores() -> int:
  """Returns the number of cores that this process may use."""
  return len(os.sched_getaffinity(0))
