"""Clusters of every kind train like one process, as far as they are synchronous."""

import json

import pytest
from cluster_processes import FLAGS, requires_horovod
from test_lost_tasks import MIRRORED, assert_undisturbed, train
from training_runs import variables, variables_by_step

pytestmark = pytest.mark.cluster


def test_parameter_servers_and_an_evaluator(cluster, tmp_path):
  """The evaluator evaluates each checkpoint once."""
  # One operation at a time, so that no operation may wait for another's thread.
  flags = [*FLAGS, '--distribution_strategy=parameter_server', '--train_steps=200',
           '--save_checkpoints_steps=1000', '--inter_op_parallelism_threads=1',
           '--model_dir={}'.format(tmp_path)]
  tasks = cluster.run(flags, chief=1, worker=1, ps=1, evaluator=1)
  step = variables(tmp_path)['global_step']
  steps = [tasks[name].result['steps_run'] for name in ('chief 0', 'worker 0')]
  # A worker may end a step after the chief has saved the last checkpoint.
  assert 200 <= step <= sum(steps) <= 202 and min(steps) > 0
  report = json.loads((tmp_path / 'throughput.json').read_text())
  assert report['num_workers'] == 2 and set(report['workers']) == {'chief', 'worker 0'}
  assert report['examples_per_sec'] == pytest.approx(
      sum(worker['examples'] for worker in report['workers'].values()) / report['wall_secs'])
  evaluator = tasks['evaluator 0']
  evaluated = [line.rpartition(' ')[2].rstrip(')') for line in evaluator.log.splitlines()
               if line.startswith('evaluation: ')]
  first, last = evaluated  # A worker may take steps before the chief saves the first checkpoint.
  assert int(first) < 10 and last == str(step) and evaluator.result['examples'] == 1000
  assert 'average loss' not in tasks['chief 0'].log


def test_loss_scaling_skips_a_step_of_all_workers(cluster, tmp_path):
  """The gradients of one of them are not finite."""
  cluster.run(train(tmp_path, 3, MIRRORED, '--model=own_models:nan_on_worker_1', '--dtype=mixed',
                    '--on_nan=skip', '--save_checkpoints_steps=1'), worker=2)
  after = variables_by_step(tmp_path)
  weights = [name for name in after[1] if 'dense' in name]
  assert len(weights) == 4
  for name in weights:
    assert (after[2][name] == after[1][name]).all() and (after[3][name] != after[2][name]).any()
  assert [state['training/current_loss_scale'] for state in after[1:]] == [
      2 ** 15, 2 ** 14, 2 ** 14]


@pytest.mark.slow
@pytest.mark.parametrize('workers, replicas, model, flags', [
    (2, 2, 'batch_norm', [MIRRORED]),
    (2, 1, 'embedding', [MIRRORED, '--all_reduce_alg=ring']),  # With sparse gradients.
    pytest.param(3, 1, 'batch_norm', ['--distribution_strategy=horovod'], marks=requires_horovod),
    pytest.param(2, 1, 'embedding', ['--distribution_strategy=horovod'], marks=requires_horovod)])
def test_like_one_process_with_as_many_replicas(cluster, tmp_path, workers, replicas, model, flags):
  together, training = tmp_path / 'together', ['--model=own_models:' + model]
  if model != 'batch_norm':
    training += ['--gradient_clip_norm=0.1', '--ema_decay=0.9']
    flags = [*flags, '--gradient_accumulation_steps=2']
  tasks = cluster.run(train(together, 20, '--num_cpu_replicas={}'.format(replicas), *training,
                            *flags), worker=workers)
  assert_undisturbed(together, 20, workers * replicas, training, tolerance=1e-5)
  losses = {tasks['worker {}'.format(index)].result['train_loss'] for index in range(workers)}
  assert len(losses) == 1
  if model == 'batch_norm':  # The second layer is frozen.
    assert set(variables(together)['batch_normalization_1/moving_variance']) == {1}
