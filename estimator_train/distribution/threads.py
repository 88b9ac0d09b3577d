"""The numbers of threads for graph operations and for functions of the input pipeline."""

import os
from typing import Any

from estimator_train.process import cpu_tuning
from estimator_train.settings import groups


def inter_op_threads(settings: groups.Devices) -> int:
  """Returns the number of operations that may run in parallel; 0: one per core.

  With oneDNN each operation uses all cores, so operations that run in parallel would compete.
  """
  return settings.inter_op_parallelism_threads or int(cpu_tuning.has_onednn())


def set_thread_counts(config: Any, settings: groups.Devices, has_custom_input: bool = False,
                      in_cluster: bool = False) -> None:
  """Sets the numbers of threads in a session's `tf.ConfigProto`.

  Args:
    config: the configuration, which is modified.
    settings: the settings that specify the numbers.
    has_custom_input: whether the input pipeline is an `input_fn` of the user, which has no private
      threads.
    in_cluster: whether the session runs on a task's TensorFlow server, which has its own threads.
  """
  config.intra_op_parallelism_threads = settings.intra_op_parallelism_threads
  num_threads = (settings.inter_op_parallelism_threads if has_custom_input
                 else inter_op_threads(settings))
  config.inter_op_parallelism_threads = num_threads
  if num_threads and not in_cluster:
    # Without its own pool, the session would share the pool of the first session in the process.
    config.session_inter_op_thread_pool.add(num_threads=num_threads)


def num_parallel_calls(settings: groups.Input) -> int:
  """Returns the number of functions of the input pipeline that may run in parallel."""
  return settings.num_parallel_calls or available_cores()


def private_threadpool_size(settings: groups.Input, devices: groups.Devices) -> int:
  """Returns the number of threads that run only functions of the input pipeline.

  0: the threads for graph operations run these functions, too; one per core is enough for both.
  """
  return num_parallel_calls(settings) if inter_op_threads(devices) else 0


def available_cores() -> int:
  """Returns the number of cores that this process may use."""
  return len(os.sched_getaffinity(0))
