"""The devices, strategy and threads of the settings; GPUs are pretended."""

import os
import types

import pytest
import tensorflow.compat.v1 as tf

from estimator_train.data import DataSpec
from estimator_train.data.opening import make_batch_settings
from estimator_train.distribution import devices
from estimator_train.errors import UserError
from estimator_train.settings import Settings
from estimator_train.system import machine
from estimator_train.tf_patches import strategies

CORES = len(os.sched_getaffinity(0))


@pytest.fixture
def gpus(monkeypatch):
  def pretend(number, num_usable=None):
    """Makes TensorFlow list GPUs. Returns what they are configured for in the eager context."""
    names = ['GPU {}'.format(index) for index in range(number)]
    context = {'growth': set(), 'visible': names}
    usable = [types.SimpleNamespace(device_type='GPU', name='/device:GPU:{}'.format(index),
                                    physical_device_desc='compute capability: 7.0')
              for index in range(number if num_usable is None else num_usable)]
    for name, function in {
        'list_physical_devices': lambda kind: names,
        'set_memory_growth': lambda gpu, enable: context['growth'].add((gpu, enable)),
        'set_visible_devices': lambda devices, kind: context.update(visible=devices)}.items():
      monkeypatch.setattr(tf.config.experimental, name, function)
    monkeypatch.setattr(strategies.device_lib, 'list_local_devices',
                        lambda session_config: context.update(config=session_config) or usable)
    return context

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
  for rank, num_gpus, name, visible in ((0, 2, '/gpu:0', '0'), (1, 2, '/gpu:1', '1'),
                                        (5, 1, '/gpu:0', '')):
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
  strategy = devices.make_local_strategy(settings, devices.find_devices(settings), tf.ConfigProto())
  chosen = strategy.extended._cross_device_ops
  assert type(chosen).__name__.lower().startswith(name.replace('_', ''))


@pytest.mark.parametrize('number, chosen', [
    (0, tf.distribute.ReductionToOneDevice), (2, tf.distribute.NcclAllReduce)])
def test_all_reduce_is_chosen_with_the_options_of_the_run(gpus, number, chosen):
  """TensorFlow itself would create the GPUs with default options, which use all memory."""
  context = gpus(number)
  settings = Settings(num_cpu_replicas=0 if number else 2)
  found = devices.find_devices(settings)
  config = devices.make_session_config(settings, found)
  strategy = devices.make_local_strategy(settings, found, config)
  assert isinstance(strategy.extended._cross_device_ops, chosen)
  assert context.get('config') is (config if number else None)


@pytest.mark.parametrize('number, values, visible', [
    (0, {}, []), (2, {}, ['GPU 0', 'GPU 1']), (2, {'num_gpus': 1}, ['GPU 0']),
    (2, {'num_gpus': 0}, []), (2, {'gpu_memory_growth': False}, ['GPU 0', 'GPU 1']),
    (4, {'num_gpus': 2}, ['GPU 0', 'GPU 1'])])
def test_eager_context_and_first_session_use_the_gpus_of_the_run(gpus, number, values, visible):
  """The GPU options of the first one apply to the whole process."""
  context = gpus(number, num_usable=len(visible))
  settings = Settings(**values)
  found = devices.find_devices(settings)
  devices.prepare_devices(settings.devices, found, True)
  assert context['visible'] == visible
  growth = values.get('gpu_memory_growth', True)
  assert context['growth'] == {('GPU {}'.format(index), growth) for index in range(number)}
  if visible:
    assert context['config'].gpu_options.allow_growth == growth
    assert context['config'].gpu_options.visible_device_list == (
        '' if len(visible) == number else ','.join(str(index) for index in range(len(visible))))
  assert devices.make_session_config(settings, found.first()).gpu_options.visible_device_list == (
      '0' if len(visible) > 1 else ','.join('0' for _ in visible if number > 1))


def test_gpus_of_an_initialized_eager_context_stay_as_they_are(gpus, monkeypatch):
  def fail(gpu, enable):
    raise RuntimeError('Physical devices cannot be modified after being initialized')

  context = gpus(2)
  monkeypatch.setattr(tf.config.experimental, 'set_memory_growth', fail)
  settings = Settings(num_gpus=2)
  devices.prepare_devices(settings.devices, devices.find_devices(settings), True)
  assert context['visible'] == ['GPU 0', 'GPU 1']


def test_gpus_that_tensorflow_ignores_are_an_error(gpus):
  """With soft placement, the second replica would be on the CPU."""
  gpus(2, num_usable=1)
  settings = Settings()
  with pytest.raises(UserError, match='TensorFlow must be able to use each GPU: '
                     '1 of /gpu:0, /gpu:1: give the usable ones in CUDA_VISIBLE_DEVICES'):
    devices.prepare_devices(settings.devices, devices.find_devices(settings), True)


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
