"""The devices, strategy and threads of the settings; GPUs are pretended."""

import os

import pytest
import tensorflow.compat.v1 as tf

from estimator_train.data import DataSpec
from estimator_train.data.opening import make_batch_settings
from estimator_train.distribution import devices
from estimator_train.errors import UserError
from estimator_train.settings import Settings
from estimator_train.system import machine

CORES = len(os.sched_getaffinity(0))


@pytest.fixture
def gpus(monkeypatch):
  def pretend(number):
    monkeypatch.setattr(tf.config.experimental, 'list_physical_devices',
                        lambda kind: ['GPU'] * number)

  return pretend


@pytest.mark.parametrize('present, values, names', [
    (0, {}, ['/cpu:0']), (2, {}, ['/gpu:0', '/gpu:1']), (2, {'num_gpus': 1}, ['/gpu:0']),
    (2, {'num_gpus': 0}, ['/cpu:0']), (2, {'num_cpu_replicas': 2}, ['/cpu:0', '/cpu:1']),
    (2, {'distribution_strategy': 'off'}, ['/gpu:0'])])
def test_devices(gpus, present, values, names):
  gpus(present)
  found = devices.find_devices(Settings(**values))
  assert list(found.names) == names and found.num_replicas == len(names)
  suffix = ' (logical)' if names[-1] == '/cpu:1' else ''
  assert found.display_names == tuple(name + suffix for name in names)
  with pytest.raises(UserError, match='--num_gpus=3, and {} available'.format(present)):
    devices.find_devices(Settings(num_gpus=3))


def test_gpus_of_the_ranks_of_horovod(gpus):
  settings = Settings(distribution_strategy='horovod')
  for rank, num_gpus, name, visible in ((1, 2, '/gpu:1', '1'), (5, 1, '/gpu:0', '')):
    gpus(num_gpus)
    found = devices.find_devices(settings, rank)
    assert (found.names, found.display_names) == (('/gpu:0',), (name,))
    assert devices.make_session_config(settings, found).gpu_options.visible_device_list == visible
  gpus(2)
  with pytest.raises(UserError, match='local rank 2 and 2 GPUs: start at most 2 processes'):
    devices.find_devices(settings, 2)


@pytest.mark.parametrize('name', ['nccl', 'hierarchical_copy', 'reduction_to_one_device'])
def test_all_reduce_algorithms(gpus, name):
  gpus(0)
  settings = Settings(all_reduce_alg=name, num_cpu_replicas=2)
  strategy = devices.make_local_strategy(settings, devices.find_devices(settings))
  chosen = strategy.extended._cross_device_ops
  assert type(chosen).__name__.lower().startswith(name.replace('_', ''))


@pytest.mark.parametrize('has_onednn, values, inter_op, private', [
    (False, {}, 0, 0), (False, {'num_parallel_calls': 5}, 0, 0), (True, {}, 1, CORES),
    (True, {'num_parallel_calls': 5}, 1, 5),
    (False, {'inter_op_parallelism_threads': 3, 'num_parallel_calls': 5}, 3, 5)])
def test_numbers_of_threads(monkeypatch, gpus, has_onednn, values, inter_op, private):
  gpus(0)
  monkeypatch.setattr(machine, 'has_onednn', lambda: has_onednn)
  settings = Settings(intra_op_parallelism_threads=7, num_cpu_replicas=2,
                         gpu_memory_growth=False, **values)
  batch = make_batch_settings(DataSpec('x', ('a', 'b'), (2, 2, 1)), settings, False, size=1)
  assert batch.private_threads == private
  assert batch.num_queued_calls == (0 if values.get('num_parallel_calls') else CORES)
  assert devices.num_parallel_calls(settings) == values.get('num_parallel_calls', CORES)
  for uses_server in (False, True):  # Sessions of clusters have their server's threads.
    config = devices.make_session_config(settings, devices.find_devices(settings), uses_server)
    assert config.device_count == {'CPU': 2, 'GPU': 0} and not config.gpu_options.allow_growth
    assert config.intra_op_parallelism_threads == 7
    assert config.inter_op_parallelism_threads == inter_op
    assert [pool.num_threads for pool in config.session_inter_op_thread_pool] == (
        [inter_op] if inter_op and not uses_server else [])
