"""Real processes: what the survivors of a killed or stopped one say."""

import os
import signal
import subprocess
import sys

import pytest
from conftest import ROOT
from peer_helpers import SECS, tf_config_text, wait_until, workers

# Longer than a busy machine keeps a process waiting.
TIMEOUT_SECS = 10
# A task whose main thread is stuck for ever, as in TensorFlow's C++.
STUCK = '''
import os, sys, threading
from estimator_train.cluster import rendezvous, tf_config
from estimator_train.errors import PeerLost
from estimator_train.process.exit import exit_now
peers = rendezvous.connect_peers(tf_config.parse_cluster(os.environ), {'--seed': '1'}, 300)
peers.set_lost_task_handler(float(sys.argv[1]),
                            lambda *lost: exit_now('lost {}: {}'.format(*lost)))
peers.announce_state('training')
print('met', flush=True)
'''
FOR_EVER = STUCK + 'threading.Event().wait()\n'
A_MOMENT = STUCK + 'sys.stdin.readline(); peers.finish()\n'
SERVER = STUCK + '''
try:
  peers.wait_until_finished([tf_config.parse_cluster(os.environ).chief])
except PeerLost as lost:  # The watching thread may come first: it says the same.
  exit_now(str(lost))
peers.finish()
print('all are done', flush=True)
'''


@pytest.fixture
def start():
  processes = []

  def begin(addresses, code, kind='worker', index=0, timeout_secs=TIMEOUT_SECS):
    environment = dict(os.environ, TF_CONFIG=tf_config_text(addresses, kind, index))
    process = subprocess.Popen(
        [sys.executable, '-c', code, str(timeout_secs)], cwd=str(ROOT), env=environment,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        universal_newlines=True)
    processes.append(process)
    return process

  yield begin
  for process in processes:
    process.kill()
    process.wait(SECS)
    for pipe in (process.stdin, process.stdout, process.stderr):
      pipe.close()


def met(processes):
  for process in processes:
    assert process.stdout.readline() == 'met\n', process.stderr.read()
  return processes


def end(process):
  """Returns what a process said last."""
  _, err = process.communicate(timeout=SECS)
  assert process.returncode == 138, err
  return err


@pytest.mark.parametrize('victim', [0, 2])
def test_killed(start, victim):
  addresses = workers(3)
  processes = met([start(addresses, FOR_EVER, index=index, timeout_secs=3600)
                   for index in range(3)])
  processes.pop(victim).kill()
  for process in processes:
    err = end(process)
    assert err.startswith('lost worker {}: its connection ended'.format(victim)), err
    assert len(err.splitlines()) == 1


def test_stopped_and_woken(start):
  addresses = workers(3)
  first, second, victim = met([start(addresses, FOR_EVER, index=index) for index in range(3)])
  victim.send_signal(signal.SIGSTOP)
  for process in (first, second):
    err = end(process)
    assert err.startswith('lost worker 2: no message from it for '), err
  victim.send_signal(signal.SIGCONT)
  err = end(victim)
  assert err.startswith('lost worker 2: this task was '), err


def test_one_comes_back_while_the_chief_has_not_noticed(start):
  addresses = workers(2)
  chief, victim = met([start(addresses, FOR_EVER, index=index, timeout_secs=3600)
                       for index in range(2)])
  victim.kill()
  back = start(addresses, FOR_EVER, index=1)
  end(chief)
  met([start(addresses, FOR_EVER), back])


def test_server_waits_for_the_workers(start):
  addresses = workers(2)
  addresses = {'chief': addresses['worker'][:1], 'ps': addresses['worker'][1:]}
  chief, server = met([start(addresses, A_MOMENT, 'chief'), start(addresses, SERVER, 'ps')])
  assert server.poll() is None
  chief.stdin.write('\n')
  chief.stdin.flush()
  out, err = server.communicate(timeout=SECS)
  assert (server.returncode, out, err) == (0, 'all are done\n', '')
  wait_until(lambda: chief.poll() is not None)
  assert chief.returncode == 0


def test_server_loses_a_worker(start):
  addresses = workers(2)
  addresses = {'chief': addresses['worker'][:1], 'ps': addresses['worker'][1:]}
  chief, server = met([start(addresses, A_MOMENT, 'chief'), start(addresses, SERVER, 'ps')])
  chief.kill()
  assert 'lost chief: its connection ended' in end(server)
