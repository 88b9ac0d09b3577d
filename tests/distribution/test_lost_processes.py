"""Real processes, without TensorFlow: what the others print if one is killed or stopped."""

import signal

import pytest
from peer_helpers import workers

# A task whose main thread hangs, as in TensorFlow's C++.
CODE = '''
import os, sys, threading
from estimator_train.distribution import rendezvous, tf_config
from estimator_train.distribution.peers import Peers
from estimator_train.distribution.network import StartTimeout
from estimator_train.system.signals import exit_now
cluster = tf_config.parse_cluster(os.environ)
connections = rendezvous.connect(cluster, {}, StartTimeout(300))
peers = Peers(cluster, connections, float(sys.argv[1]),
              lambda *lost: exit_now('lost {}: {}'.format(*lost)))
peers.announce_state('training')
print('connected', file=sys.stderr, flush=True)
threading.Event().wait()
'''
# Seconds. The first one is longer than a busy machine keeps a process waiting.
TIMEOUT, ENDLESS = '10', '3600'


@pytest.fixture
def start(cluster):
  def start(spec, *arguments, only=None):
    cluster.spec = spec
    return [cluster.add(kind, index, arguments, program=('-c', CODE))
            for kind, hosts in spec.items() for index in range(len(hosts))
            if only in (None, index)]

  return start


def wait_until_connected(tasks):
  for task in tasks:
    task.wait_for('^connected$')
  return tasks


def assert_lost(tasks, message):
  for task in tasks:
    assert task.code() == 138
    assert all(line.startswith(message) for line in task.log.splitlines()[1:])
    assert message in task.log


@pytest.mark.parametrize('victim', [0, 2])
def test_killed(start, victim):
  tasks = wait_until_connected(start(workers(3), ENDLESS))
  tasks.pop(victim).signal(signal.SIGKILL)
  assert_lost(tasks, 'lost worker {}: its connection ended'.format(victim))


def test_stopped_and_continued(start):
  *others, victim = wait_until_connected(start(workers(3), TIMEOUT))
  victim.signal(signal.SIGSTOP)
  assert_lost(others, 'lost worker 2: no message from it for ')
  victim.signal(signal.SIGCONT)
  assert_lost([victim], 'lost worker 2: this task was ')


def test_one_is_replaced_before_the_chief_has_noticed(start):
  spec = workers(2)
  chief, victim = wait_until_connected(start(spec, ENDLESS))
  victim.signal(signal.SIGKILL)
  replacement = start(spec, ENDLESS, only=1)
  assert_lost([chief], 'lost worker 1: its connection ended')
  wait_until_connected(start(spec, ENDLESS, only=0) + replacement)
