"""How the tasks of a local cluster end: together, with which code, and when they start again."""

import signal

import pytest
from conftest import is_alive, wait_until
from launches import IGNORES, LONG, OBEYS, SHORT

# Printed by the launcher; the leader prints its own error.
ENDED = 'worker 1 ended with code {}: see model/logs/worker-1.log\n'
KILLED = 'killed tasks that did not end in time: worker {}\n'
LATER = 'wait_for_end("worker 1"); '
# For tasks that end by themselves, or by a signal, and for tasks that have to be killed.
PATIENT, IMPATIENT = (LONG, SHORT, LONG), (SHORT, SHORT, SHORT)


@pytest.mark.parametrize('leader, worker, limits, code, printed', [
    pytest.param('wait("worker 1 start 1"); sys.exit(3)', OBEYS.format('SIGTERM', 143), PATIENT, 3,
                 '', id='leader'),
    pytest.param('wait("worker 1 start 1"); os.kill(os.getpid(), signal.SIGSEGV)',
                 'wait("go")', IMPATIENT, 139,
                 'worker 0 ended with code 139: killed by SIGSEGV\n' + KILLED.format(1),
                 id='leader killed'),
    pytest.param(IGNORES, 'wait("worker 0 start 1"); sys.exit("error: odd: 1: 2")', IMPATIENT,
                 1, ENDED.format('1: odd: 1: 2') + KILLED.format(0), id='worker'),
    pytest.param(LATER + 'sys.exit(138)', 'os.kill(os.getpid(), signal.SIGSEGV)', PATIENT,
                 139, ENDED.format('139: killed by SIGSEGV'), id='the first one'),
    pytest.param(LATER + 'sys.exit(3)', 'print("LOST"); sys.exit(138)', PATIENT, 3,
                 ENDED.format('138: LOST'), id='the one for good')])
def test_failure_ends_all(launch, leader, worker, limits, code, printed):
  found, out, err = launch.run('--local_workers=2', limits=limits, worker_0=leader,
                               worker_1=worker)
  assert (found, out) == (code, '')
  assert ''.join(err.splitlines(True)[1:]) == printed


@pytest.mark.parametrize('does, code, restarts', [
    (['os.kill(os.getpid(), signal.SIGKILL)', 'sys.exit(0)'], 0, 1),
    (['print("error: old"); sys.exit(138)', 'print("new"); sys.exit(128)'], 128, 2),
    ('sys.exit(127)', 127, 0)])
def test_restarts(launch, does, code, restarts):
  found, _, err = launch.run('--local_workers=2', '--max_restarts=2', worker_1=does,
                             worker_0=LATER + 'sys.exit(0)')
  assert found == code, err
  lines = [line for line in err.splitlines() if line.startswith('restarting all tasks ')]
  assert [line.split(':')[0] for line in lines] == [
      'restarting all tasks (restart {} of 2)'.format(number + 1) for number in range(restarts)]
  assert all(': worker 1 ended with code 1' in line for line in lines)
  # With the error of the last start.
  assert ('138: old: see' in err) == ('128: new: see' in err) == (code == 128)
  starts = [launch.started('worker 1', 1 + number)['cluster'] for number in range(restarts + 1)]
  assert all(first != second for first, second in zip(starts, starts[1:]))
  assert not (launch.folder / 'worker 1 start {}'.format(restarts + 2)).exists()


@pytest.mark.parametrize('worker, ps, limits', [
    pytest.param('sys.exit(0)', OBEYS.format('SIGTERM', 143), PATIENT, id='obeys'),
    pytest.param('signal.signal(signal.SIGTERM, signal.SIG_IGN); wait_for_end("chief 0"); '
                 'sys.exit(138)', IGNORES, IMPATIENT, id='does not')])
def test_servers_end_with_the_leader(launch, worker, ps, limits):
  code, out, err = launch.run(
      '--local_workers=2', '--local_ps=1', '--max_restarts=1', limits=limits,
      chief_0='wait("ps 0 start 1"); wait("worker 0 start 1"); print(1)',
      worker_0=worker, ps_0=ps)
  assert (code, out) == (0, '1\n') and 'restarting' not in err, err
  assert (launch.log('ps-0.log') == 'ps 0 leaves\n') == (ps != IGNORES)


def test_a_worker_that_has_finished_ends_no_other(launch):
  # The leader runs for longer than the launcher would wait before it ended the other tasks.
  code, _, err = launch.run('--local_workers=2', limits=IMPATIENT, worker_1='sys.exit(0)',
                            worker_0=LATER + 'time.sleep({}); sys.exit(0)'.format(5 * SHORT))
  assert code == 0 and err.count('\n') == 1, err


@pytest.mark.parametrize('signum, does, limits, code, printed', [
    *((signum, OBEYS.format(signum.name, 128 + signum), (LONG, LONG, LONG), 128 + signum,
       ['worker 0 leaves']) for signum in (signal.SIGINT, signal.SIGHUP)),
    (signal.SIGTERM, IGNORES, (LONG, LONG, SHORT), 143, [KILLED.format('0, worker 1').strip()]),
    # Tasks save a checkpoint on this signal, and continue.
    (signal.SIGUSR1, OBEYS.format('SIGUSR1', 0), (LONG, LONG, SHORT), 0, ['worker 0 leaves'])])
def test_signals_are_passed_on(launch, signum, does, limits, code, printed):
  process = launch.start('--local_workers=2', '--max_restarts=5', limits=limits, worker_0=does,
                         worker_1=does)
  for task in ('worker 0', 'worker 1'):
    launch.started(task)
  process.send_signal(signum)
  found, _, err = launch.finish()
  assert (found, err.splitlines()[1:]) == (code, printed)
  assert launch.log('worker-1.log') == ('' if does == IGNORES else 'worker 1 leaves\n')


def test_tasks_die_with_the_launcher(launch):
  process = launch.start('--local_workers=2', worker_0=IGNORES, worker_1=IGNORES)
  pids = [launch.started(task)['pid'] for task in ('worker 0', 'worker 1')]
  assert all(is_alive(pid) for pid in pids)
  process.kill()
  wait_until(lambda: not any(is_alive(pid) for pid in pids))
