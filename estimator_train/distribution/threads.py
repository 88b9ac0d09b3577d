"""Chooses the numbers of threads for graph operations and for the input pipeline."""

import os
from typing import Any

from estimator_train.settings import groups
from estimator_train.system import machine


def inter_op_threads(settings: groups.Devices) -> int:
  """Returns the number of operations that may run in parallel; 0: one per core.

  With oneDNN, each operation uses all cores, so by default only one operation runs at a time.
  """
  return settings.inter_op_parallelism_threads or int(machine.has_onednn())


def set_thread_counts(config: Any, settings: groups.Devices, in_cluster: bool = False) -> None:
  """Sets the numbers of threads in a session's `tf.ConfigProto`.

  Args:
    config: the configuration, which is modified.
    settings: the settings that specify the numbers.
    in_cluster: whether the session uses the TensorFlow server of this task, and its threads.
  """
  config.intra_op_parallelism_threads = settings.intra_op_parallelism_threads
  num_threads = inter_op_threads(settings)
  config.inter_op_parallelism_threads = num_threads
  if num_threads and not in_cluster:
    # Without its own pool, this session would share the thread pool of the first session in the
    # process, which may have another number of threads.
    config.session_inter_op_thread_pool.add(num_threads=num_threads)


def num_parallel_calls(settings: groups.Input) -> int:
  """Returns the number of functions of the input pipeline that may run in parallel."""
  return settings.num_parallel_calls or available_cores()


def num_queued_calls(settings: groups.Input) -> int:
  """Returns the number of images that wait for a thread, besides those that are being decoded.

  By default, one per core: a thread that has decoded an image then starts the next one at once,
  instead of waiting until the input pipeline has been woken to start it. The threads are as many as
  without them, and a number that the user gives is not exceeded.
  """
  return 0 if settings.num_parallel_calls else available_cores()


def private_threadpool_size(settings: groups.Input, devices: groups.Devices) -> int:
  """Returns the number of threads that run only functions of the input pipeline.

  Returns 0 if graph operations have one thread per core, which then runs these functions, too.
  """
  return num_parallel_calls(settings) if inter_op_threads(devices) else 0


def available_cores() -> int:
  """Returns the number of cores that this process may use."""
  return len(os.sched_getaffinity(0))
