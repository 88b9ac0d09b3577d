"""Several workers train like one process with as many replicas, and only the chief writes."""

import json
import os

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from cluster_processes import HOROVOD, SYNCHRONOUS_STRATEGIES

from estimator_train import __main__ as program

FLAGS = ['--dataset=fashion_mnist_sample', '--model=own_models:two_layers', '--optimizer=sgd',
         '--learning_rate=0.05', '--batch_size=24', '--throughput_warmup_steps=5',
         '--log_every_steps=5', '--noreport_page']
TOGETHER = ['--distribution_strategy=multi_worker_mirrored']
synchronous = pytest.mark.parametrize('strategy', SYNCHRONOUS_STRATEGIES)
ONE_AT_A_TIME = ['--inter_op_parallelism_threads=1']  # No operation may wait for another's thread.

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def weights(model_dir):
  path = tf.train.latest_checkpoint(str(model_dir))
  return {name: tf.train.load_variable(path, name) for name, _ in tf.train.list_variables(path)}


def scalars(model_dir, tag):
  return {event.step: value.simple_value for path in model_dir.glob('events.*')
          for event in tf.train.summary_iterator(str(path))
          for value in event.summary.value if value.tag == tag}


def assert_alike(one, other):
  assert set(one) == set(other) and 'dense/kernel' in one
  for name, value in one.items():
    scale = max(np.abs(value).max(), 1e-3)
    np.testing.assert_allclose(other[name], value, atol=1e-5 * scale, err_msg=name)


def files(folder):
  return {os.path.relpath(os.path.join(where, name), str(folder))
          for where, _, names in os.walk(str(folder)) for name in names}


@pytest.mark.parametrize('workers, replicas, strategy, own_flags', [
    (3, 1, 'multi_worker_mirrored', []), (2, 2, 'multi_worker_mirrored', []),
    (2, 1, 'multi_worker_mirrored', ['--all_reduce_alg=ring']),
    pytest.param(3, 1, *HOROVOD.values, [], marks=HOROVOD.marks)])
def test_like_one_process_with_as_many_replicas(cluster, tmp_path, workers, replicas, strategy,
                                                own_flags):
  alone, together = tmp_path / 'alone', tmp_path / 'together'
  flags = FLAGS + ['--mode=train', '--train_steps=20']
  tasks = cluster.start(flags + own_flags + [
      '--distribution_strategy=' + strategy, '--model_dir={}'.format(together),
      '--num_cpu_replicas={}'.format(replicas)], workers=workers)
  assert program.main(flags + ['--model_dir={}'.format(alone),
                               '--num_cpu_replicas={}'.format(workers * replicas)]) == 0
  for task in tasks.values():
    assert task.code() == 0, task.log
  assert_alike(weights(alone), weights(together))
  for tag in ('loss', 'accuracy', 'gradient_norm'):
    found = scalars(together, tag)
    assert sorted(found) == [1, 5, 10, 15, 20]
    assert found == pytest.approx(scalars(alone, tag), rel=1e-4), tag

  told = json.loads((together / 'throughput.json').read_text())
  assert told['num_workers'] == workers and told['num_replicas'] == workers * replicas
  assert told['per_replica_batch_size'] == 24 // (workers * replicas)
  assert told['examples'] == 15 * 24 and told['examples_per_sec'] == pytest.approx(
      told['examples'] / told['wall_secs'])
  names = {'chief'} | {'worker {}'.format(number) for number in range(1, workers)}
  assert set(told['workers']) == names and told['slowest_worker'] in names
  assert [tasks['worker 1'].result[key] for key in ('task', 'steps_run', 'global_step')] == [
      'worker 1', 20, 20]
  assert tasks['worker 0'].result['train_loss'] == tasks['worker 1'].result['train_loss']


@synchronous
def test_statistics_of_batch_norm_are_those_of_one_process(cluster, tmp_path, strategy):
  alone, together = tmp_path / 'alone', tmp_path / 'together'
  flags = [*FLAGS, '--mode=train', '--model=own_models:batch_norm', '--train_steps=10',
           '--save_checkpoints_steps=5']
  tasks = cluster.start([*flags, '--distribution_strategy=' + strategy,
                         '--model_dir={}'.format(together)], workers=3)
  assert program.main([*flags, '--model_dir={}'.format(alone), '--num_cpu_replicas=3']) == 0
  for task in tasks.values():
    assert task.code() == 0, task.log
  assert_alike(weights(alone), weights(together))
  frozen = weights(together)['batch_normalization_1/moving_variance']
  np.testing.assert_array_equal(frozen, np.ones_like(frozen))


@synchronous
def test_sparse_gradients(cluster, tmp_path, strategy):
  alone, together = tmp_path / 'alone', tmp_path / 'together'
  flags = [*FLAGS, '--mode=train', '--model=own_models:embedding', '--train_steps=10']
  tasks = cluster.start([*flags, '--distribution_strategy=' + strategy,
                         '--model_dir={}'.format(together)], workers=2)
  assert program.main([*flags, '--model_dir={}'.format(alone), '--num_cpu_replicas=2']) == 0
  for task in tasks.values():
    assert task.code() == 0, task.log
  assert_alike(weights(alone), weights(together))


@synchronous
def test_only_the_chief_writes(cluster, tmp_path, strategy):
  """The same files as without workers; TensorFlow lets each keep a folder of events."""
  alone, together = tmp_path / 'alone', tmp_path / 'together'
  flags = FLAGS + ['--train_steps=12', '--eval_every_steps=6']
  tasks = cluster.start(flags + ONE_AT_A_TIME + [
      '--distribution_strategy=' + strategy, '--model_dir={}'.format(together)], workers=2)
  assert program.main(flags + ['--model_dir={}'.format(alone)]) == 0
  for task in tasks.values():
    assert task.code() == 0, task.log
  stamps = {name for name in files(together) if 'tfevents' in name}
  assert files(together) - stamps == {name for name in files(alone) if 'tfevents' not in name}
  assert {os.path.dirname(name) for name in stamps} == {'', 'eval'} and len(stamps) == 2
  losses = [value.simple_value for name in stamps if os.path.dirname(name) == ''
            for event in tf.train.summary_iterator(str(together / name))
            for value in event.summary.value if value.tag == 'loss']
  assert len(losses) == 4  # Of steps 1, 5, 10 and 12.
  assert tasks['worker 0'].result['examples'] == 1000
  assert tasks['worker 0'].log.count('average loss') == 2
  assert 'average loss' in tasks['worker 0'].log
  assert 'average loss' not in tasks['worker 1'].log


def test_parameter_servers(cluster, tmp_path):
  tasks = cluster.start(FLAGS + ONE_AT_A_TIME + [
      '--mode=train', '--distribution_strategy=parameter_server', '--train_steps=200',
      '--model_dir={}'.format(tmp_path / 'model')], chief=1, workers=1, ps=2)
  for task in tasks.values():
    assert task.code() == 0, task.log
  assert weights(tmp_path / 'model')['global_step'] >= 200
  steps = [tasks[name].result['steps_run'] for name in ('chief', 'worker 0')]
  assert 200 <= sum(steps) <= 202
  told = json.loads((tmp_path / 'model' / 'throughput.json').read_text())
  assert told['num_workers'] == 2 and set(told['workers']) == {'chief', 'worker 0'}
  assert told['examples_per_sec'] == pytest.approx(
      sum(worker['examples'] for worker in told['workers'].values()) / told['wall_secs'])


def test_an_evaluator_evaluates_each_checkpoint_once(cluster, tmp_path):
  flags = FLAGS + TOGETHER + ['--train_steps=12', '--save_checkpoints_steps=6',
                              '--model_dir={}'.format(tmp_path / 'model')]
  tasks = cluster.start(flags, workers=2)
  cluster.spec['evaluator'] = ['127.0.0.1:1']
  evaluator = cluster.add('evaluator', 0, flags)
  for task in [evaluator, *tasks.values()]:
    assert task.code() == 0, task.log
  evaluated = [line.rpartition(' ')[2] for line in evaluator.log.splitlines()
               if line.startswith('accuracy')]
  assert evaluated == ['0', '6', '12'] and evaluator.result['examples'] == 1000


@synchronous
def test_an_evaluation_stops_all_workers_at_one_step(cluster, tmp_path, strategy):
  flags = FLAGS + ['--distribution_strategy=' + strategy, '--train_steps=100000',
                   '--eval_every_steps=20', '--stop_at_accuracy=0.01',
                   '--model_dir={}'.format(tmp_path / 'model')]
  tasks = cluster.start(flags, workers=2)
  for task in tasks.values():
    assert task.code() == 0, task.log
  results = [task.result for task in tasks.values()]
  assert results[0]['global_step'] == results[1]['global_step'] >= 20
  assert results[0]['stopped_early'].endswith('reaches 0.01')
  again = cluster.start(flags, workers=2)
  assert [task.code() for task in again.values()] == [0, 0]
  assert [task.result['steps_run'] for task in again.values()] == [0, 0]


def test_another_command_than_the_chiefs_is_refused(cluster, tmp_path):
  flags = FLAGS + TOGETHER + ['--mode=train', '--train_steps=5',
                              '--model_dir={}'.format(tmp_path / 'model')]
  tasks = cluster.start(flags, workers=2, per_task={'worker 1': ['--learning_rate=0.25']})
  assert tasks['worker 1'].code() == 2
  assert ('error: this worker must be started with the flags of the chief: --learning_rate=0.25 '
          'here and another value on the chief, whose log has both: give all tasks the same '
          'flags') in tasks['worker 1'].log
  again = cluster.add('worker', 1, flags)
  assert again.code() == tasks['worker 0'].code() == 0


def test_one_worker_needs_no_cluster(run_program, tmp_path, monkeypatch):
  done = run_program('--mode=train', '--train_steps=3', '--model_dir={}'.format(tmp_path),
                     *FLAGS, *TOGETHER)
  assert done.code == 0, done.err
  assert 'with one worker: TF_CONFIG is not set' in done.err
  monkeypatch.setenv('TF_CONFIG', '{"cluster": {"worker": ["localhost:1"]}, '
                                  '"task": {"type": "worker", "index": 0}}')
  done = run_program('--mode=train', '--train_steps=5', '--model_dir={}'.format(tmp_path),
                     *FLAGS, *TOGETHER)
  assert done.code == 0 and 'TF_CONFIG names no other task' in done.err
