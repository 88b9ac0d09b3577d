"""How the tasks of a local cluster end: together, with which code, and when they start again."""

import itertools
import os
import signal

import pytest
from conftest import is_alive, wait_until
from launches import IGNORES, LONG, OBEYS, SHORT

from estimator_train.launcher import local_tasks

# Printed by the launcher; the leader prints its own error.
SEE = ': see model/logs/worker-1.log\n'
KILLED = 'killed tasks that did not end in time: worker 0\n'
LATER = 'wait_for_end("worker 1"); '
# For tasks that end by themselves, or when they are told to.
PATIENT = (LONG, SHORT, LONG)
# For tasks that have to be killed.
IMPATIENT = (SHORT, SHORT, SHORT)


@pytest.mark.parametrize('leader, worker, limits, code, told', [
    pytest.param('wait("worker 1 start 1"); sys.exit(3)', OBEYS.format('SIGTERM', 143), PATIENT, 3,
                 '', id='leader'),
    pytest.param('wait("worker 1 start 1"); os.kill(os.getpid(), signal.SIGSEGV)',
                 'wait("go")', IMPATIENT, 139, 'worker 0 ended with code 139: killed by SIGSEGV\n'
                 + KILLED.replace('0', '1'), id='leader killed'),
    pytest.param(IGNORES, 'wait("worker 0 start 1"); sys.exit("error: odd: 1: 2")', IMPATIENT,
                 1, 'worker 1 ended with code 1: odd: 1: 2' + SEE + KILLED, id='worker'),
    pytest.param(IGNORES, 'print("LOST"); sys.exit(138)', IMPATIENT, 138,
                 'worker 1 ended with code 138: LOST' + SEE + KILLED, id='worth a restart'),
    pytest.param(LATER + 'sys.exit(138)', 'os.kill(os.getpid(), signal.SIGSEGV)', PATIENT,
                 139, 'worker 1 ended with code 139: killed by SIGSEGV' + SEE, id='the first one'),
    pytest.param(LATER + 'sys.exit(139)', 'print("LOST"); sys.exit(138)', PATIENT, 139,
                 'worker 1 ended with code 138: LOST' + SEE, id='the one that lost no peer'),
    pytest.param(LATER + 'sys.exit(3)', 'print("LOST"); sys.exit(138)', PATIENT, 3,
                 'worker 1 ended with code 138: LOST' + SEE, id='the one for good'),
])
def test_failure_ends_all(launch, leader, worker, limits, code, told):
  found, out, err = launch.run('--local_workers=2', limits=limits, worker_0=leader,
                               worker_1=worker)
  assert (found, out) == (code, '')
  assert ''.join(err.splitlines(True)[1:]) == told


def test_others_have_time_to_notice_a_lost_peer(launch):
  launch.start('--local_workers=3', worker_1='wait("go"); os.kill(os.getpid(), signal.SIGKILL)',
               worker_0='wait("seen"); print("worker 1 is lost"); sys.exit(138)',
               worker_2='wait("seen"); sys.exit(138)')
  pid = launch.started('worker 1')['pid']
  (launch.folder / 'go').write_text('')
  wait_until(lambda: not is_alive(pid))
  (launch.folder / 'seen').write_text('')
  code, out, err = launch.finish()
  assert (code, out) == (128 + signal.SIGKILL, 'worker 1 is lost\n')
  assert 'worker 2 ended with code 138' in err


@pytest.mark.parametrize('does, code, restarts', [
    pytest.param(['sys.exit(138)', 'sys.exit(0)'], 0, 1, id='lost peer'),
    pytest.param(['os.kill(os.getpid(), signal.SIGKILL)', 'sys.exit(0)'], 0, 1, id='killed'),
    pytest.param('sys.exit(138)', 138, 2, id='no more'),
    pytest.param(['sys.exit(138)', 'sys.exit(3)'], 3, 1, id='then for good'),
    pytest.param('sys.exit(2)', 2, 0, id='wrong flags'),
    pytest.param('sys.exit(127)', 127, 0, id='below'),
    pytest.param('sys.exit(128)', 128, 2, id='above'),
])
def test_restarts(launch, does, code, restarts):
  found, _, err = launch.run('--local_workers=2', '--max_restarts=2', worker_1=does,
                             worker_0=LATER + 'sys.exit(0)')
  assert found == code, err
  lines = [line for line in err.splitlines() if line.startswith('restarting all tasks ')]
  assert [line.split(':')[0] for line in lines] == [
      'restarting all tasks (restart {} of 2)'.format(number + 1) for number in range(restarts)]
  assert all(': worker 1 ended with code 1' in line for line in lines)
  starts = [launch.started('worker 1', 1 + number)['cluster'] for number in range(restarts + 1)]
  assert all(first != second for first, second in zip(starts, starts[1:]))
  assert not (launch.folder / 'worker 1 start {}'.format(restarts + 2)).exists()


def test_error_is_that_of_the_last_start(launch):
  code, _, err = launch.run(
      '--local_workers=2', '--max_restarts=1', worker_0='wait("go")', limits=(SHORT, SHORT, SHORT),
      worker_1=['print("error: old"); sys.exit(138)', 'print("new"); sys.exit(138)'])
  assert code == 138
  assert 'worker 1 ended with code 138: old: see' in err
  assert 'worker 1 ended with code 138: new: see' in err


@pytest.mark.parametrize('worker, ps, limits', [
    pytest.param('sys.exit(0)', OBEYS.format('SIGTERM', 143), PATIENT, id='obeys'),
    pytest.param('signal.signal(signal.SIGTERM, signal.SIG_IGN); wait_for_end("chief 0"); '
                 'sys.exit(138)', IGNORES, IMPATIENT, id='does not'),
])
def test_servers_end_with_the_leader(launch, worker, ps, limits):
  code, out, err = launch.run(
      '--local_workers=2', '--local_ps=1', '--max_restarts=1', limits=limits,
      chief_0='wait("ps 0 start 1"); wait("worker 0 start 1"); print(1)',
      worker_0=worker, ps_0=ps)
  assert (code, out) == (0, '1\n'), err
  assert 'restarting' not in err
  assert (launch.log('ps-0.log') == 'ps 0 leaves\n') == (ps != IGNORES)


@pytest.mark.parametrize('signum', [signal.SIGINT, signal.SIGTERM])
def test_signal_is_passed_on(launch, signum):
  obeys = OBEYS.format(signum.name, 128 + signum)
  process = launch.start('--local_workers=2', '--max_restarts=5', worker_0=obeys, worker_1=obeys)
  for task in ('worker 0', 'worker 1'):
    launch.started(task)
  process.send_signal(signum)
  code, _, err = launch.finish()
  assert code == 128 + signum
  assert err.splitlines()[1:] == ['worker 0 leaves']
  assert launch.log('worker-1.log') == 'worker 1 leaves\n'


def test_a_signal_to_save_ends_nothing(launch):
  does = ('on(signal.SIGTERM, 0); '
          'signal.signal(signal.SIGUSR1, lambda *_: open("{0} saved", "w").close()); ready(); '
          'wait("go")')
  process = launch.start('--local_workers=2', limits=(LONG, LONG, SHORT),
                         worker_0=does.format('0'), worker_1=does.format('1'))
  for task in ('worker 0', 'worker 1'):
    launch.started(task)
  process.send_signal(signal.SIGUSR1)
  for name in ('0 saved', '1 saved'):
    wait_until((launch.folder / name).exists)
  (launch.folder / 'go').write_text('')
  code, _, err = launch.finish()
  assert (code, err.splitlines()[1:]) == (0, [])


def test_signal_kills_who_does_not_end(launch):
  process = launch.start('--local_workers=2', worker_0=IGNORES, worker_1=IGNORES,
                         limits=(LONG, LONG, SHORT))
  for task in ('worker 0', 'worker 1'):
    launch.started(task)
  process.terminate()
  code, _, err = launch.finish()
  assert code == 143
  assert 'killed tasks that did not end in time: worker 0, worker 1' in err


def test_a_terminals_signal_reaches_tasks_once(launch):
  launch.start('--local_workers=1', worker_0='wait()')
  pid = launch.started('worker 0')['pid']
  assert os.getpgid(pid) == pid


def test_tasks_die_with_the_launcher(launch):
  process = launch.start('--local_workers=2', worker_0=IGNORES, worker_1=IGNORES)
  pids = [launch.started(task)['pid'] for task in ('worker 0', 'worker 1')]
  assert all(is_alive(pid) for pid in pids)
  process.kill()
  wait_until(lambda: not any(is_alive(pid) for pid in pids))


def test_waits_as_long_as_documented():
  assert local_tasks.DEFAULT_TIMEOUTS == (60, 5, 10)


def test_limits_count_from_what_happened(tmp_path, monkeypatch):
  """By a clock that goes on by a second a look: killed 60 seconds after the peer was lost."""
  class Process:
    def __init__(self, code):
      self.returncode, self.signals = code, []

    def poll(self):
      return self.returncode

    def wait(self):
      return self.returncode

    def send_signal(self, signum):
      self.signals.append((signum, next(looks)))
      self.returncode = -signum

  looks = itertools.count()
  tasks = [local_tasks.LocalTask('worker', index) for index in range(2)]
  cluster = local_tasks.LocalCluster(tasks, [], str(tmp_path), [], clock=lambda: next(looks),
                                     sleep=lambda secs: None)
  lost, hangs = Process(138), Process(None)
  processes = iter((hangs, lost))
  monkeypatch.setattr(cluster, '_start', lambda task, *_: local_tasks._RunningTask(
      task, next(processes), None, 0))
  assert cluster.run(max_restarts=0) == 138
  (signum, seconds), = hangs.signals
  assert signum == signal.SIGKILL
  assert 60 <= seconds <= 63 and lost.signals == []
