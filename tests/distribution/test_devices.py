"""Which devices the settings come to; GPUs are pretended."""

import pytest
import tensorflow.compat.v1 as tf

from estimator_train.distribution import devices
from estimator_train.errors import UserError
from estimator_train.settings import Settings


@pytest.fixture
def gpus(monkeypatch):
  def pretend(number):
    monkeypatch.setattr(tf.config.experimental, 'list_physical_devices',
                        lambda kind: ['GPU'] * number)
  return pretend


def find(**values):
  return devices.find_devices(Settings(model_dir='x', train_steps=1, **values))


@pytest.mark.parametrize('present, values, names', [
    (0, {}, ['/cpu:0']),
    (0, {'num_cpu_replicas': 3}, ['/cpu:0', '/cpu:1', '/cpu:2']),
    (2, {}, ['/gpu:0', '/gpu:1']),
    (2, {'num_gpus': 1}, ['/gpu:0']),
    (2, {'num_gpus': 0}, ['/cpu:0']),
    (2, {'num_cpu_replicas': 2}, ['/cpu:0', '/cpu:1']),
    (2, {'distribution_strategy': 'off'}, ['/gpu:0']),
    (2, {'distribution_strategy': 'one_device', 'num_gpus': 0}, ['/cpu:0']),
])
def test_devices(gpus, present, values, names):
  gpus(present)
  found = find(**values)
  assert list(found.names) == names and found.num_replicas == len(names)


def test_too_few_gpus(gpus):
  gpus(1)
  with pytest.raises(UserError, match='--num_gpus=2, and 1 available'):
    find(num_gpus=2)


def test_cpu_replicas_are_told_from_real_devices(gpus):
  gpus(0)
  assert find(num_cpu_replicas=2).display_names == ('/cpu:0 (logical)', '/cpu:1 (logical)')


def test_session_config(gpus):
  gpus(0)
  settings = Settings(model_dir='x', train_steps=1, num_cpu_replicas=2,
                      intra_op_parallelism_threads=3, gpu_memory_growth=False)
  config = devices.make_session_config(settings, devices.find_devices(settings))
  assert config.device_count['CPU'] == 2 and config.device_count['GPU'] == 0
  assert config.intra_op_parallelism_threads == 3 and not config.gpu_options.allow_growth


@pytest.mark.parametrize('name, kind', [
    ('off', type(None)), ('one_device', tf.distribute.OneDeviceStrategy),
    ('mirrored', tf.distribute.MirroredStrategy),
    # With one worker.
    ('multi_worker_mirrored', tf.distribute.MirroredStrategy),
    ('parameter_server', tf.distribute.experimental.CentralStorageStrategy)])
def test_strategies(gpus, name, kind):
  gpus(0)
  settings = Settings(model_dir='x', train_steps=1, distribution_strategy=name)
  strategy = devices.make_local_strategy(settings, devices.find_devices(settings))
  assert isinstance(strategy, kind)
  if strategy is not None:
    assert strategy.num_replicas_in_sync == 1


@pytest.mark.parametrize('name', ['nccl', 'hierarchical_copy', 'reduction_to_one_device'])
def test_all_reduce_algorithms(gpus, name):
  gpus(0)
  settings = Settings(model_dir='x', train_steps=1, all_reduce_alg=name, num_cpu_replicas=2)
  strategy = devices.make_local_strategy(settings, devices.find_devices(settings))
  chosen = strategy.extended._cross_device_ops  # pylint: disable=protected-access
  assert type(chosen).__name__.lower().startswith(name.replace('_', ''))
