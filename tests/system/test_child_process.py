"""The program in a process of its own: what is told of its end, and what ends it."""

import os
import signal
import subprocess
import sys

import pytest
from conftest import ROOT, is_alive, wait_until

from estimator_train.errors import StoppedBySignal
from estimator_train.system import child_process
from estimator_train.system.child_process import ChildRun
from estimator_train.system.progress import START_TIME_VARIABLE


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


def test_result_or_failure(stand_in):
  for line, code, result, error in (
      ('print("a table\\n{\\"mode\\": \\"x\\"}")', 0, {'mode': 'x'}, None),
      ('print("{\\"mode\\": \\"x\\"}\\nafter it")', 0, None, None), ('print([1])', 0, None, None),
      ('', 0, None, None),
      ('sys.exit("error: first: 1: 2\\nerror: last: 3: 4\\nafter it")', 1, None, 'last: 3: 4'),
      ('raise ValueError("odd")', 1, None, 'ValueError: odd'),
      ('sys.exit(7)', 7, None, 'exit code 7 without any output'),
      ('os.kill(os.getpid(), signal.SIGSEGV)', -signal.SIGSEGV, None, 'killed by SIGSEGV'),
      ('os.kill(os.getpid(), signal.SIGKILL)', -signal.SIGKILL, None,
       'killed by SIGKILL, possibly out of memory (see dmesg)')):
    assert child_process.run_program([], stand_in(line)) == ChildRun(code, result, error)


def test_arguments_cores_and_environment(stand_in, monkeypatch):
  for name, value in ((START_TIME_VARIABLE, '1'), ('TF_CONFIG', '{}'),
                      ('PYTHONPATH', 'some:others')):
    monkeypatch.setenv(name, value)
  log = stand_in('print(json.dumps(dict(argv=sys.argv[1:], environment=dict(os.environ), '
                 'cores=sorted(os.sched_getaffinity(0)))))')
  found = child_process.run_program(['--a=b c', '--d'], log).result
  environment, cores = found['environment'], sorted(os.sched_getaffinity(0))
  assert found['argv'] == ['--a=b c', '--d'] and found['cores'] == cores
  assert START_TIME_VARIABLE not in environment and 'TF_CONFIG' not in environment
  assert environment['PYTHONPATH'] == 'some:others:{}'.format(ROOT)
  assert environment['PATH'] == os.environ['PATH']
  os.rename('estimator_train/__main__.py', 'another.py')
  assert child_process.run_program([], log, 'another', cores[-1:]).result['cores'] == cores[-1:]


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


def test_dies_with_its_parent(stand_in, tmp_path):
  stand_in('open("part", "w").write(str(os.getpid()))', 'os.rename("part", "pid")',
           'time.sleep(60)')
  code = 'import sys; sys.path[0] = {!r}; from estimator_train.system import child_process; ' \
         'child_process.run_program([], "log.txt")'.format(str(ROOT))
  parent = subprocess.Popen([sys.executable, '-c', code], cwd=str(tmp_path))
  try:
    wait_until((tmp_path / 'pid').exists)
    pid = (tmp_path / 'pid').read_text()
    assert is_alive(pid)
  finally:
    parent.kill()
    parent.wait()
  wait_until(lambda: not is_alive(pid))
