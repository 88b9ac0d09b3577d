"""Selects the devices and threads of a run, and makes its strategy and session configuration."""

import contextlib
import logging
import re
from typing import Any, Iterator, List, NamedTuple, Optional, Tuple

import tensorflow.compat.v1 as tf

from estimator_train.errors import UserError
from estimator_train.settings.flags import SINGLE_REPLICA_STRATEGIES, DeviceFlags, InputFlags
from estimator_train.system import machine
from estimator_train.tf_patches import environment, strategies

_LOG = logging.getLogger('estimator_train')
_MIN_FLOAT16_CAPABILITY = (7, 0)  # The compute capability of Volta.


class Devices(NamedTuple):
  """The devices of a process, with one replica on each.

  Attributes:
    names: the names in TensorFlow, such as `/gpu:0`.
    display_names: the names in logs and reports. Those of several CPU devices end with `(logical)`.
    gpu_indices: the indices of the GPUs in TensorFlow's list; None if these are all GPUs of the
      list. TensorFlow leaves the other GPUs to other processes.
  """
  names: Tuple[str, ...]
  display_names: Tuple[str, ...]
  gpu_indices: Optional[Tuple[int, ...]] = None

  @property
  def num_replicas(self) -> int:
    return len(self.names)

  @property
  def are_gpus(self) -> bool:
    return self.names[0].startswith('/gpu')

  def first(self) -> 'Devices':
    """Returns the first of the devices."""
    if self.num_replicas == 1:
      return self
    return Devices(self.names[:1], self.display_names[:1], (0,) if self.are_gpus else None)


def find_devices(flags: DeviceFlags, local_rank: int = 0) -> Devices:
  """Finds the devices that the flags request.

  Args:
    local_rank: the index of this process among the processes on this host. With Horovod, it is
      also the index of the GPU; this has not been tested.

  Raises:
    UserError: there are fewer GPUs than requested, or fewer GPUs than processes on this host.
  """
  num_available = len(tf.config.experimental.list_physical_devices('GPU'))
  if flags.num_gpus > num_available:
    raise UserError('--num_gpus exceeds the number of GPUs that TensorFlow can use',
                    '--num_gpus={}, and {} available'.format(flags.num_gpus, num_available),
                    'give --num_gpus={}, or --num_cpu_replicas=N for CPU devices'.format(
                        num_available))
  num_gpus = num_available if flags.num_gpus < 0 else flags.num_gpus
  if flags.distribution_strategy in SINGLE_REPLICA_STRATEGIES:
    num_gpus = min(num_gpus, 1)
  if flags.distribution_strategy == 'horovod' and num_gpus and num_available > 1:
    if local_rank >= num_available:
      raise UserError('a host must have a GPU for each of its processes',
                      'local rank {} and {} GPUs'.format(local_rank, num_available),
                      'start at most {} processes on this host, or give --num_gpus=0'.format(
                          num_available))
    return Devices(('/gpu:0',), ('/gpu:{}'.format(local_rank),), (local_rank,))
  if num_gpus and not flags.num_cpu_replicas:
    names = tuple('/gpu:{}'.format(index) for index in range(num_gpus))
    return Devices(names, names, None if num_gpus == num_available else tuple(range(num_gpus)))
  names = tuple('/cpu:{}'.format(index) for index in range(max(flags.num_cpu_replicas, 1)))
  suffix = ' (logical)' if len(names) > 1 else ''
  return Devices(names, tuple(name + suffix for name in names))


def prepare_devices(flags: DeviceFlags, devices: Devices, trains: bool) -> None:
  """Prepares TensorFlow for the devices. Must be called before the first session.

  The GPU options of the first session apply to the whole process. This function therefore creates
  the GPUs with the options of the run. It also enables XLA on CPUs if requested, and warns if the
  devices do not suit mixed precision.

  Raises:
    UserError: TensorFlow cannot use one of the GPUs.
  """
  environment.set_gpus_of_eager_context(
      devices.gpu_indices if devices.are_gpus else (), flags.gpu_memory_growth)
  descriptions: List[str] = []
  if devices.are_gpus:
    descriptions = strategies.gpu_descriptions(make_session_config(flags, devices))
    if len(descriptions) < devices.num_replicas:
      raise UserError(
          'TensorFlow must be able to use each GPU', '{} of {}'.format(
              len(descriptions), ', '.join(devices.display_names)),
          'give the usable ones in CUDA_VISIBLE_DEVICES; TensorFlow ignores GPUs of a low compute '
          'capability, or with fewer multiprocessors than TF_MIN_GPU_MULTIPROCESSOR_COUNT (by '
          'default 8, or those of the best GPU if it has fewer); TF_CPP_MIN_LOG_LEVEL=0 shows the '
          'reason')
  elif flags.enable_xla:
    environment.enable_xla_on_cpus()
  if flags.dtype == 'mixed' and trains:
    devices_without_float16 = [
        gpu for gpu in descriptions if not _supports_fast_float16(gpu)] if devices.are_gpus else (
            list(devices.display_names))
    if devices_without_float16:
      _LOG.warning('--dtype=mixed: computing in float32, with dynamic loss scaling, since float16 '
                   'requires GPUs of compute capability %d.%d or newer; this run uses %s',
                   *_MIN_FLOAT16_CAPABILITY, ', '.join(devices_without_float16))


def _supports_fast_float16(description: str) -> bool:
  match = re.search(r'compute capability: (\d+)\.(\d+)', description)
  return match is not None and tuple(map(int, match.groups())) >= _MIN_FLOAT16_CAPABILITY


def make_local_strategy(flags: DeviceFlags, devices: Devices,
                        session_config: tf.ConfigProto) -> Optional[tf.distribute.Strategy]:
  """Makes the strategy for one process; returns None if the Estimator needs no strategy.

  Args:
    session_config: the configuration of the run's sessions.
  """
  name = flags.distribution_strategy
  if name == 'off':
    return None
  if name == 'one_device':
    return tf.distribute.OneDeviceStrategy(devices.names[0])
  if name in ('central_storage', 'parameter_server'):
    return strategies.make_central_storage_strategy(devices.names, '/cpu:0')
  assert name in ('mirrored', 'multi_worker_mirrored', 'horovod'), name
  return tf.distribute.MirroredStrategy(
      devices.names, cross_device_ops=_make_cross_device_ops(flags, devices, session_config))


def make_session_config(flags: DeviceFlags, devices: Devices,
                        uses_server: bool = False) -> tf.ConfigProto:
  config = tf.ConfigProto(allow_soft_placement=True)
  set_thread_counts(config, flags, uses_server)
  config.gpu_options.allow_growth = flags.gpu_memory_growth
  config.gpu_options.visible_device_list = ','.join(map(str, devices.gpu_indices or ()))
  if flags.dtype == 'mixed':
    # tf.train.experimental.enable_mixed_precision_graph_rewrite is not used, because it would set
    # this option for all sessions of the process.
    rewrite_options = config.graph_options.rewrite_options
    rewrite_options.auto_mixed_precision = rewrite_options.ON
  if flags.enable_xla:
    config.graph_options.optimizer_options.global_jit_level = tf.OptimizerOptions.ON_1
  if not devices.are_gpus:
    config.device_count['CPU'] = devices.num_replicas
    config.device_count['GPU'] = 0
  return config


def make_cpu_config(**options: Any) -> tf.ConfigProto:
  """Makes the configuration of a session that leaves all GPUs to the training."""
  return tf.ConfigProto(device_count={'GPU': 0}, **options)


@contextlib.contextmanager
def cpu_session() -> Iterator[tf.Session]:
  """Makes a new graph and a session without GPUs the defaults of a `with` block."""
  with tf.Graph().as_default(), tf.Session(config=make_cpu_config()) as session:
    yield session


def set_thread_counts(config: tf.ConfigProto, flags: DeviceFlags,
                      uses_server: bool = False) -> None:
  """Sets the numbers of threads in the configuration of a session.

  Args:
    uses_server: whether the session uses the TensorFlow server of this task, with its threads.
  """
  config.intra_op_parallelism_threads = flags.intra_op_parallelism_threads
  num_threads = _num_inter_op_threads(flags)
  config.inter_op_parallelism_threads = num_threads
  if num_threads and not uses_server:
    # Without a pool of its own, this session would share the pool of the first session of the
    # process, which may have another number of threads.
    config.session_inter_op_thread_pool.add(num_threads=num_threads)


def _num_inter_op_threads(flags: DeviceFlags) -> int:
  """Returns how many operations may run in parallel; 0 for one per core."""
  # With oneDNN, each operation uses all cores, so by default only one operation runs at a time.
  return flags.inter_op_parallelism_threads or int(machine.has_onednn())


def num_parallel_calls(flags: InputFlags) -> int:
  """Returns how many functions of the input pipeline may run in parallel."""
  return flags.num_parallel_calls or machine.available_cores()


def num_queued_calls(flags: InputFlags) -> int:
  """Returns how many images wait in a queue for decoding.

  With a queue, a thread that has decoded an image takes the next one at once, and does not wait
  until the input pipeline starts it. If the user gives `--num_parallel_calls`, no image is queued.
  """
  return 0 if flags.num_parallel_calls else machine.available_cores()


def private_threadpool_size(flags: InputFlags, devices: DeviceFlags) -> int:
  """Returns the number of threads that run only functions of the input pipeline.

  It is 0 if the operations of the graph have one thread per core. These threads then also run the
  functions of the input pipeline.
  """
  return num_parallel_calls(flags) if _num_inter_op_threads(devices) else 0


def _make_cross_device_ops(flags: DeviceFlags, devices: Devices,
                           session_config: tf.ConfigProto) -> tf.distribute.CrossDeviceOps:
  """Makes the all-reduce of the gradients. Without a flag, TensorFlow chooses the algorithm.

  NCCL and hierarchical copy have not been tested, because they require several GPUs.
  """
  if flags.all_reduce_alg == 'nccl':
    return tf.distribute.NcclAllReduce(num_packs=flags.num_packs)
  if flags.all_reduce_alg == 'hierarchical_copy':
    strategies.patch_hierarchical_copy()
    return tf.distribute.HierarchicalCopyAllReduce(num_packs=flags.num_packs)
  if flags.all_reduce_alg == 'reduction_to_one_device' or not devices.are_gpus:
    return tf.distribute.ReductionToOneDevice()
  # `ring` works only between workers, not within one process.
  return strategies.choose_all_reduce(devices.names, session_config)
