"""The program in a process of its own: what is told of its end, and what ends it."""

import os
import signal

import pytest
from conftest import ROOT, is_alive, wait_until

from estimator_train.errors import StoppedBySignal
from estimator_train.system import child_process
from estimator_train.system.child_process import run_python
from estimator_train.system.start_up import START_TIME_VARIABLE


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
  """Makes a program that stands in for ours, as one in the current folder is the one to run."""
  def write(*lines):
    (tmp_path / 'estimator_train').mkdir(exist_ok=True)
    (tmp_path / 'estimator_train' / '__init__.py').write_text('')
    (tmp_path / 'estimator_train' / '__main__.py').write_text(
        'import json, os, signal, sys, time\n' + '\n'.join(lines))
    return str(tmp_path / 'log.txt')

  monkeypatch.chdir(str(tmp_path))
  monkeypatch.setenv('PYTHONDONTWRITEBYTECODE', '1')
  return write


def test_failures():
  for script, code, error in (
      ('echo "{}"; echo "not JSON"; echo "[1]"', 0, None),
      ('echo advice >&2; echo "error: first: 1: 2" >&2; echo "error: last: 3: 4" >&2; echo after; '
       'exit 1', 1, 'last: 3: 4'),
      ('echo AnError: this >&2; echo advice >&2; exit 1', 1, 'AnError: this'),
      ('echo only this; exit 9', 9, 'only this'), ('exit 7', 7, 'exit code 7 without any output'),
      ('kill -SEGV $$', -signal.SIGSEGV, 'killed by SIGSEGV'),
      ('kill -KILL $$', -signal.SIGKILL, 'killed by SIGKILL, possibly out of memory (see dmesg)')):
    child = run_python(['-c', script], 60, python='/bin/sh')
    assert (child.code, child.error) == (code, error) and 0 < child.secs < 60, script
    assert child.json_values == ([{}, [1]] if error is None else [])
  with pytest.raises(OSError):
    run_python([], 1, python='/no/such/command')


def test_hanging_process_and_its_child_are_killed():
  for secs in (0.5, 5., 50.):  # A busy machine may take a while to begin.
    done = run_python(['-c', 'sleep 3600 & echo $!; wait'], secs, python='/bin/sh')
    if done.stdout:
      break
  assert done.code is None and done.error.startswith('no answer within ')
  wait_until(lambda: not is_alive(done.stdout.strip()), 60)


def test_arguments_cores_and_environment(stand_in, monkeypatch):
  for name, value in ((START_TIME_VARIABLE, '1'), ('TF_CONFIG', '{}'),
                      ('PYTHONPATH', 'some:others')):
    monkeypatch.setenv(name, value)
  log = stand_in('print(json.dumps(dict(argv=sys.argv[1:], environment=dict(os.environ), '
                 'cores=sorted(os.sched_getaffinity(0)))))')
  found, = child_process.run_program(['--a=b c', '--d'], log).json_values
  environment, cores = found['environment'], sorted(os.sched_getaffinity(0))
  assert found['argv'] == ['--a=b c', '--d'] and found['cores'] == cores
  assert START_TIME_VARIABLE not in environment and 'TF_CONFIG' not in environment
  assert environment['PYTHONPATH'] == 'some:others:{}'.format(ROOT)
  assert environment['PATH'] == os.environ['PATH']
  os.rename('estimator_train/__main__.py', 'another.py')
  found, = child_process.run_program([], log, 'another', cores[-1:]).json_values
  assert found['cores'] == cores[-1:]


# Each reports to its parent when it is ready.
@pytest.mark.parametrize('on_sigterm, grace_secs, last_words', [
    pytest.param('lambda *_: sys.exit("stopped")', 30, 'stopped\n', id='obeys'),
    pytest.param('signal.SIG_IGN', 0.05, '', id='does not')])
def test_stops_with_the_wait(stand_in, monkeypatch, on_sigterm, grace_secs, last_words):
  def stop(signum, _):
    raise StoppedBySignal(signum, 'stopped')

  monkeypatch.setattr(child_process, '_GRACE_SECS', grace_secs)
  log = stand_in('signal.signal(signal.SIGTERM, {})'.format(on_sigterm),
                 'open("pid", "w").write(str(os.getpid()))',
                 'os.kill(os.getppid(), signal.SIGUSR1)', 'time.sleep(60)')
  signal.signal(signal.SIGUSR1, stop)
  with pytest.raises(StoppedBySignal):
    child_process.run_program([], log)
  with open('pid') as pid, open(log) as written:
    assert not is_alive(pid.read()) and written.read() == last_words
