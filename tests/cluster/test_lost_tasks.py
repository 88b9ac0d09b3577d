"""Tasks that die, hang or are cut off: the others notice, name them, and all go on from there."""

import os
import random
import re
import signal
import time

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from cluster_processes import SYNCHRONOUS_STRATEGIES

from estimator_train import __main__ as program

SECS = 300  # A deadline: what survivors say shows how they noticed.
ENDLESS = 10**6  # More steps than any machine gets to before the fault.
FLAGS = ['--mode=train', '--dataset=fashion_mnist_sample', '--model=own_models:two_layers',
         '--optimizer=sgd', '--learning_rate=0.05', '--batch_size=24', '--log_every_steps=20',
         '--save_checkpoints_steps=20', '--peer_timeout_secs=5', '--noreport_page']
TOGETHER = ['--distribution_strategy=multi_worker_mirrored']

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def weights(model_dir):
  path = tf.train.latest_checkpoint(str(model_dir))
  return {name: tf.train.load_variable(path, name) for name, _ in tf.train.list_variables(path)}


def assert_undisturbed(model_dir, tmp_path, steps, replicas=2):
  """Compares the weights with those of one process with as many replicas."""
  alone = tmp_path / 'alone'
  assert program.main(FLAGS + ['--train_steps={}'.format(steps), '--model_dir={}'.format(alone),
                               '--num_cpu_replicas={}'.format(replicas)]) == 0
  undisturbed, found = weights(alone), weights(model_dir)
  assert found['global_step'] == steps
  for name, value in undisturbed.items():
    scale = max(np.abs(value).max(), 1e-3)
    np.testing.assert_allclose(found[name], value, atol=1e-5 * scale, rtol=1e-4, err_msg=name)


def survivors_end(tasks, victim):
  """Asserts that all others end with 138 in time, and say who is lost."""
  began = time.monotonic()
  for name, task in tasks.items():
    if name != victim:
      assert task.code(SECS - (time.monotonic() - began)) == 138, task.log
      assert re.search('^(lost {0}:|stopped at step)'.format(victim), task.log, re.MULTILINE), (
          task.log)


@pytest.mark.parametrize('strategy', SYNCHRONOUS_STRATEGIES)
def test_a_worker_is_asked_and_killed_and_stopped_and_the_chief_is_killed(
    cluster, tmp_path, strategy):
  model_dir = tmp_path / 'model'
  flags = FLAGS + ['--distribution_strategy=' + strategy, '--model_dir={}'.format(model_dir),
                   '--train_steps={}'.format(ENDLESS)]
  reached = 0
  for victim, signum in (('worker 1', signal.SIGTERM), ('worker 1', signal.SIGKILL),
                         ('worker 0', signal.SIGKILL), ('worker 1', signal.SIGSTOP)):
    tasks = cluster.start(flags, workers=2)
    tasks['worker 0'].wait_for(r'^step {}/'.format(reached + 40))
    tasks[victim].signal(signum)
    survivors_end(tasks, victim)
    if signum == signal.SIGTERM:
      assert tasks[victim].code() == 143
      assert 'whose checkpoint is saved' in tasks[victim].log
    tasks[victim].end()
    saved = int(weights(model_dir)['global_step'])
    assert reached < saved
    reached = saved - saved % 20
  steps = reached + 60
  tasks = cluster.start(flags + ['--train_steps={}'.format(steps)], workers=2)
  for task in tasks.values():
    assert task.code() == 0, task.log
    assert 'resuming from step {}'.format(saved) in task.log
  assert_undisturbed(model_dir, tmp_path, steps)


def test_a_parameter_server_is_killed(cluster, tmp_path):
  flags = FLAGS + ['--distribution_strategy=parameter_server',
                   '--model_dir={}'.format(tmp_path / 'model'), '--train_steps={}'.format(ENDLESS)]
  tasks = cluster.start(flags, chief=1, workers=1, ps=1)
  tasks['chief'].wait_for(r'^step ([4-9]\d|\d{3})/')
  tasks['ps 0'].signal(signal.SIGKILL)
  survivors_end(tasks, 'ps 0')
  saved = weights(tmp_path / 'model')['global_step']
  assert saved > 0
  steps = saved + 60
  tasks = cluster.start(flags + ['--train_steps={}'.format(steps)], chief=1, workers=1, ps=1)
  for task in tasks.values():
    assert task.code() == 0, task.log
  assert 'resuming from step {}'.format(saved) in tasks['chief'].log
  assert weights(tmp_path / 'model')['global_step'] >= steps


def test_a_step_that_hangs_while_all_live(cluster, tmp_path):
  tasks = cluster.start(FLAGS + TOGETHER + [
      '--model=own_models:hangs', '--train_steps=50', '--step_timeout_secs=8',
      '--save_checkpoints_steps=10', '--model_dir={}'.format(tmp_path / 'model')], workers=2)
  for task in tasks.values():
    assert task.code() == 138
    assert ('no step finished for 8 s (--step_timeout_secs)' in task.log or
            re.search('^lost worker', task.log, re.MULTILINE))
  assert any('Current thread' in task.log or 'Thread 0x' in task.log for task in tasks.values())
  assert weights(tmp_path / 'model')['global_step'] == 10


@pytest.mark.skipif(not os.environ.get('CLUSTER_KILL_ROUNDS'),
                    reason='CLUSTER_KILL_ROUNDS=N does N rounds of a random kill; 20 take minutes')
def test_random_kills(cluster, tmp_path):
  rounds = int(os.environ['CLUSTER_KILL_ROUNDS'])
  chooses = random.Random(1)
  steps = 100 * rounds
  model_dir = tmp_path / 'model'
  flags = FLAGS + TOGETHER + ['--train_steps={}'.format(steps), '--model_dir={}'.format(model_dir)]
  last = 0
  for number in range(rounds):
    tasks = cluster.start(flags, workers=3)
    victim = chooses.choice(sorted(tasks))
    time.sleep(chooses.uniform(0, 12))
    tasks[victim].signal(signal.SIGKILL)
    tasks[victim].code()
    if not any('all 3 tasks' in task.log for task in tasks.values()):
      # Nobody has met it yet, so nobody misses it: the others wait for it to come.
      tasks[victim] = cluster.add('worker', int(victim[-1]), flags)
      tasks['worker 0'].wait_for('^step ')
      tasks[victim].signal(signal.SIGKILL)
    for name, task in tasks.items():
      if name != victim:
        assert task.code(SECS) in (138, 0), (number, task.log)
    tasks[victim].code()
    step = int(weights(model_dir)['global_step']) if (model_dir / 'checkpoint').exists() else 0
    print('round {}: {} killed, step {}'.format(number + 1, victim, step))
    assert step >= last
    last = step
  tasks = cluster.start(flags, workers=3)
  for task in tasks.values():
    assert task.code(300) == 0, task.log
  assert_undisturbed(model_dir, tmp_path, steps, replicas=3)
