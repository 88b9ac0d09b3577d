"""The devices of a run, its distribution strategy, and the configuration of its sessions."""

import logging
import re
from typing import NamedTuple, Optional, Tuple

import tensorflow.compat.v1 as tf

from estimator_train.distribution import threads
from estimator_train.errors import UserError
from estimator_train.settings import groups
from estimator_train.settings.choices import SINGLE_REPLICA_STRATEGIES
from estimator_train.tf_patches import (
  central_storage,
  devices as tensorflow_devices,
  xla,
)

_LOG = logging.getLogger('estimator_train')
_FAST_FLOAT16 = (7, 0)  # Volta.
_COMMUNICATION = {None: 'AUTO', 'nccl': 'NCCL', 'ring': 'RING'}


class Devices(NamedTuple):
  """The devices of a process, with one replica on each.

  Attributes:
    names: their names in TensorFlow, such as `/gpu:0`.
    labels: their names in reports, where logical CPU devices are marked as such.
  """
  names: Tuple[str, ...]
  labels: Tuple[str, ...]

  @property
  def num_replicas(self) -> int:
    return len(self.names)


def find_devices(settings: groups.Devices) -> Devices:
  """Finds the devices that the settings request.

  Raises:
    UserError: there are fewer GPUs than requested.
  """
  gpus = len(tf.config.experimental.list_physical_devices('GPU'))
  if settings.num_gpus > gpus:
    raise UserError('--num_gpus exceeds the GPUs that TensorFlow can use',
                    '--num_gpus={}, and {} available'.format(settings.num_gpus, gpus),
                    'give --num_gpus={}, or --num_cpu_replicas=N for CPU devices'.format(gpus))
  wanted = gpus if settings.num_gpus < 0 else settings.num_gpus
  if settings.distribution_strategy in SINGLE_REPLICA_STRATEGIES:
    wanted = min(wanted, 1)
  if wanted and not settings.num_cpu_replicas:
    names = tuple('/gpu:{}'.format(index) for index in range(wanted))
    return Devices(names, names)
  replicas = max(settings.num_cpu_replicas, 1)
  names = tuple('/cpu:{}'.format(index) for index in range(replicas))
  if replicas == 1:
    return Devices(names, names)
  return Devices(names, tuple(name + ' (logical)' for name in names))


def prepare_devices(settings: groups.Devices, devices: Devices, trains: bool) -> None:
  """Enables XLA on CPUs if requested, and warns of mixed precision without fast float16."""
  on_cpu = devices.names[0].startswith('/cpu')
  if settings.enable_xla and on_cpu:
    xla.compile_for_cpus()
  if settings.dtype == 'mixed' and trains:
    without = list(devices.labels) if on_cpu else [
        gpu for gpu in tensorflow_devices.gpu_descriptions(
            make_session_config(settings, devices))
        if not _has_fast_float16(gpu)]
    if without:
      _LOG.warning('--dtype=mixed: computing in float32, with dynamic loss scaling, since float16 '
                   'requires GPUs of compute capability %d.%d or newer, unlike %s',
                   *_FAST_FLOAT16, ', '.join(without))


def _has_fast_float16(description: str) -> bool:
  """Whether TensorFlow uses float16 on the GPU with this description."""
  match = re.search(r'compute capability: (\d+)\.(\d+)', description)
  return match is not None and tuple(map(int, match.groups())) >= _FAST_FLOAT16


def make_local_strategy(settings: groups.Devices,
                        devices: Devices) -> Optional[tf.distribute.Strategy]:
  """Makes the strategy of a run in a single process; None for the Estimator's default on one
  device.

  Raises:
    ValueError: the strategy, or its all-reduce algorithm, is not implemented.
  """
  name = settings.distribution_strategy
  if name == 'off':
    return None
  if name == 'one_device':
    return tf.distribute.OneDeviceStrategy(devices.names[0])
  if name in ('central_storage', 'parameter_server'):
    return central_storage.make_strategy(devices.names, '/cpu:0')
  if name in ('mirrored', 'multi_worker_mirrored'):
    return tf.distribute.MirroredStrategy(
        devices.names, cross_device_ops=_cross_device_ops(settings))
  raise ValueError('no strategy is implemented for {!r}'.format(name))


def make_session_config(settings: groups.Devices, devices: Devices,
                        has_foreign_input: bool = False,
                        in_cluster: bool = False) -> tf.ConfigProto:
  """Makes the configuration of the run's sessions; see `threads.set_thread_counts`."""
  config = tf.ConfigProto(allow_soft_placement=True)
  threads.set_thread_counts(config, settings, has_foreign_input, in_cluster)
  config.gpu_options.allow_growth = settings.gpu_memory_growth
  if settings.dtype == 'mixed':
    # As tf.train.experimental.enable_mixed_precision_graph_rewrite does for the whole process.
    rewrite_options = config.graph_options.rewrite_options
    rewrite_options.auto_mixed_precision = rewrite_options.ON
  if settings.enable_xla:
    config.graph_options.optimizer_options.global_jit_level = tf.OptimizerOptions.ON_1
  if devices.names[0].startswith('/cpu'):
    config.device_count['CPU'] = devices.num_replicas
    config.device_count['GPU'] = 0
  return config


def _cross_device_ops(settings: groups.Devices) -> Optional[tf.distribute.CrossDeviceOps]:
  """Returns the all-reduce of the gradients; None leaves the choice to TensorFlow.

  NCCL and hierarchical copy need several GPUs, on which they have not been tested.
  """
  if settings.all_reduce_alg == 'nccl':
    return tf.distribute.NcclAllReduce(num_packs=settings.num_packs)
  if settings.all_reduce_alg == 'hierarchical_copy':
    return tf.distribute.HierarchicalCopyAllReduce(num_packs=settings.num_packs)
  if settings.all_reduce_alg == 'reduction_to_one_device':
    return tf.distribute.ReductionToOneDevice()
  if settings.all_reduce_alg in (None, 'ring'):  # `ring` is for several workers.
    return None
  raise _no_algorithm(settings)


def collective_communication(settings: groups.Devices) -> str:
  """Returns the communication method of the all-reduce over several workers."""
  if settings.all_reduce_alg not in _COMMUNICATION:
    raise _no_algorithm(settings)
  return _COMMUNICATION[settings.all_reduce_alg]


def _no_algorithm(settings: groups.Devices) -> ValueError:
  return ValueError('no all-reduce algorithm is implemented for {!r} with {}'.format(
      settings.all_reduce_alg, settings.distribution_strategy))
