"""Tasks that are killed, stopped or hang: the others end, and all resume from the checkpoint."""

import json
import os
import random
import re
import signal
import time

import pytest
from cluster_processes import FLAGS, requires_horovod
from conftest import wait_until
from training_runs import assert_same_weights, scalars, variables

from estimator_train import __main__ as program

ENDLESS = 10**6  # More steps than any machine gets to before the fault.
FAULTY = [*FLAGS, '--save_checkpoints_steps=20', '--peer_timeout_secs=5']
KILL_ROUNDS = int(os.environ.get('CLUSTER_KILL_ROUNDS', '0'))  # 20 take minutes.
MIRRORED = '--distribution_strategy=multi_worker_mirrored'

pytestmark = pytest.mark.cluster


def train(model_dir, steps, *flags):
  return [*FAULTY, '--mode=train', '--model_dir={}'.format(model_dir),
          '--train_steps={}'.format(steps), *flags]


def step_of(model_dir):
  return int(variables(model_dir)['global_step'])


def assert_undisturbed(model_dir, steps, replicas=2, flags=(), tolerance=1e-4):
  """Compares the weights with those of one process with as many replicas; returns its folder."""
  alone = model_dir.with_name('alone')
  assert program.main([*train(alone, steps, '--num_cpu_replicas={}'.format(replicas)),
                       *flags]) == 0
  assert_same_weights(model_dir, alone, tolerance)
  return alone


def assert_survivors_end(tasks, victim):
  for name, task in tasks.items():
    if name != victim:
      assert task.code() == 138, task.log
      assert re.search('^lost {}: '.format(victim), task.log, re.MULTILINE), task.log


def file_names(folder):
  """Returns the names of all files below a folder, without the numbers in them."""
  return {re.sub(r'\d+', '#', str(path.relative_to(folder)))
          for path in folder.rglob('*') if path.is_file()}


@pytest.mark.parametrize('strategy', [
    'multi_worker_mirrored',
    pytest.param('horovod', marks=[requires_horovod, pytest.mark.slow])])
def test_two_workers_train_like_one_process_whatever_happens(cluster, tmp_path, strategy):
  """One worker differs, is then asked to stop, and is killed; an evaluation stops both in the end.
  """
  together = tmp_path / 'together'
  flags = train(together, ENDLESS, '--distribution_strategy=' + strategy)
  tasks = cluster.start(flags, worker=2, per_task={'worker 1': ['--learning_rate=0.25']})
  chief, refused = tasks.values()
  assert refused.code() == 2
  assert ('error: this worker must match the chief: --learning_rate=0.25 here and another value on '
          'the chief, whose log has both: give all tasks the same --learning_rate') in refused.log
  worker = cluster.add('worker', 1, flags)
  chief.wait_for('^step 40/')
  worker.signal(signal.SIGTERM)
  assert (chief.code(), worker.code()) == (138, 143), chief.log + worker.log
  saved = step_of(together)
  assert saved >= 40 and 'stopped at step {}, because another'.format(saved) in chief.log
  assert 'stopped by SIGTERM at step {}, whose checkpoint is saved'.format(saved) in worker.log

  tasks = cluster.start(flags, worker=2)
  tasks['worker 0'].wait_for('^step {}/'.format(saved - saved % 20 + 40))
  tasks['worker 1'].signal(signal.SIGKILL)
  assert_survivors_end(tasks, 'worker 1')
  saved, before = step_of(together), saved
  assert saved > before and saved % 20 == 0

  evaluates = ['--mode=train_and_evaluate', '--eval_every_steps=20']
  chief, worker = cluster.run([*flags, *evaluates, '--stop_at_accuracy=0.01',
                               '--throughput_warmup_steps=1'], worker=2).values()
  assert all('resuming from step {}'.format(saved) in task.log for task in (chief, worker))
  steps = chief.result['global_step']
  assert worker.result['global_step'] == steps > saved and worker.result['task'] == 'worker 1'
  assert chief.result['train_loss'] == worker.result['train_loss']
  assert chief.result['examples'] == 1000 and 'average loss' in chief.log
  assert 'average loss' not in worker.log  # Only the chief evaluates.
  assert chief.result['stopped_early'].endswith('reaches 0.01')

  alone = assert_undisturbed(together, steps, flags=evaluates)
  for tag in ('loss', 'gradient_norm'):
    found, expected = scalars(together, tag), scalars(alone, tag)
    assert set(range(5, steps, 5)) <= set(found) & set(expected)
    for step in set(found) & set(expected):
      assert found[step] == pytest.approx(expected[step], rel=1e-4), (tag, step)
  # Only the chief writes. Each of its three starts has its own file of events.
  assert file_names(together) - file_names(alone) <= {'stopped.json'}
  assert len(list(together.rglob('*tfevents*'))) == 4
  report = json.loads((together / 'throughput.json').read_text())
  assert report['num_workers'] == report['num_replicas'] == 2
  assert report['examples'] == (steps - saved - 1) * 24
  assert set(report['workers']) == {'chief', 'worker 1'}
  assert report['slowest_worker'] in report['workers']


def test_a_step_that_hangs_while_all_live(cluster, tmp_path):
  tasks = cluster.start(train(tmp_path, 50, MIRRORED, '--model=own_models:hangs',
                              '--step_timeout_secs=8', '--save_checkpoints_steps=10'), worker=2)
  for task in tasks.values():
    assert task.code() == 138
    assert re.search(r'no step finished for 8 s \(--step_timeout_secs\)|^lost worker', task.log,
                     re.MULTILINE)
  assert any('hread 0x' in task.log for task in tasks.values())  # The stacks.
  assert step_of(tmp_path) == 10


def random_kills():
  """Yields random workers of eight, and how many seconds they train."""
  chooses = random.Random(1)
  for _ in range(KILL_ROUNDS):
    yield 'worker {}'.format(chooses.randrange(8)), signal.SIGKILL, chooses.uniform(0, 5)


@pytest.mark.slow
@pytest.mark.parametrize('strategy, counts, faults', [
    ('multi_worker_mirrored', {'worker': 8 if KILL_ROUNDS else 3},
     [('worker 0', signal.SIGKILL, 0), ('worker 1', signal.SIGSTOP, 0), *random_kills()]),
    ('parameter_server', {'chief': 1, 'worker': 1, 'ps': 1}, [('ps 0', signal.SIGKILL, 0)])],
                         ids=['workers', 'ps'])
def test_other_faults(cluster, tmp_path, strategy, counts, faults):
  model_dir, reached, flag = tmp_path / 'model', 0, '--distribution_strategy=' + strategy
  for victim, signum, secs in faults:
    tasks = cluster.start(train(model_dir, ENDLESS, flag), **counts)
    log = list(tasks.values())[0].log_path
    wait_until(lambda log=log, reached=reached: any(
        int(step) >= reached + 40
        for step in re.findall(r'^step (\d+)/', log.read_text(), re.MULTILINE)))
    time.sleep(secs)
    tasks[victim].signal(signum)
    assert_survivors_end(tasks, victim)
    tasks[victim].end()
    assert reached < step_of(model_dir)
    reached = step_of(model_dir)
    print('{} has ended, step {}'.format(victim, reached))
  steps = reached + 60
  tasks = cluster.run(train(model_dir, steps, flag), **counts)
  assert all(name == 'ps 0' or 'resuming from step {}'.format(reached) in task.log
             for name, task in tasks.items())
  if 'ps' in counts:  # Each step of a worker is a global step.
    assert step_of(model_dir) >= steps
  else:
    assert_undisturbed(model_dir, steps, replicas=counts['worker'])
